//! Known contents of the mappings of a process: live blocks and recorded mappings.

use std::collections::BTreeMap;

use heapbpf_base::ids::HeapId;
use heapbpf_base::memory::Span;
use heapbpf_linux::proc::smaps::MappedMemory;

use super::evidence::{BlockPlace, Evidence, index_of};

/// Size from which on allocators map a block separately, or may.
const LARGE_BYTES: u64 = 64 << 10;
/// Maximum number of pages of one mapping with small blocks outside of the known memory of their heap.
const STRAY_MAX: usize = 1 << 12;

/// Amounts of small blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Small {
    pub(super) exact_bytes: u64,
    /// Bytes that sampled blocks stand for, some of which are elsewhere.
    pub(super) sampled_bytes: f64,
}

/// Contents of one mapping.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    pub(super) small: BTreeMap<HeapId, Small>,
    pub(super) large: Vec<BlockPlace>,
    /// Pages of small blocks outside of the known memory of their heap.
    pub(super) stray: BTreeMap<HeapId, Vec<Span>>,
    pub(super) mapped: BTreeMap<HeapId, Vec<Span>>,
}

/// Contents by the index of mappings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents(BTreeMap<usize, Held>);

impl Contents {
    /// Contents with blocks, which may be in any order. Adds to the known evidence.
    pub(crate) fn of(
        mapped: &[MappedMemory],
        blocks: impl Iterator<Item = BlockPlace>,
        evidence: &mut Evidence,
    ) -> Self {
        let mut contents = Self::default();
        // Neighbouring blocks are often in the same mapping.
        let mut last: Option<usize> = None;
        for block in blocks {
            if block.is_mapping || block.size_bytes >= LARGE_BYTES {
                contents.add_large(mapped, &block, evidence);
                continue;
            }
            let at = last.filter(|&at| mapped[at].region.contains(block.address));
            last = at.or_else(|| index_of(mapped, block.address));
            if let Some(at) = last {
                contents.add_small(&mapped[at], at, &block, evidence);
            }
        }
        contents
    }

    pub(super) fn get(&self, at: usize) -> Option<&Held> {
        self.0.get(&at)
    }

    fn add_small(&mut self, memory: &MappedMemory, at: usize, block: &BlockPlace, evidence: &mut Evidence) {
        let held = self.0.entry(at).or_default();
        let small = held.small.entry(block.heap).or_insert_with(|| {
            evidence.note(&memory.region, block);
            Small::default()
        });
        if block.is_sampled() {
            small.sampled_bytes += block.estimated_bytes();
        } else {
            small.exact_bytes = small.exact_bytes.saturating_add(block.size_bytes);
        }
        if evidence.is_stray(&memory.region, block) {
            let pages = held.stray.entry(block.heap).or_default();
            let is_last = pages.last().is_some_and(|last| last.contains(&block.address));
            if !is_last && pages.len() < STRAY_MAX {
                pages.push(block.pages());
            }
        }
    }

    /// Adds a large block. The kernel merges and splits mappings, so a block may be in several of them.
    fn add_large(&mut self, mapped: &[MappedMemory], block: &BlockPlace, evidence: &mut Evidence) {
        let span = block.span();
        let first = mapped.partition_point(|memory| memory.region.end <= span.start);
        for (at, memory) in mapped.iter().enumerate().skip(first).take_while(|(_, it)| it.region.start < span.end) {
            let held = self.0.entry(at).or_default();
            if block.is_mapping {
                held.mapped.entry(block.heap).or_default().push(span.clone());
            } else {
                evidence.note_large(&memory.region, block);
                held.large.push(*block);
            }
        }
    }
}
