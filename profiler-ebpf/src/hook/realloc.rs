//! Calls that take a block and make another, elsewhere or where it is.

use profiler_common::live::LiveBlock;

use crate::hook::Call;
use crate::inflight::{self, Inflight};
use crate::{live, sample, stack};

/// The old block leaves the live set now, not at the return: by then another thread may have been given its address.
/// Should the call fail, the return puts it back. True when the return has to be seen.
#[inline(always)]
pub(crate) fn entry(call: &Call, shape: u8) -> bool {
    if inflight::nested(call) {
        return false;
    }
    let Some(size_bytes) = call.size_bytes() else {
        // The call will fail and leave the old block alone. It is still noted, should it call others before.
        return note(call, shape, u64::MAX, 0, 0, 0, None);
    };
    let pointer = call.pointer();
    let old = if pointer == 0 { None } else { live::take(call, pointer) };
    let interval = sample::draw(call, size_bytes);
    if interval.is_none() && old.is_none() && !call.cookie.delegates() {
        return false;
    }
    let stack_id = if interval.is_some() { stack::take(call) } else { 0 };
    note(call, shape, size_bytes, pointer, stack_id, interval.unwrap_or(0), old)
}

#[inline(always)]
fn note(
    call: &Call,
    shape: u8,
    size_bytes: u64,
    pointer: u64,
    stack_id: u64,
    interval_code: u32,
    old: Option<LiveBlock>,
) -> bool {
    inflight::enter(
        call,
        &Inflight {
            sp: call.sp(),
            size_bytes,
            pointer,
            stack_id,
            old: old.unwrap_or(LiveBlock::NONE),
            interval_code,
            hook: call.cookie.hook(),
            shape,
            old_tracked: old.is_some() as u8,
        },
    )
}
