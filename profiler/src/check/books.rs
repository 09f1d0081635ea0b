//! The leaked blocks as a profile: its live blocks are those, and nothing else, so that every format shows them.

use std::sync::Arc;

use profiler_common::stack::StackEnd;

use super::known::WALKED;
use super::look::{Look, WatchedBlock};
use crate::address::TargetAddr;
use crate::ids::HeapId;
use crate::leak::blocks::{Block, BlockId, Blocks};
use crate::leak::growth::Growths;
use crate::ledger::details::Details;
use crate::ledger::snapshot::{CallsiteSnapshot, SelectedBlock, Stack, TargetSnapshot};
use crate::ledger::totals::Totals;
use crate::model::{Frame, FrameId, Profile};
use crate::snapshot::{HeapFacts, Scope, Snapshot, TargetState};
use crate::symbolize::Resolve;
use crate::symbolize::profile::profile;
use crate::units::MonotonicNanos;
use crate::walk::Walk;

/// What stands for the stack of blocks that were there before anyone watched.
pub(super) const MADE_BEFORE: &str = "[made before heapbpf watched]";

/// What stands for the stack of blocks that no probe has seen, though all calls were watched: the C library's own.
pub(super) const UNSEEN: &str = "[made unseen]";

/// The books of a process with a callsite for each walked heap, for blocks that nobody saw being made.
pub(super) struct Books<'a> {
    look: &'a Look,
    state: TargetState,
    with_walked: TargetSnapshot,
}

impl<'a> Books<'a> {
    pub(super) fn new(look: &'a Look) -> Self {
        let mut state = look.snapshot.targets[0].clone();
        let mut with_walked = (*state.books).clone();
        for (walk, index) in look.walks.iter().zip(WALKED..) {
            let heap = heap_of(walk, &mut state.heaps);
            with_walked.callsites.push(CallsiteSnapshot {
                index,
                stack: Some(Stack { frames: Arc::default(), end: StackEnd::Complete }),
                heap,
                thread: None,
                inherited: false,
                totals: Totals::default(),
                details: Details::default(),
            });
        }
        // Of what leaked now nothing is known but that it is there now.
        state.growths = Growths::default();
        state.curve = Vec::new();
        state.timeline = Arc::default();
        state.older = None;
        Self { look, state, with_walked }
    }

    /// A profile of these blocks, and the callsites' indices in the order of its callsites.
    pub(super) fn profile(
        &self,
        blocks: &Blocks,
        leaked: &[BlockId],
        resolver: &dyn Resolve,
        trims: bool,
    ) -> (Profile, Vec<u32>) {
        let picked = leaked.iter().map(|&id| self.picked(blocks.get(id)));
        let part = self.with_walked.of_blocks(picked, self.look.now);
        let indices: Vec<u32> = part.callsites.iter().map(|callsite| callsite.index).collect();
        let state = TargetState { books: Arc::new(part), ..self.state.clone() };
        let snapshot = Snapshot { targets: vec![state], ..self.look.snapshot.clone() };
        let mut profile = profile(&snapshot, Scope::Whole, resolver, trims);
        self.say_unseen(&mut profile, &indices);
        profile.targets[0].leaks = None;
        profile.unreachable = true;
        (profile, indices)
    }

    fn picked(&self, block: Block) -> SelectedBlock {
        let born = watched_at(&self.look.watched, block.start).map(WatchedBlock::born);
        SelectedBlock { callsite: block.origin, size_bytes: block.size_bytes, born }
    }

    /// Blocks without a stack have a frame that says why.
    fn say_unseen(&self, profile: &mut Profile, indices: &[u32]) {
        let says = match self.look.watching {
            Some(watching) if watching.is_complete => UNSEEN,
            _ => MADE_BEFORE,
        };
        let frame = FrameId(u32::try_from(profile.frames.len()).unwrap_or(u32::MAX));
        profile.frames.push(Frame { function: Some(says.into()), ..Frame::default() });
        for (callsite, index) in profile.targets[0].callsites.iter_mut().zip(indices) {
            if *index >= WALKED {
                callsite.stack = vec![frame];
            }
        }
    }

    /// When a block was made, where that was seen.
    pub(super) fn born(&self, address: TargetAddr) -> Option<MonotonicNanos> {
        watched_at(&self.look.watched, address).map(WatchedBlock::born)
    }
}

/// The number of a walked heap; one that has no probes is new.
fn heap_of(walk: &Walk, heaps: &mut Vec<HeapFacts>) -> HeapId {
    if let Some(heap) = heaps.iter().find(|heap| heap.name == walk.heap) {
        return heap.id;
    }
    let free = (0..=u8::MAX).map(HeapId).find(|id| heaps.iter().all(|heap| heap.id != *id)).unwrap_or(HeapId(u8::MAX));
    heaps.push(HeapFacts {
        id: free,
        name: walk.heap.to_owned(),
        interval_bytes: 1,
        interval_bytes_max: 1,
        hooks: Vec::new(),
    });
    free
}

/// The watched block at this address, of blocks by rising address.
fn watched_at(watched: &[WatchedBlock], address: TargetAddr) -> Option<&WatchedBlock> {
    watched.binary_search_by_key(&address, |block| block.address).ok().map(|at| &watched[at])
}
