//! Makes a profile of a snapshot: everything in it, with names.

use std::borrow::Cow;

use super::Resolve;
use super::names::{Unnamed, name_profile};
use super::trim::trim;
use crate::ledger::snapshot::TargetSnapshot;
use crate::report::profile::{CallsiteProfile, HeapProfile, Profile, TargetProfile};
use crate::snapshot::{HeapFacts, Scope, Snapshot, TargetState};

/// What a snapshot says of a scope, with names. `trims` leaves the runtime's plumbing out of stacks.
#[must_use]
pub fn profile(snapshot: &Snapshot, scope: Scope, resolver: &dyn Resolve, trims: bool) -> Profile {
    let targets: Vec<(&TargetState, Cow<'_, TargetSnapshot>)> =
        snapshot.targets.iter().filter_map(|target| Some((target, target.books_of(scope)?))).collect();
    let unnamed: Vec<_> =
        targets.iter().map(|(target, books)| Unnamed { snapshot: books, space: &target.space }).collect();
    let mut named = name_profile(&unnamed, &snapshot.modules, resolver);
    if trims {
        for callsite in named.callsites.iter_mut().flatten() {
            callsite.stack = trim(&callsite.stack, &named.frames).to_vec();
        }
    }
    let window = snapshot.window.as_ref().filter(|_| scope == Scope::Window);
    Profile {
        interval_bytes: snapshot.interval_bytes,
        started_unix_ns: snapshot.started_unix_ns,
        ended_unix_ns: snapshot.ended_unix_ns,
        started_monotonic_ns: snapshot.started_monotonic_ns,
        window: snapshot.window_of(scope),
        targets: targets
            .iter()
            .zip(named.callsites)
            .map(|((target, books), callsites)| of_target(target, books, callsites))
            .collect(),
        others: window.map_or(&snapshot.others, |window| &window.others).clone(),
        frames: named.frames,
        health: window.map_or(&snapshot.health, |window| &window.health).clone(),
    }
}

fn of_target(target: &TargetState, books: &TargetSnapshot, callsites: Vec<CallsiteProfile>) -> TargetProfile {
    let facts = target.facts.clone();
    TargetProfile {
        pid: facts.pid,
        command: facts.command,
        comm: facts.comm,
        beginning: facts.beginning,
        exited: facts.exited,
        replaced: facts.replaced,
        exit_code: facts.exit_code,
        detached: facts.detached,
        overhead: facts.overhead,
        totals: books.totals,
        heaps: heaps(target, books),
        callsites,
    }
}

/// Those of the books in their order, to which callsites refer, then those without events.
fn heaps(target: &TargetState, books: &TargetSnapshot) -> Vec<HeapProfile> {
    let totals = |id| books.heaps.iter().position(|(with, _)| *with == id);
    let mut heaps: Vec<_> = target.heaps.iter().map(|heap| (totals(heap.id), heap)).collect();
    heaps.sort_by_key(|(at, _)| at.unwrap_or(usize::MAX));
    let profile = |(at, heap): (Option<usize>, &HeapFacts)| HeapProfile {
        name: heap.name.clone(),
        interval_bytes: heap.interval_bytes,
        hooks: heap.hooks.clone(),
        totals: at.map(|at| books.heaps[at].1).unwrap_or_default(),
    };
    heaps.into_iter().map(profile).collect()
}
