//! Calls that make a block and take none.

use profiler_common::live::LiveBlock;

use crate::hook::Call;
use crate::inflight::{self, Inflight, Shape};
use crate::{sample, stack};

/// No block: what `Inflight::old` holds when there is none.
pub(super) const NO_BLOCK: LiveBlock =
    LiveBlock { size_bytes: 0, time_ns: 0, stack_id: 0, interval_bytes: 0, hook: 0, heap: 0, reserved: 0 };

/// The block will be the return value.
#[inline(always)]
pub(crate) fn entry(call: &Call) -> u32 {
    enter(call, Shape::Alloc, 0)
}

/// The block will be stored through the pointer argument.
#[inline(always)]
pub(crate) fn entry_out(call: &Call) -> u32 {
    enter(call, Shape::AllocOut, call.pointer())
}

#[inline(always)]
fn enter(call: &Call, shape: Shape, pointer: u64) -> u32 {
    if inflight::nested(call) {
        return 0;
    }
    let size_bytes = call.size_bytes();
    let interval = match size_bytes {
        Some(size_bytes) => sample::draw(call.cookie.heap(), size_bytes),
        None => None,
    };
    // A function that calls other hooked functions is noted even when it is not sampled, or they would be drawn for the
    // same block.
    if interval.is_none() && !call.cookie.delegates() {
        return 0;
    }
    let stack_id = if interval.is_some() { stack::take(call) } else { 0 };
    inflight::enter(
        call,
        &Inflight {
            sp: call.sp(),
            size_bytes: size_bytes.unwrap_or(0),
            pointer,
            stack_id,
            old: NO_BLOCK,
            interval_bytes: interval.unwrap_or(0),
            hook: call.cookie.hook(),
            shape: shape as u8,
            old_tracked: 0,
        },
    );
    0
}
