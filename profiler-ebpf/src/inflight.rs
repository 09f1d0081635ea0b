//! Hooked calls between entry and return: the outermost of each thread. Calls nested in it are internal to the allocator
//! (`realloc` calls `malloc`) and are not counted again.

use aya_ebpf::bindings::BPF_ANY;
use profiler_common::counter::Counter;
use profiler_common::hook::Site;

use crate::call::Call;
use crate::layout::Inflight;
use crate::maps::{INFLIGHT, count};

/// Whether the call is made by a hooked function that has not returned. Removes a call whose return was missed.
#[inline(always)]
pub(crate) fn nested(call: &Call) -> bool {
    let Some(outer) = INFLIGHT.get_ptr(&call.thread) else {
        return false;
    };
    // SAFETY: the pointer comes from a successful lookup. Only this thread changes the entry.
    let outer_sp = unsafe { (*outer).sp };
    // A nested call is deeper on the stack, or at the same depth after a tail jump.
    if call.sp() <= outer_sp {
        return true;
    }
    count(Counter::MissedReturn);
    let _ = INFLIGHT.remove(&call.thread);
    false
}

/// Stores the call until its return. Returns whether the return must be handled.
#[inline(always)]
pub(crate) fn enter(call: &Call, inflight: &Inflight) -> bool {
    let entered = INFLIGHT.insert(&call.thread, inflight, u64::from(BPF_ANY)).is_ok();
    if !entered {
        count(Counter::InflightFull);
    }
    entered
}

/// Removes and returns the stored call that this return belongs to.
#[inline(always)]
pub(crate) fn leave(call: &Call) -> Option<Inflight> {
    let entered = INFLIGHT.get_ptr(&call.thread)?;
    // SAFETY: as in `nested`.
    let inflight = unsafe { *entered };
    // The return of a nested call, or of a tail call of the outer one, is not the return of the outer call.
    // In a stub, the return address is still on the stack.
    let popped = if call.cookie.site() == Site::StubReturn as u8 { 0 } else { 8 };
    if inflight.hook != call.cookie.hook() || inflight.sp + popped != call.sp() {
        return None;
    }
    let _ = INFLIGHT.remove(&call.thread);
    Some(inflight)
}
