//! What each reason of a loss means and what to do about it, and why stacks end early: words for reports that people read.

use profiler_common::counter::Counter;
use profiler_common::limits::STACK_FRAMES_MAX;

/// What a loss means, and what to do.
pub(super) fn loss(reason: &str) -> (Option<&'static str>, Option<&'static str>) {
    match reason {
        "unreadable_record" => return (Some("the agent did not understand a record"), Some("please report this")),
        "unknown_free" => {
            return (Some("a block was freed whose allocation was lost"), Some("what was lost before is the cause"));
        }
        "probe_missed" => {
            return (
                Some("the kernel skipped a program because a preempted task was running it on the same CPU"),
                Some("please report this"),
            );
        }
        "stack_lost" => {
            return (
                Some("callsites whose frames did not get through"),
                Some("their blocks are counted, under `[stack lost]`; raise `--ring-size` or `--interval`"),
            );
        }
        _ => {}
    }
    let Some(counter) = counter(reason) else { return (None, None) };
    let (meaning, remedy) = match counter {
        Counter::RingFull => ("the agent did not read events fast enough", "raise `--interval` or `--ring-size`"),
        Counter::LiveSetFull => ("there were too many live blocks to follow", "raise `--interval` or `--live-blocks`"),
        Counter::InflightFull => {
            ("too many threads were inside allocator functions at once", "profile fewer processes at a time")
        }
        Counter::MissedReturn => (
            "calls that were left by `longjmp`, or whose thread ended inside",
            "a few of these are normal; their blocks are missing",
        ),
        Counter::MissedFree => (
            "a block was handed out again whose free was not seen",
            "it was freed by a function that is not hooked; the JSON report lists those that are",
        ),
        Counter::ResultUnreadable => (
            "the result of `posix_memalign` could not be read from the process",
            "a few of these are normal; their blocks are missing",
        ),
        Counter::MayThrow => (
            "calls of `operator new` that asked for so much that they may throw, which a probe does not survive",
            "their blocks are missing; `malloc` of the same size would be seen",
        ),
        Counter::ForkMissed => {
            ("a forked process was not followed", "raise `--ring-size`, or give the process itself with `--pid`")
        }
        Counter::ExecMissed => {
            ("an exec was not seen, so that two programs are one in the report", "raise `--ring-size`")
        }
        Counter::TargetsFull => {
            ("there were too many processes to watch them all", "choose fewer with `--cmdline` or `--exclude`")
        }
        _ => return (None, None),
    };
    (Some(meaning), Some(remedy))
}

/// Why a stack is not complete.
pub(super) fn stack_end(end: &str) -> Option<String> {
    Some(match counter(end)? {
        Counter::StackTruncated => format!("deeper than {STACK_FRAMES_MAX} frames"),
        Counter::StackUnreadable => "memory that could not be read".to_owned(),
        Counter::StackBrokenChain => "code without frame pointers".to_owned(),
        Counter::StackNoScratch => "interrupted; only the caller is known".to_owned(),
        Counter::StackMissingModule => "code whose unwind tables were not there yet".to_owned(),
        Counter::StackNoRow => "code without unwind information".to_owned(),
        Counter::StackUnsupportedRule => "an unwind rule that tables cannot express".to_owned(),
        _ => return None,
    })
}

fn counter(name: &str) -> Option<Counter> {
    Counter::ALL.iter().copied().find(|counter| counter.name() == name)
}
