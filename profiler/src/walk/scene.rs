//! Input and output of walks, and readers of memory that may contain anything.

use crate::address::TargetAddr;
use crate::collect::ThreadState;
use crate::linux::proc::maps::{Region, RegionKind};
use crate::memory::{Memory, Span, WORD_BYTES};

#[derive(Clone, Copy)]
pub struct Scene<'a> {
    pub memory: &'a dyn Memory,
    /// By ascending address.
    pub regions: &'a [Region],
    pub threads: &'a [ThreadState],
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// As in hooks (`libc`, `jemalloc`, …).
    pub heap: &'static str,
    /// By ascending address, without overlaps.
    pub blocks: Vec<WalkedBlock>,
    /// Memory whose allocated blocks are all known: the rest of it is free, or the allocator's own.
    pub areas: Vec<Span>,
    /// What could not be walked, and why. Its memory is not in `areas`.
    pub gaps: Vec<String>,
    /// Sizes are the requested ones.
    pub has_exact_sizes: bool,
    /// A thread was running allocator code, so some of the result may be wrong: worth another try later.
    pub busy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkedBlock {
    /// The pointer that the program has.
    pub start: TargetAddr,
    /// Usable size, or the requested one: see [`Walk::has_exact_sizes`].
    pub size_bytes: u64,
}

/// Why a process has no heap that can be walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// Its dynamic linker is loading it.
    Starting,
    /// Its allocator has not been called.
    Unused,
    /// Its allocator has no block in use.
    Empty,
    /// A thread was changing its allocator's data structures.
    Changing,
    /// Its allocator's data structures are overwritten.
    Damaged,
    /// Its allocator was not recognized.
    Unknown,
}

impl<'a> Scene<'a> {
    /// Private mappings that can be a module's data: of a file, or anonymous after one, for zero-initialized variables.
    pub(super) fn module_data(&self) -> impl Iterator<Item = &'a Region> {
        let before = std::iter::once(None).chain(self.regions.iter().map(Some));
        let is_file = |region: &Region| matches!(region.kind, RegionKind::File { .. });
        let pairs = before.zip(self.regions).filter(move |(before, region)| {
            let follows_file = || before.is_some_and(|before| is_file(before) && before.end == region.start);
            let is_private = region.readable && region.writable && !region.shared;
            is_private && (is_file(region) || (region.is_anonymous() && follows_file()))
        });
        pairs.map(|(_, region)| region)
    }

    pub(super) fn anonymous(&self) -> impl Iterator<Item = &'a Region> {
        self.regions.iter().filter(|region| region.is_anonymous() && region.writable && !region.shared)
    }
}

pub(super) fn span(start: u64, end: u64) -> Span {
    TargetAddr(start)..TargetAddr(end)
}

/// `spans` must be in ascending order.
pub(super) fn last_before(spans: &[Span], address: u64) -> Option<&Span> {
    spans[..spans.partition_point(|span| span.start.0 <= address)].last()
}

/// End of the addresses of user processes with four levels of page tables.
pub(super) const ADDRESS_MAX: u64 = 1 << 47;

const PART_BYTES: u64 = 1 << 16;

/// `None` unless all words are present.
pub(super) fn array<const N: usize>(memory: &dyn Memory, address: u64) -> Option<[u64; N]> {
    let mut words = [[0; size_of::<u64>()]; N];
    let whole = memory.read(TargetAddr(address), words.as_flattened_mut()) == size_of_val(&words);
    whole.then(|| words.map(u64::from_le_bytes))
}

/// Up to the first word that is not present, at most 2^14.
pub(super) fn words(memory: &dyn Memory, start: u64, end: u64) -> Vec<u64> {
    let length = end.saturating_sub(start).min(2 * PART_BYTES);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let read = memory.read(TargetAddr(start), &mut bytes);
    bytes[..read].as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// The present words. Each part ends with the first word of the next one, so that pairs are complete.
pub(super) fn parts(memory: &dyn Memory, range: Span) -> impl Iterator<Item = (u64, Vec<u64>)> {
    memory.present(range).into_iter().flat_map(move |present| {
        let (start, end) = (present.start.0.next_multiple_of(WORD_BYTES), present.end.0);
        let starts = (0..end.saturating_sub(start).div_ceil(PART_BYTES)).map(move |nth| start + nth * PART_BYTES);
        starts.map(move |at| (at, words(memory, at, end.min(at.saturating_add(PART_BYTES + WORD_BYTES)))))
    })
}

/// Mapped completely, and privately.
pub(super) fn covered(regions: &[Region], span: &Span) -> bool {
    let first = regions.partition_point(|region| region.end <= span.start);
    let mut end = span.start;
    for region in &regions[first..] {
        if region.start > end || region.shared {
            return false;
        }
        end = region.end;
        if end >= span.end {
            return true;
        }
    }
    false
}
