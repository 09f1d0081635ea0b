//! The health section of the summary: how complete the profile is, and what it cost.

use heapbpf_ledger::model::{
    Action, Excess, Guardrails, Health, HeapProfile, HookStatus, NamesFrom, Profile, Reached, ScopeKind, SymbolSource,
    Symbolization, SymbolizationFailure, base_name,
};
use profiler_common::counter::Counter;
use profiler_common::limits::STACK_FRAMES_MAX;
use strum::EnumMessage as _;

use crate::cuts::cuts;
use crate::page::{HEADING, PLAIN, Page, WARNING};
use crate::presentation::View;
use crate::{deaths, describe, languages, nameless, origin, text};

const HOOKS_MAX: usize = 5;
/// Maximum number of modules that a line lists.
const LISTED_MAX: usize = 3;
const MODULES_MAX: usize = 3;
const CUTS_MAX: usize = 5;
const REACHED_MAX: usize = 10;

/// Minimum duration of a recording to report the agent's share of CPU time: startup dominates shorter ones.
const SHARE_DURATION_NS_MIN: u64 = 1_000_000_000;

impl Page {
    pub(crate) fn health(&mut self, profile: &Profile, view: View) {
        let style = if profile.incomplete() { WARNING } else { HEADING };
        self.line(style, &format!("health: {}", describe::verdict(profile)));
        self.losses(profile);
        self.entry_hooks(profile);
        self.guardrails(profile);
        let accuracy = describe::accuracy(profile, view);
        if !accuracy.is_empty() {
            self.line(PLAIN, &format!("  accuracy: {}{accuracy}", view.title()));
        }
        self.hooks(profile);
        self.engine(profile);
        self.scope(&profile.health);
        self.stacks(&profile.health);
        self.cuts(profile);
        self.frame_pointers(&profile.health);
        self.interpreters(&profile.health);
        self.symbolization(&profile.health.symbolization);
        nameless::lines(profile).take(HOOKS_MAX).for_each(|line| self.line(WARNING, &format!("  {line}")));
        self.cost(profile);
    }

    fn losses(&mut self, profile: &Profile) {
        let health = &profile.health;
        let mut lost: Vec<_> = health.lost.iter().filter(|(_, count)| *count > 0).collect();
        lost.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (reason, count) in lost {
            let meaning = reason.get_message().map_or(String::new(), |meaning| format!(": {meaning}"));
            self.line(WARNING, &format!("  {} lost, {}{meaning}", text::count(*count), text::printable(reason.name())));
            if let Some(remedy) = reason.get_detailed_message() {
                self.line(PLAIN, &format!("    {remedy}"));
            }
        }
        for line in describe::interval_changes(profile) {
            self.line(PLAIN, &format!("  {line}"));
        }
        if health.resyncs > 0 {
            let times = text::counted(health.resyncs, "time");
            self.line(PLAIN, &format!("  the ledger was resynced with the kernel's live set {times}"));
        }
    }

    /// Heaps of which only allocations are known, and targets that may have died of a replaced return address.
    fn entry_hooks(&mut self, profile: &Profile) {
        let mut heaps: Vec<&str> = Vec::new();
        for target in &profile.targets {
            let only = target.heaps.iter().filter(|heap| heap.has_allocations_only()).map(|heap| &*heap.name);
            heaps.extend(only);
            if let Some(line) = deaths::of_return(profile, target) {
                self.line(WARNING, &format!("  {line}"));
            }
        }
        heaps.sort_unstable();
        heaps.dedup();
        for heap in heaps {
            let heap = text::printable(heap);
            self.line(
                PLAIN,
                &format!("  heap {heap}: allocations only, because its hooks have no address: they count as freed"),
            );
        }
    }

    fn engine(&mut self, profile: &Profile) {
        let Some(engine) = &profile.health.inline_engine else { return };
        let calls = engine.passed_calls.saturating_add(engine.trapped_calls);
        let (targets, count) = (text::counted(engine.targets, "target"), text::count(calls));
        let passed = engine.passed_percent().map_or_else(String::new, |passed| {
            format!(": {} of {count} allocations passed without a trap", percent(passed))
        });
        self.line(PLAIN, &format!("  inline engine: {targets}{passed}"));
        for (reason, targets) in engine.refused.iter().take(REACHED_MAX) {
            let targets = text::counted(*targets, "target");
            self.line(PLAIN, &format!("    {targets} with the trap engine: {}", text::printable(reason)));
        }
        self.and_more("    ", engine.refused.len(), REACHED_MAX);
    }

    fn interpreters(&mut self, health: &Health) {
        let Some(interpreters) = &health.interpreters else { return };
        for (reason, processes) in interpreters.unsupported.iter().take(REACHED_MAX) {
            let processes = text::counted(*processes, "process");
            let reason = text::printable(reason);
            self.line(WARNING, &format!("  stacks of {processes} lack the functions of the interpreter: {reason}"));
        }
        self.and_more("    ", interpreters.unsupported.len(), REACHED_MAX);
        for (count, what, reason) in [
            (interpreters.no_thread, "the", "the state of the thread was not found"),
            (interpreters.unreadable, "some", "a frame could not be read"),
        ] {
            if count > 0 {
                let stacks = text::counted(count, "stack");
                self.line(WARNING, &format!("  {stacks} without {what} functions of the interpreter: {reason}"));
            }
        }
        languages::lines(interpreters).iter().for_each(|line| self.line(WARNING, &format!("  {line}")));
        if interpreters.deferred > 0 {
            let times = text::counted(interpreters.deferred, "time");
            let line = format!("  names of interpreters' functions deferred {times}: a process had too many new ones");
            self.line(WARNING, &line);
        }
    }

    fn guardrails(&mut self, profile: &Profile) {
        let guardrails = &profile.health.guardrails;
        for reached in guardrails.reached.iter().take(REACHED_MAX) {
            let style = if reached.action == Action::IntervalsRaised { PLAIN } else { WARNING };
            self.line(style, &format!("  {}", describe_reached(profile, reached)));
        }
        self.and_more("  ", guardrails.reached.len(), REACHED_MAX);
        if let (Some(highest), Some(max)) = (guardrails.memory_bytes_highest, guardrails.memory_bytes_max) {
            let (highest, max) = (text::size(highest), text::size(max));
            self.line(PLAIN, &format!("  memory: at most {highest}, kernel maps and agent, of the {max} allowed"));
        }
        self.overheads(profile, guardrails);
    }

    fn overheads(&mut self, profile: &Profile, guardrails: &Guardrails) {
        let known = profile.targets.iter().filter_map(|target| Some((target, target.facts.overhead?)));
        let Some((target, overhead)) = known.max_by(|(_, a), (_, b)| a.percent.total_cmp(&b.percent)) else { return };
        let most = if profile.targets.len() > 1 { ", the most of all" } else { "" };
        let max = guardrails.overhead_percent_max.map_or(String::new(), |max| format!(" ({} allowed)", percent(max)));
        let (percent, target) = (percent(overhead.percent), describe::target(target));
        self.line(PLAIN, &format!("  overhead: probes took ≈ {percent} of the CPU time of {target}{most}{max}"));
    }

    fn hooks(&mut self, profile: &Profile) {
        let hooks = describe::each_once(profile);
        let has = |name: &str| profile.targets.iter().any(|target| target.heaps.iter().any(|heap| heap.name == name));
        let (has_pages, has_go) = (has(HeapProfile::PAGES), has(HeapProfile::GO));
        if hooks.is_empty() && has_go {
            self.line(PLAIN, "  hooks: none; the heap profile of Go's runtime is read once a second");
        } else if hooks.is_empty() && has_pages {
            self.line(PLAIN, "  hooks: none; resident pages are recorded");
        } else if hooks.is_empty() && !profile.targets.is_empty() {
            self.line(WARNING, "  hooks: none, because no allocator was found");
        } else if hooks.is_empty() {
            self.line(PLAIN, "  hooks: none");
        } else {
            self.attached(&hooks);
        }
        self.inlined(&profile.health);
        self.unfound(profile);
    }

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
        self.and_more("    ", unattached.len(), HOOKS_MAX);
    }

    fn inlined(&mut self, health: &Health) {
        for inlined in &health.inlined_heaps {
            self.line(WARNING, &format!("    {}", describe::inlined(inlined)));
        }
    }

    /// Built-in specs have many functions, few programs have all: their heaps are listed only if all are missing.
    fn unfound(&mut self, profile: &Profile) {
        let (required, optional): (Vec<_>, Vec<_>) = profile.health.unfound.iter().partition(|hook| hook.required);
        let whose = match profile.targets.as_slice() {
            [target] => format!("process {}", target.facts.pid),
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
        self.and_more("    ", required.len(), HOOKS_MAX);
        if !required.is_empty() {
            self.line(PLAIN, "    `nm -D MODULE` lists what a library exports, `nm MODULE` its other symbols");
        }
        let mut heaps: Vec<&str> = optional.iter().map(|hook| hook.heap.as_str()).collect();
        heaps.dedup();
        heaps.retain(|name| profile.hooks().all(|(heap, _)| heap.name != *name));
        for heap in heaps {
            let heap = text::printable(heap);
            self.line(PLAIN, &format!("    {heap}: none of its functions is in any module of {whose}"));
        }
    }

    fn and_more(&mut self, indent: &str, count: usize, listed_max: usize) {
        if count > listed_max {
            self.line(PLAIN, &format!("{indent}and {} more", text::count((count - listed_max) as u64)));
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
                let meaning = explain_stack_end(end).map_or(String::new(), |meaning| format!(" ({meaning})"));
                format!("{} {}{meaning}", text::share(*count as f64, whole), text::printable(end))
            })
            .collect();
        self.line(PLAIN, &format!("  stacks: {}", words.join(", ")));
    }

    fn cuts(&mut self, profile: &Profile) {
        let cuts = cuts(profile);
        for cut in cuts.iter().take(CUTS_MAX) {
            let share = text::share(cut.share, 1.0);
            self.line(PLAIN, &format!("    {share} end in {}", cut.cause()));
            if let Some(advice) = &cut.advice {
                self.line(PLAIN, &format!("      {advice}"));
            }
        }
        self.and_more("    ", cuts.len(), CUTS_MAX);
    }

    fn frame_pointers(&mut self, health: &Health) {
        if !health.frame_pointer_modules.is_empty() {
            let modules: Vec<String> =
                health.frame_pointer_modules.iter().map(|path| text::printable(path).into_owned()).collect();
            let modules = modules.join(", ");
            self.line(PLAIN, &format!("  unwound by frame pointers, because unwind tables are missing: {modules}"));
        }
    }

    fn symbolization(&mut self, symbolization: &Symbolization) {
        let missing = missing_names(symbolization);
        for line in missing.iter().take(HOOKS_MAX) {
            self.line(WARNING, &format!("  {line}"));
        }
        self.and_more("    ", missing.len(), HOOKS_MAX);
        for line in unnamed_modules(symbolization).take(MODULES_MAX) {
            self.line(PLAIN, &format!("  {line}"));
        }
        if let Some(line) = missing_isolation(symbolization) {
            self.line(PLAIN, &format!("  {line}"));
        }
    }

    fn scope(&mut self, health: &Health) {
        let Some(scope) = &health.scope else { return };
        if scope.kind == ScopeKind::Inode {
            let reason = text::printable(&scope.reason);
            self.line(PLAIN, &format!("  probes: shared by all processes that map a hooked file ({reason})"));
            if scope.foreign_calls > 0 {
                let calls = text::counted(scope.foreign_calls, "allocating call");
                self.line(PLAIN, &format!("    {calls} of processes that are not targets met them, at 1 to 2 µs each"));
            }
        }
        if let Some(probes) = scope.foreign_probes.filter(|&probes| probes > 0) {
            let probes = text::counted(probes, "probe");
            self.line(
                WARNING,
                &format!("  other tools: {probes} on hooked functions, which slow down the targets' calls"),
            );
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "for a percentage")]
    fn cost(&mut self, profile: &Profile) {
        let Health { events, agent_cpu_ns, agent_rss_bytes_max, .. } = profile.health;
        let recorded_ns = describe::duration_ns(profile);
        let share = text::share(agent_cpu_ns as f64, recorded_ns as f64);
        let share = if recorded_ns < SHARE_DURATION_NS_MIN { String::new() } else { format!(" ({share} of one CPU)") };
        let (time, memory) = (text::duration(agent_cpu_ns), text::size(agent_rss_bytes_max));
        let events = text::counted(events, "event");
        self.line(PLAIN, &format!("  agent: {time} of CPU time{share}, {memory} of memory, {events}"));
    }
}

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

pub(crate) fn describe_reached(profile: &Profile, reached: &Reached) -> String {
    let guardrails = &profile.health.guardrails;
    let after = text::duration(reached.unix_ns.saturating_sub(profile.started_unix_ns));
    let limit = |max: Option<f64>| max.map_or(String::new(), |max| format!(", more than the {} allowed", percent(max)));
    let cause = match reached.what {
        Excess::Memory(bytes) => {
            let max = text::size(guardrails.memory_bytes_max.unwrap_or(0));
            format!("heapbpf and its kernel maps took {}, more than the {max} allowed", text::size(bytes))
        }
        Excess::Cpu(share) => {
            format!("heapbpf took {} of a core{}", percent(share), limit(guardrails.cpu_percent_max))
        }
        Excess::Overhead(pid, share) => {
            let target = profile.targets.iter().find(|target| target.facts.pid == pid);
            let whose = target.map_or_else(|| format!("process {pid}"), describe::target);
            let limit = limit(guardrails.overhead_percent_max);
            format!("probes took ≈ {} of the CPU time of {whose}{limit}", percent(share))
        }
        Excess::Keeper => "the keeper process, which owns the probes, exited".to_owned(),
        Excess::Group(bytes) => {
            format!("the control group of heapbpf had only {} of memory left", text::size(bytes))
        }
    };
    match reached.action {
        Action::Stopped => format!("stopped after {after}: {cause}"),
        Action::IntervalsRaised => format!("intervals raised after {after}: {cause}"),
        Action::Detached => {
            format!("detached after {after}: {cause}; its numbers, including live bytes, are as of then")
        }
    }
}

fn percent(percent: f64) -> String {
    if percent < 10.0 { format!("{percent:.1}%") } else { format!("{percent:.0}%") }
}

/// A line per reason.
pub(crate) fn missing_names(symbolization: &Symbolization) -> Vec<String> {
    let mut by_reason: Vec<(&SymbolizationFailure, Vec<&str>)> = Vec::new();
    for failure in &symbolization.failures {
        let is_same = |(other, _): &&mut (&SymbolizationFailure, Vec<&str>)| {
            (&other.reason, other.names) == (&failure.reason, failure.names)
        };
        match by_reason.iter_mut().find(is_same) {
            Some((_, modules)) => modules.push(&failure.module),
            None => by_reason.push((failure, vec![&failure.module])),
        }
    }
    let line = |(SymbolizationFailure { reason, names, .. }, modules): (&SymbolizationFailure, Vec<&str>)| {
        let names = match names {
            NamesFrom::SymbolTable => "from the symbol table alone",
            NamesFrom::Nothing => "missing",
            NamesFrom::Script => "of the script as it is executed, without its source map",
        };
        let listed = modules.iter().take(LISTED_MAX).copied().collect::<Vec<_>>().join(", ");
        let modules = match modules.len() {
            0..=LISTED_MAX => listed,
            count => format!("{count} modules ({listed}, and others)"),
        };
        text::printable(&format!("names of {modules}: {names}: {reason}")).into_owned()
    };
    by_reason.into_iter().map(line).collect()
}

/// What modules without names have, and what would help, by falling share of the profile's bytes.
pub(crate) fn unnamed_modules(symbolization: &Symbolization) -> impl Iterator<Item = String> {
    // What debug information does not name, such as assembly, has no name anywhere.
    let unnamed = symbolization.modules.iter().filter(|unnamed| unnamed.symbols != SymbolSource::DebugInformation);
    unnamed.map(|unnamed| {
        let has = match unnamed.symbols {
            SymbolSource::DebugInformation => "debug information",
            SymbolSource::SymbolTable => "functions missing from its symbol table",
            SymbolSource::MiniDebugInfo => "functions missing from its MiniDebugInfo",
            SymbolSource::UnwindTables => "no symbols, only unwind tables",
            SymbolSource::Exports => "no symbols",
            SymbolSource::Unknown => "its file is not readable",
        };
        let download = symbolization.downloads.iter().find(|download| download.module == unnamed.module);
        let refused = download.and_then(|download| download.failure.as_deref());
        let servers = refused.map_or("set DEBUGINFOD_URLS".to_owned(), |reason| format!("debuginfod: {reason}"));
        let advice = match (&unnamed.package, &unnamed.build_id) {
            _ if let Some(package) = origin::package(&unnamed.module) => {
                format!("; {package} has no debug information of it")
            }
            (Some(package), _) => format!("; install {package}, or {servers}"),
            (None, Some(build_id)) => format!("; install the debug information of build {build_id}, or {servers}"),
            (None, None) => "; its debug information cannot be identified, because it has no build id".to_owned(),
        };
        let share = text::share(unnamed.share, 1.0);
        let text = format!("{}: {has}, in stacks of {share} of the bytes{advice}", base_name(&unnamed.module));
        text::printable(&text).into_owned()
    })
}

pub(crate) fn missing_isolation(symbolization: &Symbolization) -> Option<String> {
    let missing: Vec<String> =
        symbolization.isolated(false).map(|part| text::printable(part).replace('_', " ")).collect();
    (!missing.is_empty())
        .then(|| format!("symbolizer: not isolated ({}): the kernel refused; see `heapbpf doctor`", missing.join(", ")))
}

pub(crate) fn explain_stack_end(end: &str) -> Option<String> {
    let counter = Counter::ALL.iter().find(|counter| counter.name() == end)?;
    Some(match counter {
        Counter::StackTruncated => format!("deeper than {STACK_FRAMES_MAX} frames"),
        Counter::StackUnreadable => "unreadable memory".to_owned(),
        Counter::StackBrokenChain => "code without frame pointers".to_owned(),
        Counter::StackNoScratch => "interrupted; only the caller is known".to_owned(),
        Counter::StackMissingModule => "code whose unwind tables were not loaded yet".to_owned(),
        Counter::StackNoRow => "code without unwind information".to_owned(),
        Counter::StackUnsupportedRule => "an unwind rule that tables cannot express".to_owned(),
        Counter::StackFrozen => {
            "the outer frames of a virtual thread are in its continuation, which could not be read".to_owned()
        }
        Counter::StackNativeMissing => "native functions between those of an interpreter are missing".to_owned(),
        _ => return None,
    })
}
