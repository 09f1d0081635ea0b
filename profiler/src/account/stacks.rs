//! Stacks of threads: where they are, and how far they reach. The kernel merges a stack with the memory above it, so a mapping
//! does not end where the stack does. The control block of a thread has the start and the size of its stack.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{Pid, Tid};
use heapbpf_base::memory::{Memory, Span, WORD_BYTES, joined};
use heapbpf_linux::proc::maps::RegionKind;
use heapbpf_linux::proc::process::stack_pointer;
use heapbpf_linux::proc::smaps::MappedMemory;
use heapbpf_linux::proc::stat;
use heapbpf_linux::process_memory::robust_list;

use super::pages::RunningMemory;

/// Maximum number of threads whose stacks are known: as many as a system has by default.
const THREADS_MAX: usize = 1 << 15;
/// Maximum number of stacks of ended threads, which C libraries keep for later ones.
const ENDED_MAX: usize = 1 << 12;

const PAGE_BYTES: u64 = 4096;
/// Size of the searched part of a control block, on either side of the list of robust mutexes, and from its start.
const BLOCK_BYTES: u64 = 0x900;
/// Maximum distance of a control block above the stack pointer.
const REACH_BYTES: u64 = 1 << 20;
const PART_BYTES: u64 = 1 << 16;
/// Maximum number of bytes that are read in all threads of one process together, for one sample.
const SEARCHED_BYTES_MAX: u64 = 32 << 20;

#[derive(Clone, Debug, Default)]
pub(crate) struct Stacks {
    threads: BTreeMap<Tid, Stack>,
    /// Stacks of threads that have ended.
    ended: Vec<Span>,
    /// Stacks from control blocks to which others lead.
    listed: BTreeMap<TargetAddr, Span>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stack {
    Bounded(Span),
    /// The bounds of the stack are unknown; this is an address in it.
    Around(TargetAddr),
}

impl Stacks {
    /// Finds the stacks of threads. A thread's stack stays where it is, so each thread is inspected once.
    pub(crate) fn update(&mut self, pid: Pid, mapped: &[MappedMemory], memory: &RunningMemory<'_>) {
        let Ok(threads) = stat::threads(pid) else { return };
        let alive: BTreeSet<Tid> = threads.iter().copied().collect();
        let gone = self.threads.extract_if(.., |tid, _| !alive.contains(tid));
        self.ended.extend(gone.filter_map(|(_, stack)| match stack {
            Stack::Bounded(span) => Some(span),
            Stack::Around(_) => None,
        }));
        self.ended.retain(|span| has_guard(mapped, span));
        self.ended.truncate(ENDED_MAX);
        self.listed.clear();
        let mut searched_bytes = 0;
        for tid in threads.into_iter().take(THREADS_MAX) {
            if let Entry::Vacant(unknown) = self.threads.entry(tid)
                && let Some(stack) = find(pid, tid, mapped, memory, &mut self.listed, &mut searched_bytes)
            {
                unknown.insert(stack);
            }
        }
    }

    /// Bounds of stacks by rising address, without overlaps.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let bounded = self.threads.values().filter_map(|stack| match stack {
            Stack::Bounded(span) => Some(span.clone()),
            Stack::Around(_) => None,
        });
        joined(bounded.chain(self.ended.iter().cloned()).collect())
    }

    /// Addresses in stacks whose bounds are not known, by rising address.
    pub(crate) fn pointers(&self) -> Vec<TargetAddr> {
        let around = self.threads.values().filter_map(|stack| match stack {
            Stack::Bounded(_) => None,
            Stack::Around(address) => Some(*address),
        });
        let mut pointers: Vec<TargetAddr> = around.collect();
        pointers.sort_unstable();
        pointers
    }
}

fn find(
    pid: Pid,
    tid: Tid,
    mapped: &[MappedMemory],
    memory: &RunningMemory<'_>,
    listed: &mut BTreeMap<TargetAddr, Span>,
    searched_bytes: &mut u64,
) -> Option<Stack> {
    let pointer = stack_pointer(pid, tid);
    let is_main = |pointer: &TargetAddr| {
        region_at(mapped, *pointer).is_some_and(|memory| memory.region.kind == RegionKind::Stack)
    };
    if let Some(pointer) = pointer.filter(is_main) {
        return Some(Stack::Around(pointer));
    }
    let is_sound = |span: &Span| pointer.is_none_or(|pointer| span.contains(&pointer)) && is_anonymous(mapped, span);
    let of_robust = robust_list(tid).and_then(|head| {
        let start = head.saturating_sub(BLOCK_BYTES);
        bounds(memory, start, head.saturating_add(BLOCK_BYTES), TargetAddr(head)).find(is_sound)
    });
    let of_listed = || {
        let pointer = pointer?;
        let found = |listed: &BTreeMap<TargetAddr, Span>| {
            let (_, span) = listed.range(..=pointer).next_back()?;
            span.contains(&pointer).then(|| span.clone())
        };
        if let Some(span) = found(listed) {
            return Some(span);
        }
        search(memory, pointer, listed, searched_bytes);
        found(listed).filter(is_sound)
    };
    let bounded = of_robust.or_else(of_listed).map(Stack::Bounded);
    bounded.or_else(|| pointer.map(Stack::Around))
}

/// Searches above a stack pointer for a control block of musl: it begins with its own address, and is in a list of all threads.
fn search(
    memory: &RunningMemory<'_>,
    pointer: TargetAddr,
    listed: &mut BTreeMap<TargetAddr, Span>,
    searched_bytes: &mut u64,
) {
    let reach = pointer..TargetAddr(pointer.0.saturating_add(REACH_BYTES));
    // A stack has no holes above its pointer.
    let Some(present) = memory.present(reach).into_iter().next().filter(|span| span.start == pointer) else { return };
    let mut at = pointer.0 / WORD_BYTES * WORD_BYTES;
    while at < present.end.0 && *searched_bytes < SEARCHED_BYTES_MAX {
        let length = PART_BYTES.min(present.end.0 - at);
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        let read = memory.read(TargetAddr(at), &mut bytes);
        *searched_bytes = searched_bytes.saturating_add(length);
        let words = bytes[..read].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        for (own, word) in (at..).step_by(8).zip(words) {
            if own == word && own.is_multiple_of(WORD_BYTES) && add_listed(memory, own, listed) {
                return;
            }
        }
        at = at.saturating_add(length);
    }
}

/// Offsets of words of musl's control block, which begins with its own address: those of the previous and the next thread.
const PREVIOUS: u64 = 16;
const NEXT: u64 = 24;
/// Size of the part of musl's control block in which the start and the size of the stack are.
const MUSL_BLOCK_BYTES: u64 = 0x100;

/// Adds the stacks of all threads in the list of one. Returns whether there is a list.
fn add_listed(memory: &RunningMemory<'_>, first: u64, listed: &mut BTreeMap<TargetAddr, Span>) -> bool {
    let word = |address: u64| memory.word(TargetAddr(address));
    let (mut block, mut count) = (first, 0);
    while count < THREADS_MAX {
        let next = word(block.saturating_add(NEXT)).filter(|next| next.is_multiple_of(WORD_BYTES));
        let Some(next) = next.filter(|next| *next != block) else { break };
        if word(next) != Some(next) || word(next.saturating_add(PREVIOUS)) != Some(block) {
            break;
        }
        let mut found = bounds(memory, next, next.saturating_add(MUSL_BLOCK_BYTES), TargetAddr(next));
        if let Some(span) = found.next() {
            listed.insert(span.start, span);
        }
        count += 1;
        block = next;
        if block == first {
            break;
        }
    }
    count > 0
}

/// Pairs of adjacent words that can be the start and the size of a stack with this address.
fn bounds(memory: &RunningMemory<'_>, start: u64, end: u64, of: TargetAddr) -> impl Iterator<Item = Span> {
    let start = start.next_multiple_of(WORD_BYTES);
    // The block may begin in the first resident page.
    let around = memory.present(TargetAddr(start)..TargetAddr(end)).into_iter().find(|span| span.contains(&of));
    let start = around.map_or(start, |span| span.start.0);
    let mut bytes = vec![0; usize::try_from(end.saturating_sub(start)).unwrap_or(0)];
    let read = memory.read(TargetAddr(start), &mut bytes);
    let words: Vec<u64> = bytes[..read].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let pairs: Vec<(u64, u64)> = words.windows(2).map(|pair| (pair[0], pair[1])).collect();
    pairs.into_iter().filter_map(move |(start, size_bytes)| {
        let is_of_pages = start.is_multiple_of(PAGE_BYTES) && size_bytes.is_multiple_of(PAGE_BYTES);
        let end = start.checked_add(size_bytes)?;
        (is_of_pages && start > 0 && (start..end).contains(&of.0)).then_some(TargetAddr(start)..TargetAddr(end))
    })
}

fn region_at(mapped: &[MappedMemory], address: TargetAddr) -> Option<&MappedMemory> {
    let behind = mapped.partition_point(|memory| memory.region.start <= address);
    mapped[..behind].last().filter(|memory| memory.region.contains(address))
}

/// Whether private anonymous memory is mapped in the whole span.
fn is_anonymous(mapped: &[MappedMemory], span: &Span) -> bool {
    let first = mapped.partition_point(|memory| memory.region.end <= span.start);
    let mut end = span.start;
    for memory in &mapped[first..] {
        let region = &memory.region;
        if region.start > end || region.shared || !region.is_anonymous() {
            return false;
        }
        end = region.end;
        if end >= span.end {
            return true;
        }
    }
    false
}

/// Whether the memory still has the shape of a stack: pages without access, and others up to its end.
fn has_guard(mapped: &[MappedMemory], span: &Span) -> bool {
    let Some(guard) = region_at(mapped, span.start).map(|memory| &memory.region) else { return false };
    let Some(rest) = region_at(mapped, guard.end).map(|memory| &memory.region) else { return false };
    let is_closed = !guard.readable && !guard.writable && guard.start == span.start;
    is_closed && rest.writable && rest.end >= span.end && is_anonymous(mapped, span)
}
