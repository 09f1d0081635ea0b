//! Divides the resident memory of a process among its uses.
//!
//! A mapping with small live blocks of a hooked heap belongs to that heap as a whole. A large block is often a mapping of its
//! own, which the kernel may have merged with its neighbours', so it accounts for its own size only. glibc's heaps are `brk`
//! and arenas, which have a known shape. The rest is named after the mapping where it has a name.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use profiler_common::interval::Interval;

use crate::address::TargetAddr;
use crate::ids::HeapId;
use crate::linux::proc::maps::{Region, RegionKind};
use crate::linux::proc::smaps::MappedMemory;
use crate::model::{MemoryClass, MemoryPart};
use crate::units::Amounts;

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

/// What is known of a process besides its mappings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Evidence {
    /// Names of heaps by id.
    pub(crate) heaps: Vec<Arc<str>>,
    /// An address in each thread's stack, by rising address.
    pub(crate) stacks: Vec<TargetAddr>,
    /// Evidence of earlier: heaps with small blocks by the address of a block.
    pub(crate) known: BTreeMap<TargetAddr, HeapId>,
}

/// From this size on, allocators map a block separately, or may.
const LARGE_BYTES: u64 = 64 << 10;

/// Size and alignment of an arena of glibc (`HEAP_MAX_SIZE` in malloc/arena.c).
const ARENA_BYTES: u64 = 64 << 20;

const LIBC: &str = "libc";

#[derive(Clone, Debug, Default)]
struct Contents {
    small: Option<HeapId>,
    large: BTreeMap<HeapId, f64>,
    mapped: BTreeMap<HeapId, u64>,
}

type Parts = BTreeMap<(MemoryClass, Option<Arc<str>>), u64>;

/// Parts sum to the resident bytes of all mappings. `live_bytes` are estimates by heap. Adds to the known evidence.
pub(crate) fn classify(
    mapped: &[MappedMemory],
    blocks: impl Iterator<Item = BlockPlace>,
    live_bytes: impl Fn(HeapId) -> u64,
    evidence: &mut Evidence,
) -> Vec<MemoryPart> {
    let contents = contents(mapped, blocks, evidence);
    let mut parts = Parts::new();
    let mut hooked: BTreeMap<HeapId, u64> = BTreeMap::new();
    for (at, memory) in mapped.iter().enumerate() {
        let next = mapped.get(at + 1);
        let mut rest = memory.rss_bytes;
        if is_heap_like(&memory.region) {
            let held = contents.get(&at).cloned().unwrap_or_default();
            let whole = held.small.or_else(|| glibc_heap(memory, next.map(|next| &next.region), evidence));
            for (heap, bytes) in held.large.into_iter().filter(|(heap, _)| Some(*heap) != whole) {
                let bytes = round(bytes).min(rest);
                *hooked.entry(heap).or_default() += bytes;
                rest -= bytes;
            }
            if let Some(heap) = whole {
                *hooked.entry(heap).or_default() += rest;
                continue;
            }
            for (heap, bytes) in held.mapped {
                let bytes = bytes.min(rest);
                *hooked.entry(heap).or_default() += bytes;
                rest -= bytes;
            }
        }
        *parts.entry(class(&memory.region, evidence)).or_default() += rest;
    }
    for (heap, bytes) in hooked {
        let name = evidence.heaps.get(usize::from(heap.0)).cloned();
        let live = live_bytes(heap).min(bytes);
        *parts.entry((MemoryClass::LiveBlocks, name.clone())).or_default() += live;
        *parts.entry((MemoryClass::HeapOverhead, name)).or_default() += bytes - live;
    }
    let parts = bounded(parts).into_iter().filter(|(_, bytes)| *bytes > 0);
    parts.map(|((class, name), bytes)| MemoryPart { class, name, bytes }).collect()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "`as` saturates, and it is not negative")]
fn round(bytes: f64) -> u64 {
    bytes.round() as u64
}

fn contents(
    mapped: &[MappedMemory],
    blocks: impl Iterator<Item = BlockPlace>,
    evidence: &mut Evidence,
) -> BTreeMap<usize, Contents> {
    let index_of = |address: TargetAddr| {
        let behind = mapped.partition_point(|memory| memory.region.start <= address);
        behind.checked_sub(1).filter(|&at| mapped[at].region.contains(address))
    };
    let mut contents: BTreeMap<usize, Contents> = BTreeMap::new();
    // Neighbouring blocks are often in the same mapping.
    let mut last: Option<usize> = None;
    for block in blocks {
        if block.is_mapping {
            add_mapping(&mut contents, mapped, &block);
            continue;
        }
        let at = last.filter(|&at| mapped[at].region.contains(block.address)).or_else(|| index_of(block.address));
        last = at;
        let Some(at) = at else { continue };
        let held = contents.entry(at).or_default();
        if block.size_bytes < LARGE_BYTES {
            let Region { start, end, .. } = mapped[at].region;
            if held.small.is_none() && evidence.known.range(start..end).next().is_none() {
                evidence.known.insert(block.address, block.heap);
            }
            held.small.get_or_insert(block.heap);
        } else {
            *held.large.entry(block.heap).or_default() += Amounts::of(block.size_bytes, block.interval).bytes.to_f64();
        }
    }
    // A heap keeps its mappings when all of its blocks there are free.
    evidence.known.retain(|&address, _| index_of(address).is_some());
    for (&address, &heap) in &evidence.known {
        if let Some(at) = index_of(address) {
            contents.entry(at).or_default().small.get_or_insert(heap);
        }
    }
    contents
}

/// The kernel merges and splits mappings, so one that was recorded may be a part of one, or several.
fn add_mapping(contents: &mut BTreeMap<usize, Contents>, mapped: &[MappedMemory], block: &BlockPlace) {
    let end = TargetAddr(block.address.0.saturating_add(block.size_bytes));
    let first = mapped.partition_point(|memory| memory.region.end <= block.address);
    for (at, memory) in mapped.iter().enumerate().skip(first).take_while(|(_, memory)| memory.region.start < end) {
        let bytes = memory.region.end.min(end).0.saturating_sub(memory.region.start.max(block.address).0);
        *contents.entry(at).or_default().mapped.entry(block.heap).or_default() += bytes;
    }
}

fn is_heap_like(region: &Region) -> bool {
    region.is_anonymous() && !region.shared && !region.executable
}

/// glibc's heap, if the mapping has the shape of `brk` or of an arena.
fn glibc_heap(memory: &MappedMemory, next: Option<&Region>, evidence: &Evidence) -> Option<HeapId> {
    let region = &memory.region;
    // One without reserve cannot be distinguished from other mappings, unless it has known blocks.
    let is_arena = || {
        let end = region.start.0 + ARENA_BYTES;
        let has_reserve =
            next.is_some_and(|next| next.start == region.end && next.end.0 == end && !next.readable && !next.writable);
        region.start.0.is_multiple_of(ARENA_BYTES) && region.writable && has_reserve
    };
    let is_named =
        matches!(&region.kind, RegionKind::Anonymous { name: Some(name) } if name.starts_with("glibc: malloc"));
    if region.kind != RegionKind::Brk && !is_named && !is_arena() {
        return None;
    }
    let at = evidence.heaps.iter().position(|name| &**name == LIBC)?;
    u8::try_from(at).ok().map(HeapId)
}

fn class(region: &Region, evidence: &Evidence) -> (MemoryClass, Option<Arc<str>>) {
    let has_stack = || {
        let behind = evidence.stacks.partition_point(|&address| address < region.start);
        evidence.stacks.get(behind).is_some_and(|&address| region.contains(address))
    };
    match &region.kind {
        RegionKind::Stack => (MemoryClass::Stacks, None),
        _ if region.shared => (MemoryClass::Shared, None),
        RegionKind::File { .. } if region.is_stubs() => (MemoryClass::Files, None),
        RegionKind::File { path } if is_shared_memory(path) => (MemoryClass::Shared, None),
        RegionKind::File { .. } | RegionKind::Kernel => (MemoryClass::Files, None),
        RegionKind::Anonymous { name: Some(name) } if name.starts_with("glibc: pthread stack") => {
            (MemoryClass::Stacks, None)
        }
        _ if has_stack() => (MemoryClass::Stacks, None),
        _ if region.executable => (MemoryClass::GeneratedCode, None),
        RegionKind::Anonymous { name: Some(name) } => (MemoryClass::OtherAllocator, Some(label(name))),
        RegionKind::Brk => (MemoryClass::OtherAllocator, Some(Arc::from("brk"))),
        RegionKind::Anonymous { name: None } => (MemoryClass::Unexplained, None),
    }
}

/// A private mapping of shared memory, or of a memfd.
fn is_shared_memory(path: &std::path::Path) -> bool {
    ["/dev/shm/", "/memfd:", "/SYSV", "/dev/zero"]
        .iter()
        .any(|prefix| path.as_os_str().as_encoded_bytes().starts_with(prefix.as_bytes()))
}

/// A process chooses the names of its mappings, so only the first word of a name counts.
fn label(name: &str) -> Arc<str> {
    const LENGTH_MAX: usize = 24;
    let word = name.split([':', ' ', '-', '/', '.']).next().unwrap_or_default();
    Arc::from(word.chars().filter(char::is_ascii_graphic).take(LENGTH_MAX).collect::<String>())
}

/// Beyond it, the smallest are one part.
const NAMES_MAX: usize = 8;

fn bounded(parts: Parts) -> Parts {
    let named = |class: MemoryClass| class == MemoryClass::OtherAllocator;
    let mut sizes: Vec<u64> = parts.iter().filter(|((class, _), _)| named(*class)).map(|(_, bytes)| *bytes).collect();
    sizes.sort_unstable_by_key(|bytes| Reverse(*bytes));
    let least = sizes.get(NAMES_MAX).copied().unwrap_or(0);
    let mut bounded = Parts::new();
    for ((class, name), bytes) in parts {
        let name = name.filter(|_| !named(class) || bytes > least);
        *bounded.entry((class, name)).or_default() += bytes;
    }
    bounded
}

#[cfg(test)]
mod tests;
