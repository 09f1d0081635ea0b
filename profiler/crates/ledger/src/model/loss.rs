//! Reasons of drops, with the meaning and the remedy of each.

use profiler_common::counter::Counter;
use serde::{Deserialize, Serialize};

/// Why records or blocks were dropped, with the meaning of the reason and the remedy as messages.
#[derive(
    Clone, Debug, PartialEq, Eq, Serialize, Deserialize, strum::EnumString, strum::IntoStaticStr, strum::EnumMessage,
)]
#[cfg_attr(any(test, feature = "testing"), derive(strum::VariantNames))]
#[serde(from = "String", into = "String")]
#[strum(serialize_all = "snake_case")]
pub enum Loss {
    #[strum(message = "the agent did not read events fast enough")]
    #[strum(detailed_message = "raise `--interval` or `--ring-size`")]
    RingFull,
    #[strum(message = "there were too many live blocks")]
    #[strum(detailed_message = "raise `--interval` or `--live-blocks`")]
    LiveSetFull,
    #[strum(message = "too many threads were in allocator functions at once")]
    #[strum(detailed_message = "profile fewer processes at a time")]
    InflightFull,
    #[strum(message = "calls that were left by `longjmp`, or whose thread exited in the call")]
    #[strum(detailed_message = "a few of these are normal; their blocks are missing")]
    MissedReturn,
    #[strum(message = "the address of a live block was allocated again, so its free was missed")]
    #[strum(detailed_message = "a function that is not hooked freed it; the JSON report lists the hooked functions")]
    MissedFree,
    #[strum(message = "the result of `posix_memalign` could not be read from the process")]
    #[strum(detailed_message = "a few of these are normal; their blocks are missing")]
    ResultUnreadable,
    #[strum(
        message = "calls of `operator new` that may throw, which no probe survives: of a size near a limit of the process, or with a new-handler"
    )]
    #[strum(
        detailed_message = "their blocks are missing; raise `ulimit -v`, `ulimit -d` or `vm.max_map_count` of the process"
    )]
    MayThrow,
    #[strum(message = "a forked process was not followed")]
    #[strum(detailed_message = "raise `--ring-size`, or specify the process itself with `--pid`")]
    ForkMissed,
    #[strum(message = "an exec was missed, so the report merges two programs")]
    #[strum(detailed_message = "raise `--ring-size`")]
    ExecMissed,
    #[strum(message = "there were too many processes to profile them all")]
    #[strum(detailed_message = "select fewer with `--cmdline` or `--exclude`")]
    TargetsFull,
    #[strum(message = "code that was mapped where there was other code could not be reported")]
    #[strum(
        detailed_message = "names of functions at its addresses may be those of the other code; raise `--ring-size`"
    )]
    MappingMissed,
    #[strum(message = "processes of `--pid` that could not be recorded")]
    #[strum(detailed_message = "the report gives the reasons (`others.skipped`)")]
    ProcessSkipped,
    #[strum(message = "the agent could not decode a record")]
    #[strum(detailed_message = "please report this")]
    UnreadableRecord,
    #[strum(message = "a block was freed whose allocation was dropped")]
    #[strum(detailed_message = "the reasons of earlier drops apply here too")]
    UnknownFree,
    #[strum(message = "the kernel skipped a program because a preempted task was running it on the same CPU")]
    #[strum(detailed_message = "please report this")]
    ProbeMissed,
    #[strum(message = "calls that a stub of the inline engine has sampled, but no probe has seen")]
    #[strum(detailed_message = "their blocks are missing; please report this")]
    StubMissed,
    #[strum(
        message = "programs of recorded processes that ended, or executed another program, before their probes were attached"
    )]
    #[strum(detailed_message = "their blocks are missing; record such a program itself with `heapbpf -- PROGRAM`")]
    ProgramMissed,
    #[strum(message = "programs of recorded processes that ran before their probes were attached")]
    #[strum(
        detailed_message = "their first blocks may be missing; record such a program itself with `heapbpf -- PROGRAM`"
    )]
    ProgramLate,
    #[strum(serialize = "program_32bit")]
    #[strum(message = "32-bit programs of recorded processes, whose calls no probe sees")]
    #[strum(detailed_message = "their blocks are missing; build them for 64 bits")]
    Program32Bit,
    #[strum(
        message = "processes that run in the memory of a recorded process, as one of its threads would (`CLONE_VM`)"
    )]
    #[strum(
        detailed_message = "frees of blocks of the other process are missing, and the first blocks or all of their own"
    )]
    MemoryShared,
    #[strum(
        message = "processes that ended in the memory of a recorded process without executing a program, as a child of `vfork` does whose exec fails"
    )]
    #[strum(detailed_message = "what they have allocated and freed there is missing, which is mostly nothing")]
    MemoryBorrowed,
    #[strum(message = "recorded processes whose calls no probe saw, or not all the time")]
    #[strum(detailed_message = "their blocks are missing; the log has the reason (`-v`)")]
    Unobserved,
    #[strum(
        message = "forked processes without all of the blocks that they have inherited, or whose frees of these are missing"
    )]
    #[strum(detailed_message = "their live amounts are wrong; raise `--live-blocks`")]
    NotInherited,
    #[strum(
        message = "forks and execs that the kernel does not report to heapbpf, so processes that these start are missing"
    )]
    #[strum(
        detailed_message = "`heapbpf doctor` has the reason; `--pid` with `--no-follow-fork` records processes that run alone"
    )]
    Unmonitored,
    #[strum(message = "blocks whose stack was dropped")]
    #[strum(detailed_message = "they are counted, under `[stack lost]`; raise `--ring-size` or `--interval`")]
    StackLost,
    /// A reason that another version of heapbpf wrote into a report or a recording.
    #[strum(disabled)]
    Unknown(String),
}

impl Loss {
    /// `counter` is one of those that count drops.
    pub fn of(counter: Counter) -> Self {
        Self::from(counter.name().to_owned())
    }

    /// Counts processes or programs, not events.
    pub fn is_of_processes(&self) -> bool {
        let are_processes = matches!(self, Self::ForkMissed | Self::ExecMissed | Self::TargetsFull);
        self.is_of_others()
            || are_processes
            || matches!(self, Self::MemoryShared | Self::Unobserved | Self::NotInherited)
    }

    /// Counts processes or programs that the recorded ones do not lack.
    pub fn is_of_others(&self) -> bool {
        matches!(
            self,
            Self::ProcessSkipped
                | Self::ProgramMissed
                | Self::ProgramLate
                | Self::Program32Bit
                | Self::MemoryBorrowed
                | Self::Unmonitored
        )
    }

    /// Whether this lasts from its beginning to the end of the recording, so that each window lacks it.
    pub fn is_state(&self) -> bool {
        matches!(self, Self::ProcessSkipped | Self::MemoryShared | Self::Unobserved | Self::Unmonitored)
    }

    /// Counts allocations whose size is not known.
    pub fn is_unsized(&self) -> bool {
        matches!(
            self,
            Self::InflightFull | Self::ResultUnreadable | Self::MayThrow | Self::ProbeMissed | Self::StubMissed
        )
    }

    pub fn name(&self) -> &str {
        match self {
            Self::Unknown(name) => name,
            known => known.into(),
        }
    }
}

impl From<String> for Loss {
    fn from(name: String) -> Self {
        name.parse().unwrap_or(Self::Unknown(name))
    }
}

impl From<Loss> for String {
    fn from(loss: Loss) -> Self {
        loss.name().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_of_drops_is_a_known_loss() {
        for &counter in Counter::ALL.iter().filter(|counter| counter.is_loss()) {
            let loss = Loss::of(counter);
            assert!(!matches!(loss, Loss::Unknown(_)), "{counter:?}");
            assert_eq!(loss.name(), counter.name());
        }
        let unknown = Loss::from("brand_new".to_owned());
        assert_eq!((unknown.name(), &unknown), ("brand_new", &Loss::Unknown("brand_new".to_owned())));
    }
}
