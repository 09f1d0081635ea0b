//! What is known to be in the mappings of a process: live blocks and recorded mappings.

use std::collections::BTreeMap;

use profiler_common::interval::Interval;

use crate::address::TargetAddr;
use crate::ids::HeapId;
use crate::linux::proc::smaps::MappedMemory;
use crate::memory::Span;
use crate::units::Amounts;

use super::classify::Evidence;

const PAGE_BYTES: u64 = 4096;
/// From this size on, allocators map a block separately, or may.
const LARGE_BYTES: u64 = 64 << 10;
/// Pages of one mapping with small blocks outside of what is known of their heap.
const STRAY_MAX: usize = 1 << 12;

/// A live block of a hooked heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockPlace {
    pub(crate) address: TargetAddr,
    pub(crate) size_bytes: u64,
    /// At which it was sampled.
    pub(crate) interval: Interval,
    pub(crate) heap: HeapId,
    /// It is a mapping, or a part of one, in which allocators may have blocks.
    pub(crate) is_mapping: bool,
}

impl BlockPlace {
    pub(crate) fn span(&self) -> Span {
        self.address..TargetAddr(self.address.0.saturating_add(self.size_bytes))
    }

    /// The pages that it is in.
    pub(crate) fn pages(&self) -> Span {
        let end = self.span().end.0;
        TargetAddr(self.address.0 / PAGE_BYTES * PAGE_BYTES)
            ..TargetAddr(end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(end))
    }

    fn is_sampled(&self) -> bool {
        self.size_bytes < u64::from(self.interval.bytes())
    }

    fn estimated_bytes(&self) -> f64 {
        Amounts::of(self.size_bytes, self.interval).bytes.to_f64()
    }

    /// Bytes that a byte of it stands for.
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub(crate) fn weight(&self) -> f64 {
        if self.is_sampled() { self.estimated_bytes() / self.size_bytes.max(1) as f64 } else { 1.0 }
    }
}

/// Of small blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Small {
    pub(super) exact_bytes: u64,
    /// What sampled blocks stand for, which is elsewhere in part.
    pub(super) sampled_bytes: f64,
}

/// In one mapping.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    pub(super) small: BTreeMap<HeapId, Small>,
    pub(super) large: Vec<BlockPlace>,
    /// Pages of small blocks outside of what is known of their heap.
    pub(super) stray: BTreeMap<HeapId, Vec<Span>>,
    pub(super) mapped: BTreeMap<HeapId, Vec<Span>>,
}

/// By the index of mappings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Contents(BTreeMap<usize, Held>);

impl Contents {
    /// Of blocks in any order. Adds to the known evidence.
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

    /// The kernel merges and splits mappings, so a block may be in several of them.
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

pub(super) fn index_of(mapped: &[MappedMemory], address: TargetAddr) -> Option<usize> {
    let behind = mapped.partition_point(|memory| memory.region.start <= address);
    behind.checked_sub(1).filter(|&at| mapped[at].region.contains(address))
}
