//! Calls that make a block and take none.

use profiler_common::counter::Counter;
use profiler_common::live::LiveBlock;

use crate::hook::{ALLOC_OUT, Call};
use crate::inflight::{self, Inflight};
use crate::{config, counter, sample, stack};

/// True when the return has to be seen.
#[inline(always)]
pub(crate) fn entry(call: &Call, shape: u8) -> bool {
    if inflight::nested(call) {
        return false;
    }
    let size_bytes = call.size_bytes();
    // Such a call is not noted either, so one that it makes in its turn is drawn for itself.
    if call.cookie.may_throw() && is_throw_likely(size_bytes) {
        counter::raise(Counter::MayThrow);
        return false;
    }
    let interval = match size_bytes {
        Some(size_bytes) => sample::draw(call, size_bytes),
        None => None,
    };
    // A function that calls other hooked functions is noted even when it is not sampled, or they would be drawn for the
    // same block.
    if interval.is_none() && !call.cookie.delegates() {
        return false;
    }
    let stack_id = if interval.is_some() { stack::take(call) } else { 0 };
    inflight::enter(
        call,
        &Inflight {
            sp: call.sp(),
            size_bytes: size_bytes.unwrap_or(0),
            pointer: if shape == ALLOC_OUT { call.pointer() } else { 0 },
            stack_id,
            old: LiveBlock::NONE,
            interval_code: interval.unwrap_or(0),
            hook: call.cookie.hook(),
            shape,
            old_tracked: 0,
        },
    )
}

/// Whether a function that throws where others return null may do so, asked for this much. An exception does not get
/// past a return address that a probe has replaced, so the return of such a call is better not seen.
#[inline(always)]
fn is_throw_likely(size_bytes: Option<u64>) -> bool {
    match size_bytes {
        Some(size_bytes) => size_bytes >= config::throw_safe_bytes(),
        None => true,
    }
}
