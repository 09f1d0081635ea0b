//! Memory in which pointers are looked for first: all that was read, without the heap's own and without what lies below the ends
//! of stacks. Pure.
//!
//! What is left out hides leaks if it is not, and what should not be makes false ones: so a part of a stack is left out only
//! where the thread library's own record of the stack says where it begins.

use std::collections::HashSet;
use std::iter;

use super::spans::{joined, without};
use super::{RED_ZONE_BYTES, Span, ThreadState};
use crate::address::TargetAddr;
use crate::ids::Tid;
use crate::linux::proc::regions::{Region, RegionKind, region_of};
use crate::memory::{Memory, WORD_BYTES};

/// Where pointers are looked for: all of `memory` without `heap_areas` (in any order), the unused ends of stacks, and stacks of
/// threads that have ended. By rising address, without overlaps.
pub(crate) fn root_spans(
    threads: &[ThreadState],
    regions: &[Region],
    memory: &dyn Memory,
    heap_areas: &[Span],
) -> Vec<Span> {
    let mut cuts = heap_areas.to_vec();
    cuts.extend(threads.iter().filter_map(|thread| unused(thread, threads, regions, memory)));
    let heap = joined(heap_areas.to_vec());
    let live: HashSet<TargetAddr> = threads.iter().map(|thread| thread.thread_pointer).collect();
    for region in regions.iter().filter(|region| may_hold_stacks(region)) {
        for span in without(memory.present(region.start..region.end), &heap) {
            let stacks = ended_stacks(&span, threads, &live, memory);
            cuts.extend(stacks.into_iter().map(|stack| stack.start.max(region.start)..stack.end.min(region.end)));
        }
    }
    without(memory.present(TargetAddr(0)..TargetAddr(u64::MAX)), &joined(cuts))
}

/// What of the stack that a thread runs on lies below its end.
fn unused(thread: &ThreadState, threads: &[ThreadState], regions: &[Region], memory: &dyn Memory) -> Option<Span> {
    let region = region_of(regions, thread.stack_pointer)?;
    let stack = if region.kind == RegionKind::Stack {
        region.start..region.end
    } else {
        stack_of(thread.thread_pointer, memory)?
    };
    if !stack.contains(&thread.stack_pointer) || is_on_inner(thread, &stack, memory) {
        return None;
    }
    // Another thread may run on a part of this stack that it was given.
    let ends = threads.iter().map(|other| other.stack_pointer).filter(|end| stack.contains(end));
    let end = ends.min()?.0.saturating_sub(RED_ZONE_BYTES);
    // Nothing of another mapping is left out, whatever the control block says.
    let start = stack.start.max(region.start);
    (start.0 < end).then_some(start..TargetAddr(end))
}

/// Whether a thread handles a signal on an alternate stack that is a variable on its own: what was interrupted is below. The kernel has
/// put down there which stack it is (`uc_stack` in the signal's frame).
fn is_on_inner(thread: &ThreadState, stack: &Span, memory: &dyn Memory) -> bool {
    const SEARCHED_BYTES_MAX: u64 = 1 << 18;
    // `SS_ONSTACK`, and `SS_AUTODISARM`.
    const FLAGS: u64 = 1 | 1 << 31;
    let first = thread.stack_pointer.0.next_multiple_of(WORD_BYTES);
    let length = stack.end.0.saturating_sub(first).min(SEARCHED_BYTES_MAX);
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let read = memory.read(TargetAddr(first), &mut bytes);
    let words: Vec<u64> = bytes[..read].as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    words.windows(3).zip((first..).step_by(8)).any(|(frame, address)| {
        let &[start, flags, size] = frame else { return false };
        let Some(end) = start.checked_add(size) else { return false };
        let is_inside = stack.start.0 < start && start <= thread.stack_pointer.0 && end <= stack.end.0;
        is_inside && address < end && flags & u64::from(u32::MAX) & !FLAGS == 0
    })
}

/// The memory of a thread's stack, its guard, thread-local storage and control block among it, as the control block tells. glibc
/// (`stackblock`, `stackblock_size` in `struct pthread`) and musl (`map_base`, `map_size`) keep it in two words next to each
/// other, at places that differ between their versions.
fn stack_of(thread_pointer: TargetAddr, memory: &dyn Memory) -> Option<Span> {
    const BLOCK_BYTES: u64 = 4096;
    // Both begin with a pointer to themselves; no memory that is something else is read as a control block.
    if memory.word(thread_pointer)? != thread_pointer.0 {
        return None;
    }
    let word = |offset: u64| memory.word(TargetAddr(thread_pointer.0.checked_add(offset)?));
    let pairs = (0..BLOCK_BYTES / WORD_BYTES).map(|index| index * WORD_BYTES);
    pairs.map_while(|offset| Some((word(offset)?, word(offset + WORD_BYTES)?))).find_map(|(start, size)| {
        let end = start.checked_add(size)?;
        let encloses = 0 < start && start < thread_pointer.0 && thread_pointer.0 < end;
        // The block is the stack's top. What is no stack of the library's own making, of whole pages, is not understood.
        let is_top = end.saturating_sub(thread_pointer.0) <= 2 * BLOCK_BYTES;
        let is_paged = start.is_multiple_of(BLOCK_BYTES) && size.is_multiple_of(BLOCK_BYTES);
        (encloses && is_top && is_paged && size <= STACK_BYTES_MAX).then_some(TargetAddr(start)..TargetAddr(end))
    })
}

/// No stack is larger, and pointers, which may stand in such a pair too, are: but those to low addresses.
const STACK_BYTES_MAX: u64 = 1 << 36;

fn may_hold_stacks(region: &Region) -> bool {
    region.writable && !region.shared && matches!(region.kind, RegionKind::Anonymous { .. })
}

/// Stacks of threads that have ended, which glibc keeps for the next ones: stale pointers are in there. In the span lies the
/// control block at their top.
fn ended_stacks(span: &Span, threads: &[ThreadState], live: &HashSet<TargetAddr>, memory: &dyn Memory) -> Vec<Span> {
    let mut found = Vec::new();
    let mut room = Vec::new();
    // Control blocks are aligned to cache lines.
    let mut start = span.start.0.next_multiple_of(LINE_BYTES as u64);
    while let Some(left) = span.end.0.checked_sub(start).filter(|left| *left > 0) {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(WINDOW_BYTES);
        let bytes = memory.slice(TargetAddr(start), length).unwrap_or_else(|| {
            room.resize(length, 0);
            let count = memory.read(TargetAddr(start), &mut room);
            &room[..count]
        });
        let blocks = own_lines(start, bytes).into_iter().map(TargetAddr).filter(|block| !live.contains(block));
        found.extend(blocks.flat_map(|block| ended_stack(block, threads, memory)));
        start += length as u64;
    }
    found
}

/// The lines whose first and third word are their own address. Gigabytes are looked through: so nothing is called for each.
fn own_lines(start: u64, bytes: &[u8]) -> Vec<u64> {
    let words = bytes.as_chunks::<8>().0;
    let (mut index, mut address, mut own) = (0, start, Vec::new());
    while index + LINE_WORDS <= words.len() {
        if u64::from_le_bytes(words[index]) == address && u64::from_le_bytes(words[index + 2]) == address {
            own.push(address);
        }
        index += LINE_WORDS;
        address += LINE_BYTES as u64;
    }
    own
}

/// Bytes that are looked through at once where they have to be copied: whole cache lines.
const WINDOW_BYTES: usize = 1 << 16;

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
const LINE_WORDS: usize = LINE_BYTES / 8;

/// What holds nothing any more of the stack below this control block, and of that; nothing unless all of it says that it is one whose
/// thread has ended.
fn ended_stack(block: TargetAddr, threads: &[ThreadState], memory: &dyn Memory) -> Vec<Span> {
    let Some((stack, is_joined)) = stack_of_ended(block, threads, memory) else { return Vec::new() };
    let head_end = TargetAddr(block.0.saturating_add(HEAD_BYTES));
    // What a thread has returned is in its control block until it is joined.
    let behind = (is_joined && head_end < stack.end).then_some(head_end..stack.end);
    iter::once(stack.start..block).chain(behind).collect()
}

/// What a control block begins with: the pointer to itself, and that to the vector of the thread's modules, which the next thread takes over
/// with the stack.
const HEAD_BYTES: u64 = 2 * WORD_BYTES;

/// The stack below this control block, and whether its thread was joined.
fn stack_of_ended(block: TargetAddr, threads: &[ThreadState], memory: &dyn Memory) -> Option<(Span, bool)> {
    // `struct pthread` of every glibc for x86-64: behind a head of 704 bytes, two links and the thread's number, which the kernel
    // sets to 0 at the thread's end, and pthread_join to -1.
    const LINKS_OFFSET: u64 = 0x2c0;
    const TID_OFFSET: u64 = 0x2d0;
    const JOINED: u32 = u32::MAX;
    let links = block.0.checked_add(LINKS_OFFSET)?;
    let link = |address: u64| memory.word(TargetAddr(address));
    let (next, previous) = (link(links)?, link(links + WORD_BYTES)?);
    // A list of two links whose neighbours know each other: nothing looks so by chance.
    if link(next.checked_add(WORD_BYTES)?)? != links || link(previous)? != links || next == links {
        return None;
    }
    let tid = memory.word(TargetAddr(block.0 + TID_OFFSET))?;
    let tid = u32::try_from(tid & u64::from(u32::MAX)).ok()?;
    if tid != 0 && tid != JOINED || threads.iter().any(|thread| thread.tid == Tid(tid)) {
        return None;
    }
    let stack = stack_of(block, memory)?;
    if threads.iter().any(|thread| stack.contains(&thread.stack_pointer) || stack.contains(&thread.thread_pointer)) {
        return None;
    }
    Some((stack, tid == JOINED))
}

#[cfg(test)]
mod tests;
