//! How far the profile can be trusted, and what it cost, in words.
//!
//! Owns what each reason means and what to do about it. A reason that is not known here is still printed.

use profiler_common::counter::Counter;
use profiler_common::limits::STACK_FRAMES_MAX;

use super::{HEADING, PLAIN, Page, WARNING};
use crate::report::profile::{Health, Profile};
use crate::report::{View, describe, text};

/// Hooks that are listed with why they are not attached.
const HOOKS_MAX: usize = 5;

impl Page {
    /// Says what was lost, which hooks are missing, how stacks ended, and what profiling cost.
    pub(super) fn health(&mut self, profile: &Profile, view: View) {
        if profile.incomplete() {
            self.line(WARNING, "health: this profile is incomplete");
        } else {
            self.line(HEADING, "health: nothing was lost");
        }
        self.losses(&profile.health);
        let accuracy = describe::accuracy(profile, view);
        if !accuracy.is_empty() {
            self.line(PLAIN, &format!("  accuracy: {}{accuracy}", view.title()));
        }
        self.hooks(profile);
        self.stacks(&profile.health);
        self.frame_pointers(&profile.health);
        self.cost(profile);
    }

    fn losses(&mut self, health: &Health) {
        let mut lost: Vec<&(String, u64)> = health.lost.iter().filter(|(_, count)| *count > 0).collect();
        lost.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (reason, count) in lost {
            let (meaning, remedy) = loss(reason);
            let meaning = meaning.map_or(String::new(), |meaning| format!(": {meaning}"));
            self.line(WARNING, &format!("  {} lost, {}{meaning}", text::count(*count), text::printable(reason)));
            if let Some(remedy) = remedy {
                self.line(PLAIN, &format!("    {remedy}"));
            }
        }
        if health.resyncs > 0 {
            let times = text::counted(health.resyncs, "time");
            self.line(PLAIN, &format!("  the ledger was put right from the kernel's live set {times}"));
        }
    }

    fn hooks(&mut self, profile: &Profile) {
        let all = describe::hooks(profile).count();
        if all == 0 && !profile.targets.is_empty() {
            return self.line(WARNING, "  hooks: none, as no allocator was found");
        }
        let missing: Vec<_> = describe::hooks(profile).filter(|(_, hook)| hook.error.is_some()).collect();
        if missing.is_empty() {
            return self.line(PLAIN, &format!("  hooks: {} attached", text::count(all as u64)));
        }
        let attached = text::count((all - missing.len()) as u64);
        self.line(WARNING, &format!("  hooks: {attached} of {} attached", text::count(all as u64)));
        for (heap, hook) in missing.iter().take(HOOKS_MAX) {
            self.line(PLAIN, &format!("    {}: {}", text::printable(&heap.name), describe::unattached(hook)));
        }
        if missing.len() > HOOKS_MAX {
            self.line(PLAIN, &format!("    and {} more", text::count((missing.len() - HOOKS_MAX) as u64)));
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "for a percentage")]
    fn stacks(&mut self, health: &Health) {
        let whole: f64 = health.unwind.iter().map(|(_, count)| *count as f64).sum();
        if whole <= 0.0 {
            return self.line(PLAIN, "  stacks: none taken");
        }
        let mut ends: Vec<&(String, u64)> = health.unwind.iter().filter(|(_, count)| *count > 0).collect();
        ends.sort_by_key(|(end, count)| (end != Counter::StackComplete.name(), std::cmp::Reverse(*count)));
        let words: Vec<String> = ends
            .into_iter()
            .map(|(end, count)| {
                let meaning = stack_end(end).map_or(String::new(), |meaning| format!(" ({meaning})"));
                format!("{} {}{meaning}", text::share(*count as f64, whole), text::printable(end))
            })
            .collect();
        self.line(PLAIN, &format!("  stacks: {}", words.join(", ")));
    }

    fn frame_pointers(&mut self, health: &Health) {
        if !health.frame_pointer_modules.is_empty() {
            let modules: Vec<String> =
                health.frame_pointer_modules.iter().map(|path| text::printable(path).into_owned()).collect();
            self.line(PLAIN, &format!("  unwound by frame pointers, for want of tables: {}", modules.join(", ")));
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "for a percentage")]
    fn cost(&mut self, profile: &Profile) {
        let Health { events, agent_cpu_ns, agent_rss_bytes_max, .. } = profile.health;
        let share = text::share(agent_cpu_ns as f64, describe::duration_ns(profile) as f64);
        self.line(
            PLAIN,
            &format!(
                "  agent: {} of CPU time ({share} of one CPU), {} of memory, {}",
                text::duration(agent_cpu_ns),
                text::size(agent_rss_bytes_max),
                text::counted(events, "event"),
            ),
        );
    }
}

/// What a loss means, and what to do.
fn loss(reason: &str) -> (Option<&'static str>, Option<&'static str>) {
    match reason {
        "unreadable_record" => return (Some("the agent did not understand a record"), Some("please report this")),
        "unknown_free" => {
            return (Some("a block was freed whose allocation was lost"), Some("what was lost before is the cause"));
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
            ("there were too many processes to follow their forks", "choose fewer with `--cmdline` or `--exclude`")
        }
        _ => return (None, None),
    };
    (Some(meaning), Some(remedy))
}

/// Why a stack is not complete.
fn stack_end(end: &str) -> Option<String> {
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
