//! Numbered counters of the kernel side. A number is never reused.

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// Counters of the kernel side. The discriminant is the index into the per-CPU counter map.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum Counter {
            $($(#[$doc])* $variant = $number,)*
        }

        impl Counter {
            /// All counters, by number.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Name in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

counters! {
    /// Records written to the ring buffer.
    Events = 0, "events";
    /// Records dropped because the ring buffer was full.
    RingFull = 1, "ring_full";
    /// Sampled blocks dropped because the live set was full.
    LiveSetFull = 2, "live_set_full";
    /// Hooked calls not followed to their return.
    InflightFull = 3, "inflight_full";
    /// Missed returns: the thread left the call by `longjmp`, or exited inside it.
    MissedReturn = 4, "missed_return";
    /// Blocks allocated at an address that was still live: its free was missed.
    MissedFree = 5, "missed_free";
    /// Results that could not be read from the target's memory (`posix_memalign`'s out-pointer).
    ResultUnreadable = 6, "result_unreadable";
    /// Calls of functions that may throw, not followed to their return because of their size.
    MayThrow = 7, "may_throw";
    /// Forks of targets that could not be reported to the agent: the new process is not recorded.
    ForkMissed = 8, "fork_missed";
    /// Execs that could not be reported to the agent.
    ExecMissed = 9, "exec_missed";
    /// Processes not added because the map of targets was full: their calls are not sampled and their forks not followed.
    /// Includes forks that the agent could add later.
    TargetsFull = 10, "targets_full";
    /// Runs of the first copy of the program for execs.
    ExecRuns = 11, "exec_runs";
    /// Execs handled by any copy of the program.
    ExecsSeen = 12, "execs_seen";
    /// Allocating calls of processes that are not targets, at shared probes.
    ForeignCalls = 13, "foreign_calls";
    /// Stacks through an interpreter without its frames: the state of the thread was not found.
    InterpreterNoThread = 14, "interpreter_no_thread";
    /// Stacks of an interpreter whose frames ended at unreadable memory.
    InterpreterUnreadable = 15, "interpreter_unreadable";
    /// The stack was unwound to the thread's first frame.
    StackComplete = 16, "complete";
    /// The stack is deeper than [`STACK_FRAMES_MAX`](crate::limits::STACK_FRAMES_MAX).
    StackTruncated = 17, "truncated";
    /// A frame's memory could not be read.
    StackUnreadable = 18, "unreadable";
    /// A frame pointer did not point outwards: code without frame pointers.
    StackBrokenChain = 19, "broken_chain";
    /// No scratch area was free, so only the direct caller is known.
    StackNoScratch = 20, "no_scratch";
    /// A return address is in no module that has a table.
    StackMissingModule = 21, "missing_module";
    /// A return address is in code without unwind information.
    StackNoRow = 22, "no_row";
    /// The tables cannot express the unwind rule of a frame.
    StackUnsupportedRule = 23, "unsupported_rule";
    /// New code of interpreters and virtual machines that was not sent, because the process has too much: see
    /// [`CODE_PER_PERIOD`](crate::limits::CODE_PER_PERIOD).
    CodeRefused = 24, "code_refused";
    /// Upper bound of the bytes that allocations represent whose records were dropped because the ring buffer was full.
    UnwrittenBytes = 25, "unwritten_bytes";
    /// The same in blocks.
    UnwrittenBlocks = 26, "unwritten_blocks";
    /// Upper bound of the bytes that blocks represent which were dropped because the live set was full.
    UntrackedBytes = 27, "untracked_bytes";
    /// The same in blocks.
    UntrackedBlocks = 28, "untracked_blocks";
    /// Native functions of the stack are missing, but no functions of the interpreter.
    StackNativeMissing = 29, "native_missing";
    /// The outer frames of a virtual thread of Java are in its continuation, which could not be read.
    StackFrozen = 30, "frozen";
    /// Mappings where targets had code that could not be reported to the agent: names of code at their addresses may be wrong.
    MappingMissed = 31, "mapping_missed";
}

impl Counter {
    pub const COUNT: u32 = 64;

    /// Whether the counter is of dropped events, so that the profile is incomplete.
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
                | Self::MappingMissed
        )
    }

    /// Whether the counter is of stacks, by the reason for their end.
    pub const fn is_stack_end(self) -> bool {
        self as u32 >= Self::StackComplete as u32 && self as u32 <= Self::StackUnsupportedRule as u32
            || matches!(self, Self::StackNativeMissing | Self::StackFrozen)
    }
}

const _: () = {
    let mut i = 0;
    while i < Counter::ALL.len() {
        assert!((Counter::ALL[i] as u32) < Counter::COUNT, "counter outside the map");
        i += 1;
    }
};
