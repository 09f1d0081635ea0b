//! What drops mean and what to do about them, and why stacks are truncated.

use profiler_common::counter::Counter;
use profiler_common::limits::STACK_FRAMES_MAX;

use crate::model::Loss;

/// The meaning of a reason, and the remedy. `None` for a reason that only another version of heapbpf knows.
pub(super) fn explain(loss: &Loss) -> Option<(&'static str, &'static str)> {
    Some(match loss {
        Loss::RingFull => ("the agent did not read events fast enough", "raise `--interval` or `--ring-size`"),
        Loss::LiveSetFull => ("there were too many live blocks", "raise `--interval` or `--live-blocks`"),
        Loss::InflightFull => {
            ("too many threads were in allocator functions at once", "profile fewer processes at a time")
        }
        Loss::MissedReturn => (
            "calls that were left by `longjmp`, or whose thread exited in the call",
            "a few of these are normal; their blocks are missing",
        ),
        Loss::MissedFree => (
            "the address of a live block was allocated again, so its free was missed",
            "a function that is not hooked freed it; the JSON report lists the hooked functions",
        ),
        Loss::ResultUnreadable => (
            "the result of `posix_memalign` could not be read from the process",
            "a few of these are normal; their blocks are missing",
        ),
        Loss::MayThrow => (
            "calls of `operator new` for a size so large that they may throw, which a return probe does not survive",
            "their blocks are missing; a `malloc` of the same size would be recorded",
        ),
        Loss::ForkMissed => {
            ("a forked process was not followed", "raise `--ring-size`, or specify the process itself with `--pid`")
        }
        Loss::ExecMissed => ("an exec was missed, so the report merges two programs", "raise `--ring-size`"),
        Loss::TargetsFull => {
            ("there were too many processes to profile them all", "select fewer with `--cmdline` or `--exclude`")
        }
        Loss::UnreadableRecord => ("the agent could not decode a record", "please report this"),
        Loss::UnknownFree => {
            ("a block was freed whose allocation was dropped", "the reasons of earlier drops apply here too")
        }
        Loss::ProbeMissed => (
            "the kernel skipped a program because a preempted task was running it on the same CPU",
            "please report this",
        ),
        Loss::StackLost => (
            "callsites whose frames were dropped",
            "their blocks are counted, under `[stack lost]`; raise `--ring-size` or `--interval`",
        ),
        Loss::Unknown(_) => return None,
    })
}

/// Why a stack is truncated, by the name of its end.
pub(super) fn explain_stack_end(end: &str) -> Option<String> {
    let counter = Counter::ALL.iter().find(|counter| counter.name() == end)?;
    Some(match counter {
        Counter::StackTruncated => format!("deeper than {STACK_FRAMES_MAX} frames"),
        Counter::StackUnreadable => "unreadable memory".to_owned(),
        Counter::StackBrokenChain => "code without frame pointers".to_owned(),
        Counter::StackNoScratch => "interrupted; only the caller is known".to_owned(),
        Counter::StackMissingModule => "code whose unwind tables were not loaded yet".to_owned(),
        Counter::StackNoRow => "code without unwind information".to_owned(),
        Counter::StackUnsupportedRule => "an unwind rule that tables cannot express".to_owned(),
        _ => return None,
    })
}
