//! Puts records into the ring and counts those that find no room.

use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use aya_ebpf::helpers::bpf_ringbuf_output;
use core::ffi::c_void;
use profiler_common::counter::Counter;

use crate::maps::EVENTS;
use crate::{config, counter};

/// Records are at most this long, so a fill level that rises by records cannot jump over a band of this width. (Raw
/// stacks are longer; where they jump over it, they wait for the agent's timer.)
const WAKEUP_BAND_BYTES: u64 = 16 << 10;

/// A forced wake-up costs 7 to 9 µs, and without flags a reader that keeps up is woken for every record. So the agent
/// reads on a timer, and is woken only when the fill level passes a mark between two readings.
#[inline(always)]
fn wakeup_flags() -> u64 {
    let unread = EVENTS.query(u64::from(BPF_RB_AVAIL_DATA));
    let mark = config::wakeup_bytes();
    if unread >= mark && unread - mark < WAKEUP_BAND_BYTES {
        u64::from(BPF_RB_FORCE_WAKEUP)
    } else {
        u64::from(BPF_RB_NO_WAKEUP)
    }
}

/// Sends a record of fixed size.
#[inline(always)]
pub(crate) fn record<T: 'static>(value: T) -> bool {
    put(value, wakeup_flags)
}

/// Sends a record that the agent has to see at once.
#[inline(always)]
pub(crate) fn urgent<T: 'static>(value: T) -> bool {
    put(value, || u64::from(BPF_RB_FORCE_WAKEUP))
}

/// The flags are asked for when the record lies in the ring.
#[inline(always)]
fn put<T: 'static>(value: T, flags: impl FnOnce() -> u64) -> bool {
    let Some(mut entry) = EVENTS.reserve::<T>(0) else {
        counter::raise(Counter::RingFull);
        return false;
    };
    entry.write(value);
    entry.submit(flags());
    counter::raise(Counter::Events);
    true
}

/// Sends `length` bytes from `start`, which must point into a map value or the stack with that much room.
#[inline(always)]
pub(crate) fn bytes(start: *const c_void, length: u64) -> bool {
    // SAFETY: the caller vouches for the range, and the verifier checks it.
    let result =
        unsafe { bpf_ringbuf_output((&raw const EVENTS).cast_mut().cast(), start.cast_mut(), length, wakeup_flags()) };
    if result < 0 {
        counter::raise(Counter::RingFull);
        return false;
    }
    counter::raise(Counter::Events);
    true
}
