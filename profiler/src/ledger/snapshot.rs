//! The ledger's state at an instant, and what can be told from it: a window between two, and the state at the peak.
//! Addresses only: names come later.

use rustc_hash::FxHashMap;

use super::details::Details;
use super::totals::Totals;
use crate::ids::{HeapId, Pid, Tid};
pub(crate) use crate::ingest::event::Stack;

/// One target at an instant, or over a window that ends there. Immutable.
#[derive(Clone, Debug)]
pub struct TargetSnapshot {
    /// The process.
    pub pid: Pid,
    /// Over everything.
    pub totals: Totals,
    /// By heap, in the order of their ids.
    pub heaps: Vec<(HeapId, Totals)>,
    /// By stack, heap and, where that was asked for, thread, in the order of their index.
    pub callsites: Vec<CallsiteSnapshot>,
}

/// One callsite at an instant.
#[derive(Clone, Debug)]
pub struct CallsiteSnapshot {
    /// Its number in the books of its process, for as long as that runs this program. Callsites that did nothing are left
    /// out of snapshots, so this is not its place in the list.
    pub index: u32,
    /// Its stack; `None` when the frames were lost on the way from the kernel.
    pub stack: Option<Stack>,
    /// The heap it allocated from.
    pub heap: HeapId,
    /// The thread that allocated, where threads are told apart and it is known.
    pub thread: Option<Tid>,
    /// Its blocks are copies of a parent's, made by the fork.
    pub inherited: bool,
    /// What it did.
    pub totals: Totals,
    /// What is known of its blocks besides.
    pub details: Details,
}

impl TargetSnapshot {
    /// The window from `base`, an earlier snapshot of the same program of the same process, to this one: see
    /// [`Totals::since`]. Callsites that freed all they had are in it; those that did nothing, and have nothing live, are not.
    /// Windows chain: opening + allocated − freed of one is the opening of the next.
    pub fn since(&self, base: &Self) -> Self {
        let before: FxHashMap<HeapId, &Totals> = base.heaps.iter().map(|(heap, totals)| (*heap, totals)).collect();
        let heaps = self.heaps.iter().map(|(heap, totals)| {
            let base = before.get(heap).copied().copied().unwrap_or_default();
            (*heap, totals.since(&base))
        });
        let mut before = base.callsites.iter().peekable();
        let callsites = self.callsites.iter().filter_map(|callsite| {
            while before.next_if(|earlier| earlier.index < callsite.index).is_some() {}
            let window = match before.next_if(|earlier| earlier.index == callsite.index) {
                Some(earlier) => callsite.since(earlier),
                None => callsite.clone(),
            };
            (!window.totals.is_idle()).then_some(window)
        });
        Self {
            pid: self.pid,
            totals: self.totals.since(&base.totals),
            heaps: heaps.collect(),
            callsites: callsites.collect(),
        }
    }

    /// The state when the target's live bytes were at their highest, of a snapshot over the whole recording (a window has
    /// left callsites out). Only what was live then is known of that moment: it counts as allocated, with nothing freed; what
    /// a child made by a fork had from its parent is the opening balance. So live = opening + allocated − freed holds, and
    /// allocated tells nothing more than live does. Details are not known.
    pub fn at_peak(&self) -> Self {
        let mut totals = self.totals.only_peak();
        let mut heaps: Vec<_> = self.heaps.iter().map(|(heap, totals)| (*heap, totals.only_peak())).collect();
        let mut callsites = Vec::new();
        for callsite in &self.callsites {
            let held = callsite.totals.of_peak(callsite.inherited);
            if held.is_idle() {
                continue;
            }
            let heap = heaps.iter_mut().filter(|(heap, _)| *heap == callsite.heap).map(|(_, totals)| totals);
            for sum in heap.chain([&mut totals]) {
                let peak = sum.only_peak();
                sum.add(&held);
                let Totals { peak_bytes, peak_count, peak_time, at_peak, .. } = peak;
                *sum = Totals { peak_bytes, peak_count, peak_time, at_peak, ..*sum };
            }
            callsites.push(CallsiteSnapshot {
                totals: held,
                details: Details::default(),
                stack: callsite.stack.clone(),
                ..*callsite
            });
        }
        Self { pid: self.pid, totals, heaps, callsites }
    }
}

impl CallsiteSnapshot {
    /// The window from `base`, the same callsite earlier.
    fn since(&self, base: &Self) -> Self {
        Self {
            totals: self.totals.since(&base.totals),
            details: self.details.since(&base.details),
            stack: self.stack.clone(),
            ..*self
        }
    }
}
