//! How far the profile can be trusted, and what it cost, in words.
//!
//! What each reason means is in `report/loss.rs`. A reason that is not known there is still printed.

use profiler_common::counter::Counter;

use super::{HEADING, PLAIN, Page, WARNING};
use crate::model::{Health, HeapProfile, HookStatus, Profile, Symbolization};
use crate::report::loss::{loss, stack_end};
use crate::report::{View, describe, naming, text};

/// Hooks that are listed with why they are not attached.
const HOOKS_MAX: usize = 5;

/// Recordings from which on the agent's share of CPU time is told.
const SHARE_FROM_NS: u64 = 1_000_000_000;

impl Page {
    /// Says what was lost, which hooks are missing, how stacks ended, and what profiling cost.
    pub(super) fn health(&mut self, profile: &Profile, view: View) {
        if profile.incomplete() {
            self.line(WARNING, "health: this profile is incomplete");
        } else {
            self.line(HEADING, "health: nothing was lost");
        }
        self.losses(profile);
        self.guardrails(profile);
        let accuracy = describe::accuracy(profile, view);
        if !accuracy.is_empty() {
            self.line(PLAIN, &format!("  accuracy: {}{accuracy}", view.title()));
        }
        self.hooks(profile);
        self.stacks(&profile.health);
        self.frame_pointers(&profile.health);
        self.symbolization(&profile.health.symbolization);
        self.cost(profile);
    }

    fn losses(&mut self, profile: &Profile) {
        let health = &profile.health;
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
        for (heap, changes) in describe::interval_changes(health) {
            let line = describe::changed_interval(profile, heap, &changes);
            self.line(PLAIN, &format!("  {line}"));
        }
        if health.resyncs > 0 {
            let times = text::counted(health.resyncs, "time");
            self.line(PLAIN, &format!("  the ledger was put right from the kernel's live set {times}"));
        }
    }

    fn hooks(&mut self, profile: &Profile) {
        let hooks = describe::each_once(profile);
        if hooks.is_empty() && !profile.targets.is_empty() {
            self.line(WARNING, "  hooks: none, as no allocator was found");
        } else if hooks.is_empty() {
            self.line(PLAIN, "  hooks: none");
        } else {
            self.attached(&hooks);
        }
        self.unfound(profile);
    }

    /// How many functions of which heaps are watched, and why the others are not: those first that the profile takes.
    fn attached(&mut self, hooks: &[(&HeapProfile, &HookStatus)]) {
        let is_attached = |(_, hook): &&(&HeapProfile, &HookStatus)| hook.error.is_none();
        let attached = hooks.iter().filter(is_attached).count();
        let (whole, heaps) = (text::counted(hooks.len() as u64, "function"), heap_names(hooks));
        if attached == hooks.len() {
            return self.line(PLAIN, &format!("  hooks: {whole}{heaps}"));
        }
        let mut unattached: Vec<_> = hooks.iter().filter(|hook| !is_attached(hook)).collect();
        unattached.sort_by_key(|(_, hook)| !hook.is_missing());
        let style = if unattached[0].1.is_missing() { WARNING } else { PLAIN };
        self.line(style, &format!("  hooks: {} of {whole}{heaps}", text::count(attached as u64)));
        for (heap, hook) in unattached.iter().take(HOOKS_MAX) {
            let (need, style) = if hook.is_missing() { ("", WARNING) } else { (" (few programs call it)", PLAIN) };
            let line = format!("    {}: {}{need}", text::printable(&heap.name), describe::unattached(hook));
            self.line(style, &line);
        }
        self.and_more(unattached.len());
    }

    /// Functions that the user has named and that are nowhere. Of a spec that ships a heap's are many, and few programs
    /// have all: only where none is there it is told.
    fn unfound(&mut self, profile: &Profile) {
        let (required, optional): (Vec<_>, Vec<_>) = profile.health.unfound.iter().partition(|hook| hook.required);
        let whose = match profile.targets.as_slice() {
            [target] => format!("process {}", target.pid),
            targets => text::counted(targets.len() as u64, "process"),
        };
        for hook in required.iter().take(HOOKS_MAX) {
            let (heap, function) = (text::printable(&hook.heap), text::printable(&hook.function));
            let modules = match hook.modules.as_slice() {
                [any] if any == "*" => String::new(),
                modules => format!(" `{}`", text::printable(&modules.join("` or `"))),
            };
            self.line(WARNING, &format!("    {heap}: no function `{function}` in any module{modules} of {whose}"));
        }
        self.and_more(required.len());
        if !required.is_empty() {
            self.line(PLAIN, "    `nm -D MODULE` lists what a library exports, `nm MODULE` what else is named in it");
        }
        let mut heaps: Vec<&str> = optional.iter().map(|hook| hook.heap.as_str()).collect();
        heaps.dedup();
        heaps.retain(|name| profile.hooks().all(|(heap, _)| heap.name != *name));
        for heap in heaps {
            self.line(
                PLAIN,
                &format!("    {}: none of its functions is in any module of {whose}", text::printable(heap)),
            );
        }
    }

    fn and_more(&mut self, count: usize) {
        if count > HOOKS_MAX {
            self.line(PLAIN, &format!("    and {} more", text::count((count - HOOKS_MAX) as u64)));
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

    /// Modules whose names are missing, and why.
    fn symbolization(&mut self, symbolization: &Symbolization) {
        for line in naming::missing_names(symbolization).take(HOOKS_MAX) {
            self.line(WARNING, &format!("  {line}"));
        }
        self.and_more(symbolization.failures.len());
        if let Some(line) = naming::missing_isolation(symbolization) {
            self.line(PLAIN, &format!("  {line}"));
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "for a percentage")]
    fn cost(&mut self, profile: &Profile) {
        let Health { events, agent_cpu_ns, agent_rss_bytes_max, .. } = profile.health;
        // What it takes to begin and end says nothing of a short recording's cost.
        let recorded_ns = describe::duration_ns(profile);
        let share = text::share(agent_cpu_ns as f64, recorded_ns as f64);
        let share = if recorded_ns < SHARE_FROM_NS { String::new() } else { format!(" ({share} of one CPU)") };
        self.line(
            PLAIN,
            &format!(
                "  agent: {} of CPU time{share}, {} of memory, {}",
                text::duration(agent_cpu_ns),
                text::size(agent_rss_bytes_max),
                text::counted(events, "event"),
            ),
        );
    }
}

/// ` of libc`, ` of 2 heaps (libc, pool)`.
fn heap_names(hooks: &[(&HeapProfile, &HookStatus)]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (heap, _) in hooks {
        if !names.contains(&heap.name.as_str()) {
            names.push(&heap.name);
        }
    }
    match names.as_slice() {
        [] => String::new(),
        [only] => format!(" of heap {}", text::printable(only)),
        _ => format!(" of {} heaps ({})", text::count(names.len() as u64), text::printable(&names.join(", "))),
    }
}
