//! Whether a profile is complete: one rule for the exit code, the summary and all reports.

use profiler_common::counter::Counter;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use super::health::Health;
use super::loss::Loss;
use super::process::Origin;
use super::profile::{HeapProfile, Profile, TargetProfile};

/// What can be missing from a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, IntoStaticStr, VariantArray)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
#[cfg_attr(any(test, feature = "testing"), derive(schemars::JsonSchema), schemars(inline))]
pub enum Defect {
    NoTarget,
    MissedProcesses,
    EndedProcesses,
    LatePrograms,
    UnhookedProcesses,
    MissingHooks,
    Limits,
    DroppedEvents,
    CutStacks,
    UnexplainedGrowth,
    IncompleteInventories,
}

/// Shares above which a profile is incomplete, from 0 to 1.
#[derive(Clone, Copy, Debug)]
pub struct Threshold {
    /// What is counted, and of what it is a share.
    pub measure: &'static str,
    pub share_max: f64,
    /// With `--strict`.
    pub strict_share_max: f64,
}

/// The recorded part of a resident memory's growth varies by what the program maps and reads besides: stacks, pages of files.
const GROWTH_NOISE: f64 = 0.1;

impl Defect {
    /// The only place that has thresholds. docs/exit-codes.md has this table, too.
    pub const fn threshold(self) -> Threshold {
        const fn any(measure: &'static str) -> Threshold {
            above(0.0, measure)
        }
        const fn above(share_max: f64, measure: &'static str) -> Threshold {
            Threshold { measure, share_max, strict_share_max: 0.0 }
        }
        match self {
            Self::NoTarget => any("no process was profiled"),
            Self::MissedProcesses => any(
                "forks, execs and programs that were missed, processes of `--pid` that could not be recorded, processes beyond the maximum, processes that share the memory of others, processes whose calls were not observed, forked processes without inherited blocks, forks and execs that the kernel does not report",
            ),
            // A program may start others that end at once.
            Self::EndedProcesses => {
                above(0.9, "processes that ended before they could be recorded, besides missed programs")
            }
            Self::LatePrograms => above(
                0.5,
                "programs that recorded processes have executed and that ran before their probes were attached",
            ),
            Self::UnhookedProcesses => above(0.5, "profiled processes in which no allocator is hooked"),
            Self::MissingHooks => any("required hooks that are not attached or not found"),
            Self::Limits => any("a limit ended the recording or detached a process, or the keeper exited"),
            Self::DroppedEvents => above(0.001, "dropped events, of all events"),
            Self::CutStacks => above(0.01, "stacks that end before the thread's first frame"),
            Self::UnexplainedGrowth => Threshold {
                strict_share_max: GROWTH_NOISE,
                ..above(0.5, "a process's growth of at least 16 MiB that hooked heaps do not explain")
            },
            Self::IncompleteInventories => {
                any("inventories of blocks from before the recording that lack some of a heap")
            }
        }
    }

    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// How much of one kind is missing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Finding {
    pub defect: Defect,
    /// Events, stacks, hooks, processes, limits; bytes of growth.
    pub count: u64,
    /// From 0 to 1.
    pub share: f64,
    pub share_max: f64,
}

impl Finding {
    pub fn is_exceeded(&self) -> bool {
        self.share > self.share_max
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// With the thresholds of `--strict`.
    pub strict: bool,
    /// One of each kind.
    pub findings: Vec<Finding>,
}

impl Profile {
    pub fn verdict(&self) -> Verdict {
        Verdict::of(self)
    }

    /// Too much is missing: exit code 3.
    pub fn incomplete(&self) -> bool {
        !self.verdict().is_complete()
    }
}

impl Verdict {
    fn of(profile: &Profile) -> Self {
        let finding = |&defect: &Defect| {
            let (count, share) = measure(profile, defect);
            let threshold = defect.threshold();
            let share_max = if profile.strict { threshold.strict_share_max } else { threshold.share_max };
            Finding { defect, count, share, share_max }
        };
        Self { strict: profile.strict, findings: Defect::VARIANTS.iter().map(finding).collect() }
    }

    /// Otherwise, the exit code is 3.
    pub fn is_complete(&self) -> bool {
        !self.findings.iter().any(Finding::is_exceeded)
    }
}

/// Count and share.
fn measure(profile: &Profile, defect: Defect) -> (u64, f64) {
    let processes = (profile.targets.len() as u64).saturating_add(profile.others.folded_count);
    let counted = |count: u64, whole: u64| (count, share(count, whole));
    match defect {
        Defect::NoTarget => counted(u64::from(processes == 0), 1),
        Defect::MissedProcesses => {
            let others = [Loss::ProgramLate, Loss::MemoryBorrowed].map(|loss| profile.health.lost_by(&loss));
            let missed = lost(&profile.health, true).saturating_sub(others.iter().sum());
            counted(missed, missed.saturating_add(processes))
        }
        Defect::EndedProcesses => {
            // A missed program may have exited, too.
            let ended = profile.others.short_lived_count.saturating_sub(profile.health.lost_by(&Loss::ProgramMissed));
            // Most have only failed to execute a program.
            let borrowed = if profile.strict { profile.health.lost_by(&Loss::MemoryBorrowed) } else { 0 };
            let ended = ended.saturating_add(borrowed);
            counted(ended, ended.saturating_add(processes))
        }
        Defect::LatePrograms => {
            let executed = profile.targets.iter().filter(|target| target.facts.beginning.origin == Origin::Executed);
            counted(profile.health.lost_by(&Loss::ProgramLate), executed.count() as u64)
        }
        Defect::UnhookedProcesses => {
            let has_hooks = |target: &&TargetProfile| {
                let is_recorded =
                    |heap: &HeapProfile| heap.needs_no_hooks() || heap.hooks.iter().any(|hook| hook.error.is_none());
                target.heaps.iter().any(is_recorded)
            };
            let unhooked = profile.targets.len() - profile.targets.iter().filter(has_hooks).count();
            counted(unhooked as u64, processes)
        }
        Defect::MissingHooks => {
            let unfound = profile.health.unfound.iter().filter(|hook| hook.required).count();
            let missing = profile.hooks().filter(|(_, hook)| hook.is_missing()).count() + unfound;
            counted(missing as u64, (profile.hooks().count() + unfound) as u64)
        }
        Defect::Limits => {
            let reached = profile.health.guardrails.reached.iter().filter(|reached| reached.leaves_out()).count();
            counted(reached as u64, reached as u64)
        }
        Defect::DroppedEvents => {
            let dropped = lost(&profile.health, false);
            counted(dropped, dropped.saturating_add(profile.health.events))
        }
        Defect::CutStacks => {
            let sum = |is_cut: bool| {
                let ends = profile.health.unwind.iter();
                let ends = ends.filter(|(end, _)| !is_cut || end != Counter::StackComplete.name());
                ends.map(|(_, count)| *count).fold(0, u64::saturating_add)
            };
            counted(sum(true), sum(false))
        }
        Defect::UnexplainedGrowth => {
            let growths = profile.targets.iter().filter_map(|target| target.memory.large_growth());
            let shares = growths.map(|growth| (growth.unexplained_bytes(), growth.unexplained_share()));
            shares.max_by(|(_, a), (_, b)| a.total_cmp(b)).unwrap_or((0, 0.0))
        }
        Defect::IncompleteInventories => {
            let inventories = || profile.targets.iter().filter_map(|target| target.memory.inventory());
            let incomplete = inventories().filter(|inventory| inventory.is_incomplete()).count();
            counted(incomplete as u64, inventories().count() as u64)
        }
    }
}

fn lost(health: &Health, processes: bool) -> u64 {
    let lost = health.lost.iter().filter(|(loss, _)| loss.is_of_processes() == processes);
    lost.map(|(_, count)| *count).fold(0, u64::saturating_add)
}

#[expect(clippy::cast_precision_loss, reason = "a share")]
fn share(part: u64, whole: u64) -> f64 {
    if part == 0 { 0.0 } else { part as f64 / whole.max(part) as f64 }
}
