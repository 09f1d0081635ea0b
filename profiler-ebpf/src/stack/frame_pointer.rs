//! Unwinds by frame pointers: `rbp` points to the caller's saved `rbp`, the return address lies above it (System V psABI
//! for x86-64, 3.4.1: the outermost frame has `rbp` 0).

use aya_ebpf::helpers::bpf_probe_read_user;
use profiler_common::limits::STACK_FRAMES_MAX;
use profiler_common::stack::{StackEnd, StackHasher};

use crate::hook::Call;
use crate::scratch::Scratch;
use crate::stack::{Unwound, put};

/// Walks from a function's entry, where the frame pointer is still the caller's and the return address is on top.
#[inline(always)]
pub(super) fn unwind(call: &Call, scratch: *mut Scratch, mut hasher: StackHasher) -> Unwound {
    // SAFETY: the helper checks the address.
    let Ok(caller) = (unsafe { bpf_probe_read_user(call.sp() as *const u64) }) else {
        return Unwound { depth: 0, end: StackEnd::Unreadable, hasher };
    };
    hasher.add(caller);
    put(scratch, 0, caller);
    let mut below = call.sp();
    let mut bp = call.bp();
    for depth in 1..STACK_FRAMES_MAX {
        if bp == 0 {
            return Unwound { depth: depth as u64, end: StackEnd::Complete, hasher };
        }
        // Frames lie outwards of each other; anything else is a register that holds no frame pointer.
        if bp <= below || bp & 7 != 0 {
            return Unwound { depth: depth as u64, end: StackEnd::BrokenChain, hasher };
        }
        // SAFETY: as above.
        let Ok([next, address]) = (unsafe { bpf_probe_read_user(bp as *const [u64; 2]) }) else {
            return Unwound { depth: depth as u64, end: StackEnd::Unreadable, hasher };
        };
        if address == 0 {
            return Unwound { depth: depth as u64, end: StackEnd::Complete, hasher };
        }
        hasher.add(address);
        put(scratch, depth, address);
        below = bp;
        bp = next;
    }
    Unwound { depth: STACK_FRAMES_MAX as u64, end: StackEnd::Truncated, hasher }
}
