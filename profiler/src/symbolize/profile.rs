//! Makes a profile of a snapshot by symbolizing it.

use std::borrow::Cow;
use std::sync::Arc;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::units::{Amounts, MonotonicNanos};
use heapbpf_ledger::model::{
    CallsiteProfile, Change, CurvePoint, Health, HeapProfile, History, HookStatus, Leaks, MappingProfile,
    MemoryAccount, ModuleProfile, Profile, Symbolization, TargetProfile, TimelinePoint,
};
use heapbpf_ledger::snapshot::TargetSnapshot;
use heapbpf_ledger::totals::{HeapUsage, Totals};
use rustc_hash::FxHashMap;

use super::advice::unnamed_modules;
use super::names::{Resolve, Threads, Unnamed, name_profile};
use super::trim::{Trim, trim};
use crate::object::module::Modules;
use crate::process::address_space::{AddressSpace, MappedModule};
use crate::snapshot::{Base, HeapFacts, Scope, Snapshot, TargetState};
use heapbpf_ledger::model::{Program, shown_path};

/// Callsites of a target in a profile that the user does not want to wait for.
const CALLSITES_SHORT: usize = 256;

/// Has only the largest callsites if the user has interrupted the resolver, or does so meanwhile.
pub fn profile(snapshot: &Snapshot, scope: Scope, resolver: &dyn Resolve, what: Trim) -> Profile {
    let is_short = resolver.is_interrupted();
    let targets = snapshot.targets.iter().filter_map(|target| Some((target, target.ledger_of(scope)?)));
    let targets: Vec<(&TargetState, Cow<'_, TargetSnapshot>)> = targets
        .map(|(target, ledger)| match ledger {
            ledger if is_short => (target, Cow::Owned(ledger.shortened(CALLSITES_SHORT))),
            ledger => (target, ledger),
        })
        .collect();
    let unnamed: Vec<_> = targets
        .iter()
        .map(|(target, ledger)| Unnamed {
            snapshot: ledger,
            space: &target.space,
            program: target.facts.program.as_ref(),
        })
        .collect();
    let mut named = name_profile(&unnamed, &snapshot.modules, resolver);
    if resolver.find_more(&named.lacking.wanted(&snapshot.modules)) {
        named = name_profile(&unnamed, &snapshot.modules, resolver);
    }
    if !is_short && resolver.is_interrupted() {
        return profile(snapshot, scope, resolver, what);
    }
    let symbolization = resolver.symbolization();
    let unnamed_modules = unnamed_modules(&named.lacking, &snapshot.modules, resolver, &symbolization.modules);
    if what != Trim::NOTHING {
        for callsite in named.callsites.iter_mut().flatten() {
            callsite.stack = trim(&callsite.stack, &named.frames, what).into_owned();
        }
    }
    let code = Code::of(&unnamed, &snapshot.modules);
    let window = snapshot.window.as_ref().filter(|_| scope == Scope::Window);
    let start = window.map(|window| window.start);
    let mut profile = Profile {
        interval_bytes: snapshot.interval_bytes,
        started_unix_ns: snapshot.started_unix_ns,
        ended_unix_ns: snapshot.ended_unix_ns,
        started_monotonic_ns: snapshot.started_monotonic_ns,
        older_than_ns: snapshot
            .older_than
            .filter(|_| scope != Scope::Peak)
            .map(|age| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)),
        filter: None,
        unreachable: false,
        strict: false,
        window: snapshot.window_of(scope),
        targets: targets
            .iter()
            .zip(named.callsites)
            .zip(code.mappings)
            .map(|(((target, ledger), callsites), mappings)| TargetProfile {
                mappings,
                ..of_target(target, ledger, callsites, scope, start)
            })
            .collect(),
        others: window.map_or(&snapshot.others, |window| &window.others).clone(),
        frames: named.frames,
        modules: code.modules,
        sources: Vec::new(),
        health: Health {
            symbolization: Symbolization { modules: unnamed_modules, ..symbolization },
            ..window.map_or(&snapshot.health, |window| &window.health).clone()
        },
    };
    profile.round_sums();
    profile
}

fn of_target(
    target: &TargetState,
    ledger: &TargetSnapshot,
    mut callsites: Vec<CallsiteProfile>,
    scope: Scope,
    start: Option<MonotonicNanos>,
) -> TargetProfile {
    // Ages are not known for the peak.
    let is_now = scope != Scope::Peak;
    let older = target.older.as_deref().filter(|_| is_now);
    let clip = is_now.then(|| Clip::new(target, start));
    for (callsite, of_ledger) in callsites.iter_mut().zip(&ledger.callsites) {
        let amounts = |older: &[Amounts]| older.get(of_ledger.index as usize).copied().unwrap_or_default();
        callsite.older = older.map(amounts);
        callsite.history = clip.as_ref().map(|clip| clip.changes(of_ledger.index)).unwrap_or_default();
    }
    TargetProfile {
        facts: target.facts.clone(),
        mappings: Vec::new(),
        threads: Threads::of(ledger).named(&target.threads),
        history: clip.map(|clip| History { curve: clip.curve(), instants: clip.instants }).unwrap_or_default(),
        memory: memory(target, scope, start),
        totals: ledger.totals,
        heaps: heaps(target, ledger),
        leaks: is_now.then(|| leaks(target.growths.clone(), ledger)),
        callsites,
    }
}

/// Of the window, or of the whole recording: the account is not known at the peak.
fn memory(target: &TargetState, scope: Scope, start: Option<MonotonicNanos>) -> Arc<MemoryAccount> {
    match (scope, start) {
        (Scope::Window, Some(start)) => Arc::new(target.memory.within(start, target.until)),
        (Scope::Whole | Scope::Window, _) => Arc::clone(&target.memory),
        (Scope::Peak, _) => Arc::default(),
    }
}

/// Heaps in the order of the snapshot, which callsites refer to, then those without events.
fn heaps(target: &TargetState, ledger: &TargetSnapshot) -> Vec<HeapProfile> {
    let totals = |id| ledger.heaps.iter().position(|(with, _)| *with == id);
    let mut heaps: Vec<_> = target.heaps.iter().map(|heap| (totals(heap.id), heap)).collect();
    heaps.sort_by_key(|(at, _)| at.unwrap_or(usize::MAX));
    let profile = |(at, heap): (Option<usize>, &HeapFacts)| HeapProfile {
        name: heap.name.clone(),
        interval_bytes: heap.interval_bytes,
        interval_bytes_max: heap.interval_bytes_max,
        hooks: heap.hooks.iter().map(|hook| shown(hook, target.facts.program.as_ref())).collect(),
        totals: at.map(|at| ledger.heaps[at].1).unwrap_or_default(),
    };
    heaps.into_iter().map(profile).collect()
}

/// A hook in the program itself is shown in the module that frames have.
fn shown(hook: &HookStatus, program: Option<&Program>) -> HookStatus {
    let path: Arc<str> = hook.module.as_str().into();
    HookStatus { module: shown_path(program, &path).to_string(), ..hook.clone() }
}

/// Leak candidates by index of their callsites in the profile.
fn leaks(mut growths: Leaks, ledger: &TargetSnapshot) -> Leaks {
    growths.candidates.retain_mut(|candidate| {
        let index = u32::try_from(candidate.callsite).unwrap_or(u32::MAX);
        let found = ledger.callsites.binary_search_by_key(&index, |callsite| callsite.index);
        found.map(|callsite| candidate.callsite = callsite).is_ok()
    });
    growths
}

/// Per target, those of files first, then the lowest: programs have a few hundred, except for generated code.
const MAPPINGS_MAX: usize = 4096;

#[derive(Clone, Debug, Default)]
pub(crate) struct Code {
    /// In the order in which targets map them.
    pub modules: Vec<ModuleProfile>,
    /// By target and ascending address.
    pub mappings: Vec<Vec<MappingProfile>>,
}

impl Code {
    pub(crate) fn of(targets: &[Unnamed<'_>], modules: &Modules) -> Self {
        let mut code = Self::default();
        let mut places = FxHashMap::default();
        // `None` for generated code without names.
        let mut profile = |target: &Unnamed<'_>, mapped: &MappedModule| {
            let (id, mapping) = (mapped.module.or(target.space.generated())?, &mapped.mapping);
            let module = modules.get(id);
            let path = shown_path(target.program, module.path());
            let place = *places.entry((id, Arc::clone(path))).or_insert_with(|| {
                let build_id = module.build_id().map(|build_id| build_id.as_bytes().to_vec());
                code.modules.push(ModuleProfile { path: Arc::clone(path), build_id });
                code.modules.len() - 1
            });
            Some(MappingProfile {
                start: mapping.start.0,
                end: mapping.end.0,
                offset: if module.is_generated() || module.language().is_some() { 0 } else { mapping.offset.0 },
                bias: module.bias(mapping.start, mapping.offset),
                module: place,
            })
        };
        for target in targets {
            let placed = target.space.placed();
            let mut mapped: Vec<&MappedModule> = placed.iter().chain(gone(target)).collect();
            // Files come first: there can be any number of mappings of generated code.
            let is_generated = |mapped: &MappedModule| mapped.module.is_none_or(|id| modules.get(id).is_generated());
            mapped.sort_by_cached_key(|mapped| (is_generated(mapped), mapped.mapping.start, mapped.mapping.end));
            let mappings = mapped.into_iter().filter_map(|mapped| profile(target, mapped));
            let mut mappings: Vec<MappingProfile> = mappings.take(MAPPINGS_MAX).collect();
            mappings.sort_by_key(|mapping| (mapping.start, mapping.end));
            code.mappings.push(mappings);
        }
        code
    }
}

/// Removed mappings that stacks refer to: the latest of several at the same address.
fn gone<'a>(target: &Unnamed<'a>) -> Vec<&'a MappedModule> {
    let space: &'a AddressSpace = target.space;
    let retired = space.retired();
    if retired.is_empty() {
        return Vec::new();
    }
    let stacks = target.snapshot.callsites.iter().filter_map(|callsite| callsite.stack.as_ref());
    let mut addresses: Vec<TargetAddr> = stacks
        .flat_map(|stack| stack.frames.iter().map(|address| address.inside_call()))
        .filter(|&address| !space.covers(address))
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    let mut gone = Vec::new();
    for old in retired.iter().rev() {
        let range = old.mapping.start..old.mapping.end;
        let from = addresses.partition_point(|&address| address < range.start);
        let to = addresses.partition_point(|&address| address < range.end);
        if from < to {
            addresses.drain(from..to);
            gone.push(old);
        }
    }
    gone
}

/// History of a target within a profile's window. Sums remain those since the recording began; the state at the start
/// of the window is the first point.
struct Clip<'state> {
    target: &'state TargetState,
    /// Start of the window and the snapshot there; `None` if the window starts with the target.
    window: Option<(MonotonicNanos, &'state TargetSnapshot)>,
    /// Range of the timeline's points within the window, excluding its start.
    kept: [usize; 2],
    /// Whether a point is added at the start, and one at the end.
    has_ends: [bool; 2],
    instants: Vec<TimelinePoint>,
}

impl<'state> Clip<'state> {
    /// `window_start` is the start of the profile's window, if it is one.
    fn new(target: &'state TargetState, window_start: Option<MonotonicNanos>) -> Self {
        let points = target.timeline.points();
        let window = match &target.base {
            Base::At(base) => window_start.map(|start| (start, &**base)),
            Base::Beginning | Base::Ended => None,
        };
        let begun = match window {
            Some((start, _)) => Some(start.min(target.until)),
            // Probes are attached shortly before the official beginning; a point may lie between.
            None => Some(target.facts.beginning.time.min(target.until))
                .filter(|time| points.first().is_none_or(|first| first.time > *time)),
        };
        let first = begun.map_or(0, |begun| points.partition_point(|instant| instant.time <= begun));
        let behind = points.partition_point(|instant| instant.time <= target.until).max(first);
        let mut instants = Vec::with_capacity(behind - first + 2);
        if let Some(time) = begun {
            let same = points[..first].last().filter(|instant| instant.time == time);
            instants.push(TimelinePoint { time, trigger: same.and_then(|instant| instant.trigger) });
        }
        instants.extend(&points[first..behind]);
        let has_end = instants.last().is_none_or(|last| last.time < target.until);
        if has_end {
            instants.push(TimelinePoint { time: target.until, trigger: None });
        }
        let has_ends = [begun.is_some(), has_end];
        Self { target, window, kept: [first, behind], has_ends, instants }
    }

    fn changes(&self, index: u32) -> Vec<Change> {
        let ([first, behind], [has_beginning, has_end]) = (self.kept, self.has_ends);
        let totals = totals_of(&self.target.ledger, index);
        let at_first = match self.window {
            Some((_, base)) => totals_of(base, index).map(HeapUsage::of),
            None => totals.map(HeapUsage::at_first),
        };
        let at_first = has_beginning.then_some((0, at_first.unwrap_or_default()));
        // A change before the first point may have been undone by then.
        let timeline = &self.target.timeline;
        let at_point = timeline.changes(index as usize).take_while(|(point, _)| *point <= first).last();
        let at_point = (first < behind).then(|| (first, at_point.map(|(_, held)| held).unwrap_or_default()));
        let later = timeline.changes(index as usize).filter(|(point, _)| *point > first && *point < behind);
        let points =
            at_point.into_iter().chain(later).map(|(point, held)| (point - first + usize::from(has_beginning), held));
        let at_last = has_end.then_some((self.instants.len() - 1, totals.map(HeapUsage::of).unwrap_or_default()));
        let (mut changes, mut last) = (Vec::new(), HeapUsage::default());
        for (place, held) in at_first.into_iter().chain(points).chain(at_last) {
            if held != last {
                changes.push(Change { instant: u32::try_from(place).unwrap_or(u32::MAX), held });
                last = held;
            }
        }
        changes
    }

    fn curve(&self) -> Vec<CurvePoint> {
        let TargetState { curve, ledger, until, facts, .. } = self.target;
        let (beginning, later) = match self.window {
            Some((start, base)) => {
                let later = curve.partition_point(|moment| moment.time <= start);
                (CurvePoint { time: start.min(*until), held: HeapUsage::of(&base.totals) }, later)
            }
            None => {
                let first = curve.first().map_or(*until, |first| first.time);
                (CurvePoint { time: facts.beginning.time.min(first), held: HeapUsage::at_first(&ledger.totals) }, 0)
            }
        };
        let last = CurvePoint { time: *until, held: HeapUsage::of(&ledger.totals) };
        let mut moments = vec![beginning];
        moments.extend(&curve[later..]);
        // Without changes since the start, start and end are the same point.
        if moments.last() != Some(&last) {
            moments.push(last);
        }
        moments.dedup();
        moments
    }
}

fn totals_of(ledger: &TargetSnapshot, index: u32) -> Option<&Totals> {
    let place = ledger.callsites.binary_search_by_key(&index, |callsite| callsite.index).ok()?;
    Some(&ledger.callsites[place].totals)
}

#[cfg(test)]
mod tests;
