//! Makes a profile of a snapshot by symbolizing it.

use std::borrow::Cow;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::history::Clip;
use super::names::{Threads, Unnamed, name_profile};
use super::resolve::Resolve;
use super::trim::trim;
use crate::address::TargetAddr;
use crate::ids::ModuleId;
use crate::leak::growth::{Growth, Growths};
use crate::ledger::snapshot::TargetSnapshot;
use crate::ledger::totals::Amounts;
use crate::model::{CallsiteProfile, Health, HeapProfile, MappingProfile, ModuleProfile, Profile, TargetProfile};
use crate::model::{LeakCandidate, Leaks};
use crate::object::module::Modules;
use crate::process::address_space::{AddressSpace, MappedModule};
use crate::snapshot::{HeapFacts, Scope, Snapshot, TargetState};
use crate::units::MonotonicNanos;

/// Symbolizes a scope of a snapshot. `trims` removes runtime frames from stacks.
pub fn profile(snapshot: &Snapshot, scope: Scope, resolver: &dyn Resolve, trims: bool) -> Profile {
    let targets: Vec<(&TargetState, Cow<'_, TargetSnapshot>)> =
        snapshot.targets.iter().filter_map(|target| Some((target, target.books_of(scope)?))).collect();
    let unnamed: Vec<_> =
        targets.iter().map(|(target, ledger)| Unnamed { snapshot: ledger, space: &target.space }).collect();
    let mut named = name_profile(&unnamed, &snapshot.modules, resolver);
    if trims {
        for callsite in named.callsites.iter_mut().flatten() {
            callsite.stack = trim(&callsite.stack, &named.frames).to_vec();
        }
    }
    let code = Code::of(&unnamed, &snapshot.modules);
    let window = snapshot.window.as_ref().filter(|_| scope == Scope::Window);
    let start = window.map(|window| window.start);
    Profile {
        interval_bytes: snapshot.interval_bytes,
        started_unix_ns: snapshot.started_unix_ns,
        ended_unix_ns: snapshot.ended_unix_ns,
        started_monotonic_ns: snapshot.started_monotonic_ns,
        older_than_ns: snapshot
            .older_than
            .filter(|_| scope != Scope::Peak)
            .map(|age| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)),
        unreachable: false,
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
        health: Health {
            symbolization: resolver.symbolization(),
            ..window.map_or(&snapshot.health, |window| &window.health).clone()
        },
    }
}

fn of_target(
    target: &TargetState,
    ledger: &TargetSnapshot,
    callsites: Vec<CallsiteProfile>,
    scope: Scope,
    start: Option<MonotonicNanos>,
) -> TargetProfile {
    // Ages are not known for the peak.
    let is_now = scope != Scope::Peak;
    let mut callsites = with_older(callsites, target.older.as_deref().filter(|_| is_now), ledger);
    let clip = is_now.then(|| Clip::new(target, start));
    for (callsite, of_ledger) in callsites.iter_mut().zip(&ledger.callsites) {
        callsite.history = clip.as_ref().map(|clip| clip.changes(of_ledger.index)).unwrap_or_default();
    }
    TargetProfile {
        facts: target.facts.clone(),
        mappings: Vec::new(),
        threads: Threads::of(ledger).named(&target.threads),
        history: clip.map(Clip::history).unwrap_or_default(),
        totals: ledger.totals,
        heaps: heaps(target, ledger),
        leaks: is_now.then(|| leaks(&target.growths, ledger)),
        callsites,
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
        hooks: heap.hooks.clone(),
        totals: at.map(|at| ledger.heaps[at].1).unwrap_or_default(),
    };
    heaps.into_iter().map(profile).collect()
}

/// Adds the old amounts to callsites, if known.
fn with_older(
    mut callsites: Vec<CallsiteProfile>,
    older: Option<&[Amounts]>,
    ledger: &TargetSnapshot,
) -> Vec<CallsiteProfile> {
    if let Some(older) = older {
        for (callsite, of_ledger) in callsites.iter_mut().zip(&ledger.callsites) {
            callsite.older = Some(older.get(of_ledger.index as usize).copied().unwrap_or_default());
        }
    }
    callsites
}

/// Leak candidates by index of their callsites.
fn leaks(growths: &Growths, ledger: &TargetSnapshot) -> Leaks {
    let candidate = |growth: &Growth| {
        let callsite = ledger.callsites.binary_search_by_key(&growth.callsite, |callsite| callsite.index).ok()?;
        let Growth { bytes_per_second, margin, old_share, survival, score, .. } = *growth;
        Some(LeakCandidate { callsite, bytes_per_second, margin, old_share, survival, score })
    };
    Leaks {
        span_ns: growths.span_ns,
        too_short: growths.too_short,
        candidates: growths.growing.iter().filter_map(candidate).collect(),
        count: growths.count,
        ..Leaks::default()
    }
}

/// Maximum number of mappings per target, lowest first: programs have a few hundred, except for generated code, which
/// has no file.
const MAPPINGS_MAX: usize = 4096;

#[derive(Clone, Debug, Default)]
pub(crate) struct Code {
    /// Files with code, each once, in the order in which targets map them.
    pub modules: Vec<ModuleProfile>,
    /// Mappings of each target by ascending address.
    pub mappings: Vec<Vec<MappingProfile>>,
}

impl Code {
    pub(crate) fn of(targets: &[Unnamed<'_>], modules: &Modules) -> Self {
        let mut gathered = Gathered { modules, code: Self::default(), places: FxHashMap::default() };
        targets.iter().for_each(|target| gathered.add(target));
        gathered.code
    }
}

struct Gathered<'a> {
    modules: &'a Modules,
    code: Code,
    /// Indices of modules in the list.
    places: FxHashMap<ModuleId, usize>,
}

impl Gathered<'_> {
    fn add(&mut self, target: &Unnamed<'_>) {
        let gone = gone(target);
        let mut mapped: Vec<&MappedModule> = target.space.mappings().iter().chain(gone).collect();
        mapped.sort_by_key(|mapped| (mapped.mapping.start, mapped.mapping.end));
        let mappings = mapped.into_iter().filter_map(|mapped| self.mapping(mapped)).take(MAPPINGS_MAX).collect();
        self.code.mappings.push(mappings);
    }

    /// `None` for generated code.
    fn mapping(&mut self, mapped: &MappedModule) -> Option<MappingProfile> {
        let id = mapped.module?;
        let module = self.modules.get(id);
        let known = &mut self.code.modules;
        let place = *self.places.entry(id).or_insert_with(|| {
            known.push(ModuleProfile {
                path: Arc::clone(module.path()),
                build_id: module.build_id().map(|build_id| build_id.as_bytes().to_vec()),
            });
            known.len() - 1
        });
        let mapping = &mapped.mapping;
        Some(MappingProfile {
            start: mapping.start.0,
            end: mapping.end.0,
            offset: mapping.offset.0,
            bias: module.bias(mapping.start, mapping.offset),
            module: place,
        })
    }
}

/// Returns removed mappings that stacks refer to: the latest of several at the same address.
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

#[cfg(test)]
mod code_tests;
