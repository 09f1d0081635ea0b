//! The leaked blocks as a profile that has them as its only live blocks, so that every format can show them.

use std::sync::Arc;

use profiler_common::stack::StackEnd;

use super::blocks::WALKED;
use super::heap_snapshot::{HeapSnapshot, RecordedBlock};
use crate::address::TargetAddr;
use crate::ids::HeapId;
use crate::leak::blocks::{Block, BlockId, Blocks};
use crate::ledger::details::Details;
use crate::ledger::snapshot::{CallsiteSnapshot, SelectedBlock, Stack, TargetSnapshot};
use crate::ledger::totals::Totals;
use crate::model::{Frame, FrameId, Leaks, Profile};
use crate::snapshot::{HeapFacts, Scope, Snapshot, TargetState};
use crate::symbolize::Resolve;
use crate::symbolize::profile::profile;
use crate::units::MonotonicNanos;
use crate::walk::Walk;

/// Stands for the stack of blocks allocated before recording started.
pub(super) const UNRECORDED: &str = "[allocated before recording started]";

/// Stands for the stack of blocks without a record although all calls were recorded: the C library's own.
pub(super) const UNHOOKED: &str = "[allocation not recorded]";

/// Makes profiles of leaked blocks. Adds a callsite for each walked heap, for blocks without an allocation record.
pub(super) struct LeakedProfiles<'a> {
    snapshot: &'a HeapSnapshot,
    state: TargetState,
    with_walked: TargetSnapshot,
}

impl<'a> LeakedProfiles<'a> {
    pub(super) fn new(snapshot: &'a HeapSnapshot) -> Self {
        let mut state = snapshot.state.targets[0].clone();
        let mut with_walked = (*state.books).clone();
        for (walk, index) in snapshot.walks.iter().zip(WALKED..) {
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
        // Leaked blocks have no history.
        state.growths = Leaks::default();
        state.curve = Vec::new();
        state.timeline = Arc::default();
        state.older = None;
        Self { snapshot, state, with_walked }
    }

    /// Returns a profile of these blocks, and the callsites' indices in the order of its callsites.
    pub(super) fn profile(
        &self,
        blocks: &Blocks,
        leaked: &[BlockId],
        resolver: &dyn Resolve,
        trims: bool,
    ) -> (Profile, Vec<u32>) {
        let picked = leaked.iter().map(|&id| self.picked(blocks.get(id)));
        let part = self.with_walked.of_blocks(picked, self.snapshot.now);
        let indices: Vec<u32> = part.callsites.iter().map(|callsite| callsite.index).collect();
        let state = TargetState { books: Arc::new(part), ..self.state.clone() };
        let snapshot = Snapshot { targets: vec![state], ..self.snapshot.state.clone() };
        let mut profile = profile(&snapshot, Scope::Whole, resolver, trims);
        self.name_unrecorded(&mut profile, &indices);
        profile.targets[0].leaks = None;
        profile.unreachable = true;
        (profile, indices)
    }

    fn picked(&self, block: Block) -> SelectedBlock {
        let born = recorded_at(&self.snapshot.recorded, block.start).map(RecordedBlock::born);
        SelectedBlock { callsite: block.origin, size_bytes: block.size_bytes, born }
    }

    /// Gives blocks without a stack a frame with the reason.
    fn name_unrecorded(&self, profile: &mut Profile, indices: &[u32]) {
        let reason = match self.snapshot.coverage {
            Some(coverage) if coverage.is_complete => UNHOOKED,
            _ => UNRECORDED,
        };
        let frame = FrameId(u32::try_from(profile.frames.len()).unwrap_or(u32::MAX));
        profile.frames.push(Frame { function: Some(reason.into()), ..Frame::default() });
        for (callsite, index) in profile.targets[0].callsites.iter_mut().zip(indices) {
            if *index >= WALKED {
                callsite.stack = vec![frame];
            }
        }
    }

    /// Returns when a block was allocated, if that was recorded.
    pub(super) fn born(&self, address: TargetAddr) -> Option<MonotonicNanos> {
        recorded_at(&self.snapshot.recorded, address).map(RecordedBlock::born)
    }
}

/// Returns the id of a walked heap, which is added if it has no probes.
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

/// Finds a recorded block by address; `recorded` is sorted.
fn recorded_at(recorded: &[RecordedBlock], address: TargetAddr) -> Option<&RecordedBlock> {
    recorded.binary_search_by_key(&address, |block| block.address).ok().map(|at| &recorded[at])
}
