//! What each stack of a heap did until each dump, as heapprofd tells it: all that was allocated and freed since the beginning.
//!
//! Owns the numbers. They never fall from one dump to the next, which a reader would take for a broken trace.

use rustc_hash::FxHashMap;

use super::code::{Code, Place};
use crate::model::history::Held;
use crate::model::{CallsiteProfile, FrameId, Profile, TargetProfile};
use crate::report::calls::calls;
use crate::report::dumps::{Dump, held, rounded};
use crate::report::roots::{gaps, group_of};
use crate::report::{Presentation, View};

/// All that was allocated and freed until some time, with what was live when watching began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) alloc_bytes: u64,
    pub(super) alloc_count: u64,
    pub(super) free_bytes: u64,
    pub(super) free_count: u64,
}

impl Tally {
    /// At the end. What is live is what the reports show as live.
    fn at_end(callsite: &CallsiteProfile) -> Self {
        let totals = &callsite.totals;
        let bytes = (totals.opening_bytes + totals.alloc_bytes).rounded();
        let count = (totals.opening_count + totals.alloc_count).rounded();
        Self::of([bytes, count], [View::LiveBytes, View::LiveCount].map(|view| view.of_callsite(callsite)))
    }

    /// When this was live and allocated.
    fn at(callsite: &CallsiteProfile, held: &Held) -> Self {
        let totals = &callsite.totals;
        let bytes = totals.opening_bytes.to_f64() + held.alloc_bytes;
        let count = totals.opening_count.to_f64() + held.alloc_count;
        Self::of([bytes, count].map(rounded), [held.live_bytes, held.live_count].map(rounded))
    }

    fn of([alloc_bytes, alloc_count]: [u64; 2], [live_bytes, live_count]: [u64; 2]) -> Self {
        let (alloc_bytes, alloc_count) = (alloc_bytes.max(live_bytes), alloc_count.max(live_count));
        Self { alloc_bytes, alloc_count, free_bytes: alloc_bytes - live_bytes, free_count: alloc_count - live_count }
    }

    fn zip(self, other: Self, pick: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            alloc_bytes: pick(self.alloc_bytes, other.alloc_bytes),
            alloc_count: pick(self.alloc_count, other.alloc_count),
            free_bytes: pick(self.free_bytes, other.free_bytes),
            free_count: pick(self.free_count, other.free_count),
        }
    }
}

/// A stack of one heap.
pub(super) struct Stack {
    /// Its number in the trace.
    pub(super) iid: u64,
    /// Index into the target's heaps.
    pub(super) heap: usize,
    /// At each dump, and at the end.
    pub(super) tallies: Vec<Tally>,
}

/// Stacks by number, from 1, as places, the outermost first.
#[derive(Default)]
pub(super) struct Callstacks {
    ids: FxHashMap<Box<[Place]>, u64>,
}

impl Callstacks {
    fn intern(&mut self, places: Box<[Place]>) -> u64 {
        let next = self.ids.len() as u64 + 1;
        *self.ids.entry(places).or_insert(next)
    }

    /// All of them with their numbers, in that order.
    pub(super) fn all(&self) -> Vec<(u64, &[Place])> {
        let mut all: Vec<_> = self.ids.iter().map(|(places, &iid)| (iid, &**places)).collect();
        all.sort_unstable_by_key(|&(iid, _)| iid);
        all
    }
}

/// The stacks of a target, in the order of callsites. Perfetto counts by process and stack, whatever the heap, so a stack that
/// several heaps have gets an outermost frame that names the heap, in all but the first.
pub(super) fn stacks<'a>(
    profile: &Profile,
    target: &'a TargetProfile,
    presentation: &Presentation,
    dumps: &[Dump],
    code: &mut Code<'a>,
    callstacks: &mut Callstacks,
) -> Vec<Stack> {
    let mut stacks: Vec<Stack> = Vec::new();
    let mut known: FxHashMap<(u64, usize), usize> = FxHashMap::default();
    let mut heap_of: FxHashMap<u64, usize> = FxHashMap::default();
    for callsite in &target.callsites {
        let mut places = places(profile, target, callsite, presentation, code);
        // A heap that is not there is one heap.
        let heap = callsite.heap.min(target.heaps.len());
        let iid = loop {
            let iid = callstacks.intern(places.as_slice().into());
            if *heap_of.entry(iid).or_insert(heap) == heap {
                break iid;
            }
            places.insert(0, code.made_up(format!("[heap {}]", heap_name(target, heap))));
        };
        let at = *known.entry((iid, heap)).or_insert_with(|| {
            stacks.push(Stack { iid, heap, tallies: vec![Tally::default(); dumps.len() + 1] });
            stacks.len() - 1
        });
        for (sum, tally) in stacks[at].tallies.iter_mut().zip(tallies(callsite, dumps)) {
            *sum = sum.zip(tally, u64::saturating_add);
        }
    }
    stacks
}

/// What a callsite did until each dump and the end.
fn tallies(callsite: &CallsiteProfile, dumps: &[Dump]) -> impl Iterator<Item = Tally> {
    let end = Tally::at_end(callsite);
    let mut last = Tally::default();
    let earlier = dumps.iter().map(move |dump| {
        last = Tally::at(callsite, &held(callsite, dump)).zip(end, u64::min).zip(last, u64::max);
        last
    });
    earlier.chain([end])
}

/// What to call a heap of a target.
pub(super) fn heap_name(target: &TargetProfile, heap: usize) -> &str {
    target.heaps.get(heap).map_or("[heap unknown]", |heap| &heap.name)
}

/// The stack with the frames above it, the outermost first; never empty.
fn places<'a>(
    profile: &Profile,
    target: &'a TargetProfile,
    callsite: &CallsiteProfile,
    presentation: &Presentation,
    code: &mut Code<'a>,
) -> Vec<Place> {
    let groups = presentation.by.iter().map(|group| group_of(*group, target, callsite));
    let roots: Vec<String> = groups.chain(gaps(callsite)).collect();
    let mut places: Vec<Place> = roots.into_iter().map(|root| code.made_up(root)).collect();
    let known: Vec<FrameId> =
        callsite.stack.iter().copied().filter(|id| (id.0 as usize) < profile.frames.len()).collect();
    places.extend(calls(profile, &known).rev().filter_map(|call| code.place(target, call)));
    if places.is_empty() {
        places.push(code.made_up("[no frames]".to_owned()));
    }
    places
}
