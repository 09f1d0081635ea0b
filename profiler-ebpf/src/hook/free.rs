//! Calls that take a block.

use crate::hook::Call;
use crate::live;

/// A block that is not in the live set was not sampled, or was made before the session: nothing happens.
#[inline(always)]
pub(crate) fn entry(call: &Call) {
    let pointer = call.pointer();
    if pointer != 0 {
        let _ = live::take(call, pointer);
    }
}
