//! Writes records to the ring buffer and counts dropped ones.

use core::ffi::c_void;

use aya_ebpf::bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP};
use aya_ebpf::helpers::{bpf_ktime_get_ns, bpf_ringbuf_output};
use profiler_common::counter::Counter;
use profiler_common::sampling::back_pressure_exponent;

use crate::config;
use crate::maps::{COUNTERS, EVENTS, FILLING, count};

/// Maximum length of a record, so that a fill level which rises by records cannot skip a band of this width. (Raw stacks are
/// longer; if they skip it, they wait for the agent's timer.)
const WAKEUP_BAND_BYTES: u64 = 16 << 10;

/// A forced wake-up costs 7 to 9 µs, and without flags a reader that keeps up is woken for every record. So the agent reads
/// on a timer, and is woken only if the fill level passes a threshold between two reads.
#[inline(always)]
fn wakeup_flags() -> u64 {
    let unread = unread_bytes();
    note_unread(unread);
    let threshold = config::wakeup_bytes();
    if unread >= threshold && unread - threshold < WAKEUP_BAND_BYTES {
        u64::from(BPF_RB_FORCE_WAKEUP)
    } else {
        u64::from(BPF_RB_NO_WAKEUP)
    }
}

/// Bytes in the ring buffer that the agent has not read.
#[inline(always)]
pub(crate) fn unread_bytes() -> u64 {
    EVENTS.query(u64::from(BPF_RB_AVAIL_DATA))
}

/// Notes whether the ring buffer is filling, so that a sampled call need not query it once more.
#[inline(always)]
fn note_unread(unread: u64) {
    if config::back_pressure_max() == 0 {
        return;
    }
    if let Some(noted) = COUNTERS.get_ptr_mut(FILLING) {
        // SAFETY: the pointer comes from a successful lookup. A program that preempts this one may write the word, too.
        unsafe { noted.write_volatile(u64::from(back_pressure_exponent(unread, config::ring_shift()) != 0)) }
    }
}

/// Whether half of the ring buffer was unread at this CPU's last record. While it was, each sampled call has to look for itself: if none
/// of them is recorded, nothing is noted.
#[inline(always)]
pub(crate) fn is_filling() -> bool {
    match COUNTERS.get_ptr(FILLING) {
        // SAFETY: as above.
        Some(noted) => unsafe { noted.read_volatile() != 0 },
        None => false,
    }
}

/// Writes a record of fixed size.
#[inline(always)]
pub(crate) fn record<T: 'static>(value: T) -> bool {
    put(value, wakeup_flags)
}

/// Writes a record and wakes the agent.
#[inline(always)]
pub(crate) fn urgent<T: 'static>(value: T) -> bool {
    put(value, || u64::from(BPF_RB_FORCE_WAKEUP))
}

/// `flags` is called after the record has been written.
#[inline(always)]
fn put<T: 'static>(value: T, flags: impl FnOnce() -> u64) -> bool {
    let Some(mut entry) = EVENTS.reserve::<T>(0) else {
        count(Counter::RingFull);
        return false;
    };
    entry.write(value);
    entry.submit(flags());
    count(Counter::Events);
    true
}

/// Writes `length` bytes from `start`, which must point into a map value or the stack with at least that much space.
/// `is_urgent` wakes the agent.
#[inline(always)]
pub(crate) fn bytes(start: *const c_void, length: u64, is_urgent: bool) -> bool {
    let flags = if is_urgent { u64::from(BPF_RB_FORCE_WAKEUP) } else { wakeup_flags() };
    // SAFETY: the caller guarantees the range, and the verifier checks it.
    let result = unsafe { bpf_ringbuf_output((&raw const EVENTS).cast_mut().cast(), start.cast_mut(), length, flags) };
    if result < 0 {
        count(Counter::RingFull);
        return false;
    }
    count(Counter::Events);
    true
}

/// `CLOCK_MONOTONIC` in nanoseconds.
#[inline(always)]
pub(crate) fn now_ns() -> u64 {
    // SAFETY: the helper takes no arguments.
    unsafe { bpf_ktime_get_ns() }
}
