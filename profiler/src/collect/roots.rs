//! Roots of the reachability analysis. An unused range that is included hides leaks, and a used range that is excluded causes
//! false reports. So parts of stacks are excluded only where the thread library's own record confirms their bounds.

use std::collections::HashSet;
use std::iter;

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::Tid;
use heapbpf_base::memory::{Memory, Span, WORD_BYTES, joined, without};
use heapbpf_linux::arch::{
    self, CONTROL_BLOCK_TOP_BYTES_MAX, MARK_LINE_WORDS, MARK_OFFSET, MARK_TARGET, MARK_WORDS, PTHREAD_LIST_OFFSET,
    PTHREAD_TID_OFFSET, RED_ZONE_BYTES,
};
use heapbpf_linux::proc::maps::{Region, RegionKind, region_of};

use super::process::ThreadState;

/// Returns all of `memory` without `heap_areas` (in any order), the unused parts of stacks, and stacks of exited
/// threads, by rising address and without overlaps.
pub(crate) fn root_spans(
    threads: &[ThreadState],
    regions: &[Region],
    memory: &dyn Memory,
    heap_areas: &[Span],
) -> Vec<Span> {
    let mut cuts = heap_areas.to_vec();
    let blocks = ControlBlocks::of(threads, memory);
    cuts.extend(threads.iter().filter_map(|thread| unused(thread, threads, &blocks, regions, memory)));
    let heap = joined(heap_areas.to_vec());
    for region in regions.iter().filter(|region| may_contain_stacks(region)) {
        for span in without(memory.present(region.start..region.end), &heap) {
            let stacks = ended_stacks(&span, threads, &blocks, memory);
            cuts.extend(stacks.into_iter().map(|stack| stack.start.max(region.start)..stack.end.min(region.end)));
        }
    }
    without(memory.present(TargetAddr(0)..TargetAddr(u64::MAX)), &joined(cuts))
}

/// The control blocks of running threads, at the same distance below each one's thread pointer.
struct ControlBlocks {
    /// Distance of a control block from its thread pointer; `None` if no block is known.
    distance: Option<u64>,
    all: HashSet<TargetAddr>,
}

impl ControlBlocks {
    fn of(threads: &[ThreadState], memory: &dyn Memory) -> Self {
        let word = |address: u64| memory.word(TargetAddr(address));
        let pointers = || threads.iter().map(|thread| thread.thread_pointer.0);
        let distance = pointers().find_map(|pointer| Some(pointer - arch::control_block(pointer, &word)?));
        let block = |pointer: u64| Some(TargetAddr(pointer.checked_sub(distance?)?));
        Self { distance, all: pointers().filter_map(block).collect() }
    }

    fn of_thread(&self, thread: &ThreadState, memory: &dyn Memory) -> Option<TargetAddr> {
        let start = thread.thread_pointer.0.checked_sub(self.distance?)?;
        arch::is_control_block(start, &|address| memory.word(TargetAddr(address))).then_some(TargetAddr(start))
    }
}

fn unused(
    thread: &ThreadState,
    threads: &[ThreadState],
    blocks: &ControlBlocks,
    regions: &[Region],
    memory: &dyn Memory,
) -> Option<Span> {
    let region = region_of(regions, thread.stack_pointer)?;
    let stack = if region.kind == RegionKind::Stack {
        region.start..region.end
    } else {
        stack_of(blocks.of_thread(thread, memory)?, memory)?
    };
    if !stack.contains(&thread.stack_pointer) || is_on_nested_stack(thread, &stack, memory) {
        return None;
    }
    // Another thread may run on a part of this stack that it received.
    let ends = threads.iter().map(|other| other.stack_pointer).filter(|end| stack.contains(end));
    let end = ends.min()?.0.saturating_sub(RED_ZONE_BYTES);
    // Other mappings than the stack's are never excluded, whatever the control block contains.
    let start = stack.start.max(region.start);
    (start.0 < end).then_some(start..TargetAddr(end))
}

/// Whether the alternate signal stack (`uc_stack`) is a variable on the thread's own stack: the interrupted frames are below it.
fn is_on_nested_stack(thread: &ThreadState, stack: &Span, memory: &dyn Memory) -> bool {
    const SEARCHED_BYTES_MAX: u64 = 1 << 18;
    // The flags are `SS_ONSTACK` and `SS_AUTODISARM`.
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

/// The stack of a thread, including guard, thread-local storage and control block. glibc (`stackblock`, `stackblock_size`) and
/// musl (`map_base`, `map_size`) store it in two adjacent words of the control block, at offsets that differ between versions.
fn stack_of(block: TargetAddr, memory: &dyn Memory) -> Option<Span> {
    bounds(block, memory).map(|(_, stack)| stack)
}

/// Returns the offset of the two words with the stack's bounds in the control block, and the stack.
fn bounds(block: TargetAddr, memory: &dyn Memory) -> Option<(u64, Span)> {
    const BLOCK_BYTES: u64 = 4096;
    let word = |offset: u64| memory.word(TargetAddr(block.0.checked_add(offset)?));
    let pairs = (0..BLOCK_BYTES / WORD_BYTES).map(|index| index * WORD_BYTES);
    pairs.map_while(|offset| Some((offset, word(offset)?, word(offset + WORD_BYTES)?))).find_map(
        |(offset, start, size)| {
            let end = start.checked_add(size)?;
            let encloses = 0 < start && start < block.0 && block.0 < end;
            // The block is at the top of the stack. Only page-aligned stacks, allocated by the library, are supported.
            let is_top = end.saturating_sub(block.0) <= CONTROL_BLOCK_TOP_BYTES_MAX;
            let is_paged = start.is_multiple_of(BLOCK_BYTES) && size.is_multiple_of(BLOCK_BYTES);
            let fits = encloses && is_top && is_paged && size <= STACK_BYTES_MAX;
            fits.then_some((offset, TargetAddr(start)..TargetAddr(end)))
        },
    )
}

/// Maximum size of a stack. Pointers, which may appear in such a pair of words as well, are larger, except low addresses.
const STACK_BYTES_MAX: u64 = 1 << 36;

fn may_contain_stacks(region: &Region) -> bool {
    region.writable && !region.shared && matches!(region.kind, RegionKind::Anonymous { .. })
}

/// Unused parts of stacks that glibc keeps for new threads, with stale pointers. `span` contains the control blocks at their top.
fn ended_stacks(span: &Span, threads: &[ThreadState], running: &ControlBlocks, memory: &dyn Memory) -> Vec<Span> {
    let (mut found, mut buffer) = (Vec::new(), Vec::new());
    // Control blocks are aligned to lines.
    let mut start = span.start.0.next_multiple_of(LINE_BYTES as u64);
    while let Some(left) = span.end.0.checked_sub(start).filter(|left| *left > 0) {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(WINDOW_BYTES);
        let bytes = memory.slice(TargetAddr(start), length).unwrap_or_else(|| {
            buffer.resize(length, 0);
            let count = memory.read(TargetAddr(start), &mut buffer);
            &buffer[..count]
        });
        let blocks = own_lines(start, bytes).into_iter().filter_map(|line| line.checked_sub(MARK_OFFSET));
        let blocks = blocks.map(TargetAddr).filter(|block| !running.all.contains(block));
        found.extend(blocks.flat_map(|block| ended_stack(block, running.distance, threads, memory)));
        if length < WINDOW_BYTES {
            break;
        }
        start += (length - MORE_BYTES) as u64;
    }
    found
}

/// Addresses of lines that two words identify as those of control blocks. Makes no calls per line, because this scans gigabytes.
fn own_lines(start: u64, bytes: &[u8]) -> Vec<u64> {
    let words = bytes.as_chunks::<8>().0;
    let (mut index, mut address, mut own) = (0, start, Vec::new());
    while index + MARK_LINE_WORDS.max(MARK_WORDS[1] + 1) <= words.len() {
        let target = address.wrapping_add(MARK_TARGET);
        if MARK_WORDS.iter().all(|&word| u64::from_le_bytes(words[index + word]) == target) {
            own.push(address);
        }
        index += MARK_LINE_WORDS;
        address += LINE_BYTES as u64;
    }
    own
}

/// Number of bytes that are scanned at once where they have to be copied: whole lines.
const WINDOW_BYTES: usize = 1 << 16;

const LINE_BYTES: usize = 8 * MARK_LINE_WORDS;

/// Number of bytes at the end of a window that are scanned again, because a word of the last line is in the next line.
const MORE_BYTES: usize = if MARK_WORDS[1] < MARK_LINE_WORDS { 0 } else { LINE_BYTES };

/// Unused parts around this control block and of it; empty unless the block is certainly that of an exited thread.
fn ended_stack(block: TargetAddr, distance: Option<u64>, threads: &[ThreadState], memory: &dyn Memory) -> Vec<Span> {
    let Some((stack, is_released)) = stack_of_ended(block, threads, memory) else { return Vec::new() };
    let kept = arch::kept_of_ended(block.0, distance, is_released);
    let (start, end) = (TargetAddr(kept.start), TargetAddr(kept.end));
    let behind = (end < stack.end).then_some(end..stack.end);
    iter::once(stack.start..start.min(stack.end)).chain(behind).collect()
}

/// Returns the stack below this control block, and whether its thread was joined or detached, so that its return value is no
/// longer available. `None` unless the block is that of an exited thread.
fn stack_of_ended(block: TargetAddr, threads: &[ThreadState], memory: &dyn Memory) -> Option<(Span, bool)> {
    // In `struct pthread`, the kernel sets the TID to 0 at the thread's exit, and pthread_join to -1.
    const JOINED: u32 = u32::MAX;
    let links = block.0.checked_add(PTHREAD_LIST_OFFSET)?;
    let link = |address: u64| memory.word(TargetAddr(address));
    let (next, previous) = (link(links)?, link(links + WORD_BYTES)?);
    // Consistent links of both neighbours do not occur by chance.
    if link(next.checked_add(WORD_BYTES)?)? != links || link(previous)? != links || next == links {
        return None;
    }
    let tid = memory.word(TargetAddr(block.0 + PTHREAD_TID_OFFSET))?;
    let tid = u32::try_from(tid & u64::from(u32::MAX)).ok()?;
    if tid != 0 && tid != JOINED || threads.iter().any(|thread| thread.tid == Tid(tid)) {
        return None;
    }
    let (offset, stack) = bounds(block, memory)?;
    if threads.iter().any(|thread| stack.contains(&thread.stack_pointer) || stack.contains(&thread.thread_pointer)) {
        return None;
    }
    Some((stack, tid == JOINED || is_detached(block, offset, memory)))
}

/// Whether `joinid` of a `struct pthread` is the block itself, as of a detached thread. The field is at one of two distances
/// before the bounds of the stack, at `offset`, because the fields between them are aligned to 16 bytes.
fn is_detached(block: TargetAddr, offset: u64, memory: &dyn Memory) -> bool {
    let mut fields = [0x68, 0x70].into_iter().filter_map(|distance| block.0.checked_add(offset)?.checked_sub(distance));
    fields.any(|field| memory.word(TargetAddr(field)) == Some(block.0))
}

#[cfg(test)]
mod tests;
