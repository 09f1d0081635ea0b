//! Numbered counters of the kernel side. A number is never reused; a retired one keeps its place.

/// Defines [`Counter`] with its report name, so that neither can be forgotten.
macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// What the kernel side counts, by reason. The discriminant is the index into the per-CPU counter map.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Counter {
            $($(#[$doc])* $variant = $number,)*
        }

        impl Counter {
            /// All counters, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name used in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

counters! {
    /// Records put into the ring.
    Events = 0, "events";
    /// A record found no room in the ring.
    RingFull = 1, "ring_full";
    /// A sampled block could not be entered into the live set.
    LiveSetFull = 2, "live_set_full";
    /// A hooked call could not be followed to its return.
    InflightFull = 3, "inflight_full";
    /// A return was never seen: the call was left by `longjmp`, or its thread ended inside it.
    MissedReturn = 4, "missed_return";
    /// A block appeared at an address that was still live: its free was not seen.
    MissedFree = 5, "missed_free";
    /// A result could not be read from the target's memory (`posix_memalign`'s out-pointer).
    ResultUnreadable = 6, "result_unreadable";
    /// A call of a function that may throw was not followed to its return, because it asked for so much that it may.
    MayThrow = 7, "may_throw";
    /// A target forked, and the agent could not be told: the new process is not watched.
    ForkMissed = 8, "fork_missed";
    /// A process ran another program, and the agent could not be told.
    ExecMissed = 9, "exec_missed";
    /// A process found no room among the targets: its calls are not drawn, and processes that it forks are not watched. Of a
    /// forked one that the agent then found room for, this counts too.
    TargetsFull = 10, "targets_full";
    /// The first copy of the program for execs was run.
    ExecRuns = 11, "exec_runs";
    /// An exec was seen, by whichever copy of the program was the first to run.
    ExecsSeen = 12, "execs_seen";
    /// A stack was taken and reached the thread's first frame.
    StackComplete = 16, "complete";
    /// A stack was deeper than [`STACK_FRAMES_MAX`](crate::limits::STACK_FRAMES_MAX).
    StackTruncated = 17, "truncated";
    /// A frame's memory could not be read.
    StackUnreadable = 18, "unreadable";
    /// A frame pointer did not lead outwards: code without frame pointers.
    StackBrokenChain = 19, "broken_chain";
    /// All scratch areas of the CPU were taken, so only the direct caller is known.
    StackNoScratch = 20, "no_scratch";
    /// A return address lies in no module that has a table.
    StackMissingModule = 21, "missing_module";
    /// A return address lies in a module's code that no unwind information covers.
    StackNoRow = 22, "no_row";
    /// A frame's unwind rule is one that the tables cannot express.
    StackUnsupportedRule = 23, "unsupported_rule";
}

impl Counter {
    /// Size of the counter map.
    pub const COUNT: u32 = 64;

    /// Whether the counter says that events were lost, so that the profile is incomplete.
    pub const fn is_loss(self) -> bool {
        matches!(
            self,
            Self::RingFull
                | Self::LiveSetFull
                | Self::InflightFull
                | Self::MissedReturn
                | Self::MissedFree
                | Self::ResultUnreadable
                | Self::MayThrow
                | Self::ForkMissed
                | Self::ExecMissed
                | Self::TargetsFull
        )
    }

    /// Whether the counter tells how a stack ended.
    pub const fn is_stack_end(self) -> bool {
        self as u32 >= Self::StackComplete as u32
    }
}

const _: () = {
    let mut i = 0;
    while i < Counter::ALL.len() {
        assert!((Counter::ALL[i] as u32) < Counter::COUNT, "counter outside the map");
        i += 1;
    }
};
