//! Memory of a process for the frame of the first injected call, which maps the rest, and of the last call, which unmaps it.
//!
//! The frame is at the lower end of the first thread's stack, the only stack whose bounds the kernel knows. The thread that makes
//! the calls may be on another stack, of which nothing is known: that of a coroutine or a signal handler, with other data right
//! below it. The chosen memory cannot contain data: it is below all stack pointers, far enough to stay unused for the length of a
//! call, and either consists of zeros, to which it is reset, or was not mapped before: the kernel extends the stack for it.

use heapbpf_linux::memory::page_bytes;
use heapbpf_linux::proc::maps::{Region, RegionKind};

use super::code::read;
use crate::collect::process::StoppedThread;

/// Space between the frame and a stack pointer of the stack. The thread may use it before another thread has returned from its
/// call if this process is killed.
const DISTANCE_BYTES: u64 = 16 << 10;

/// Space that the kernel keeps below a stack (`stack_guard_gap` in mm/mmap.c).
const GUARD_BYTES: u64 = 1 << 20;

/// Returns an address at which a frame of this size can be written while all threads of the process are held. `chosen` is to make
/// the calls.
pub(crate) fn find(
    chosen: &StoppedThread,
    threads: &[StoppedThread],
    mapped: &[Region],
    size_bytes: u64,
) -> Option<u64> {
    let at = mapped.iter().position(|region| region.kind == RegionKind::Stack && region.writable && !region.shared)?;
    let stack = &mapped[at];
    let pointer =
        |held: &StoppedThread| held.tracee.registers().ok().flatten().map(|registers| registers.stack_pointer());
    let is_inside = |pointer: &u64| (stack.start.0..stack.end.0).contains(pointer);
    // A thread that was killed has no registers.
    let lowest = threads.iter().filter_map(pointer).filter(is_inside).min();
    let free_until = lowest.unwrap_or(stack.end.0).saturating_sub(DISTANCE_BYTES);
    let below = at.checked_sub(1).map_or(0, |below| mapped[below].end.0);
    let [inside, extended] = places(stack.start.0, free_until, below, size_bytes);
    let is_empty = |address: u64| {
        let bytes = read(chosen.tracee.pid(), address, size_bytes);
        bytes.len() as u64 == size_bytes && bytes.iter().all(|&byte| byte == 0)
    };
    inside.filter(|&address| is_empty(address)).or(extended)
}

/// Returns the address at the lower end of a stack and the one below it, where there is space. `below` is the end of the next
/// mapping.
fn places(start: u64, free_until: u64, below: u64, size_bytes: u64) -> [Option<u64>; 2] {
    let size_bytes = size_bytes.next_multiple_of(page_bytes());
    let inside = Some(start).filter(|start| start.saturating_add(size_bytes) <= free_until);
    let end = start.min(free_until - free_until % page_bytes());
    let extended = end.checked_sub(size_bytes).filter(|&address| below.saturating_add(GUARD_BYTES) <= address);
    [inside, extended]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_far_below_what_is_in_use() {
        let page = page_bytes();
        let start = 1 << 40;
        let check = |free_until: u64, below: u64, expected: [Option<u64>; 2]| {
            assert_eq!(places(start, free_until, below, page + 1), expected, "{free_until:#x} {below:#x}");
        };
        check(start + 2 * page, 0, [Some(start), Some(start - 2 * page)]);
        check(start + 2 * page - 1, 0, [None, Some(start - 2 * page)]);
        check(start - 1, 0, [None, Some(start - 3 * page)]);
        check(start + 2 * page, start - 2 * page - GUARD_BYTES, [Some(start), Some(start - 2 * page)]);
        check(start + 2 * page, start - page - GUARD_BYTES, [Some(start), None]);
        check(0, 0, [None, None]);
    }
}
