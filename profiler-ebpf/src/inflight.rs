//! Hooked calls between entry and return, one per thread: the outermost. Calls inside it are the allocator's own
//! affair (`realloc` calling `malloc`) and are not counted again.

use aya_ebpf::bindings::BPF_ANY;
use profiler_common::counter::Counter;
use profiler_common::live::LiveBlock;

use crate::counter;
use crate::hook::Call;
use crate::maps::INFLIGHT;

/// What the return must know of the entry.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Inflight {
    /// Stack pointer at entry: the return has it 8 higher.
    pub(crate) sp: u64,
    /// Requested size in bytes.
    pub(crate) size_bytes: u64,
    /// Where the result is stored (`posix_memalign`), or the old block (`realloc`); else 0.
    pub(crate) pointer: u64,
    /// The stack, when sampled.
    pub(crate) stack_id: u64,
    /// The old block as it was in the live set, when `old_tracked`. Calls that map memory keep other words here.
    pub(crate) old: LiveBlock,
    /// The interval that the call was sampled at, as blocks carry it, or 0 when it was not sampled.
    pub(crate) interval_code: u32,
    pub(crate) hook: u16,
    /// A [`CallShape`](profiler_common::hook::CallShape).
    pub(crate) shape: u8,
    /// 1 when `old` was live and sampled.
    pub(crate) old_tracked: u8,
}

/// Whether the call is made by a hooked function that has not returned. Clears a call whose return never came.
#[inline(always)]
pub(crate) fn nested(call: &Call) -> bool {
    let Some(outer) = INFLIGHT.get_ptr(&call.thread) else {
        return false;
    };
    // SAFETY: the pointer comes from a successful lookup. The entry is this thread's own, so nobody changes it now.
    let outer_sp = unsafe { (*outer).sp };
    // A call inside the outer one runs deeper on the stack, or at the same depth after a tail jump.
    if call.sp() <= outer_sp {
        return true;
    }
    counter::raise(Counter::MissedReturn);
    let _ = INFLIGHT.remove(&call.thread);
    false
}

/// Notes the call until its return. False when there is no room: then the return need not be seen.
#[inline(always)]
pub(crate) fn enter(call: &Call, inflight: &Inflight) -> bool {
    let noted = INFLIGHT.insert(&call.thread, inflight, u64::from(BPF_ANY)).is_ok();
    if !noted {
        counter::raise(Counter::InflightFull);
    }
    noted
}

/// Takes the noted call that this return belongs to.
#[inline(always)]
pub(crate) fn leave(call: &Call) -> Option<Inflight> {
    let entered = INFLIGHT.get_ptr(&call.thread)?;
    // SAFETY: as in `nested`.
    let inflight = unsafe { *entered };
    // The return of a nested call, or of the tail of the outer one, is not the outer one's.
    if inflight.hook != call.cookie.hook() || inflight.sp + 8 != call.sp() {
        return None;
    }
    let _ = INFLIGHT.remove(&call.thread);
    Some(inflight)
}
