//! Decides which calls are sampled.

use aya_ebpf::helpers::bpf_get_prandom_u32;
use profiler_common::sampling::SamplingRate;
use profiler_common::target::BORROWS_MEMORY;

use crate::call::Call;
use crate::maps::{RATES, TARGETS};

/// Samples a call at the current rate of its heap. Returns the interval's code if the call is sampled.
///
/// Links outlive the state of their process: they survive an exec to a program that is not a target, and removing them takes
/// a while. Blocks of such a process would never leave the live set. The check follows the sampling decision, so unsampled
/// calls do not pay for it.
#[inline(always)]
pub(crate) fn sample(call: &Call, size_bytes: u64) -> Option<u32> {
    let rate: &SamplingRate = RATES.get(u32::from(call.cookie.heap()))?;
    // A rate of 0 has not been set: the heap is not sampled.
    if rate.interval_bytes == 0 {
        return None;
    }
    // SAFETY: the helper takes no arguments.
    let sampled = rate.samples(size_bytes, || unsafe { bpf_get_prandom_u32() });
    if sampled && is_target(call.tgid()) { Some(rate.interval_code) } else { None }
}

/// Whether the heap is recorded at all: for calls that are recorded at any rate.
#[inline(always)]
pub(crate) fn is_on(heap: u8) -> bool {
    match RATES.get(u32::from(heap)) {
        Some(rate) => rate.interval_bytes != 0,
        None => false,
    }
}

/// Whether the agent keeps a ledger of the process.
#[inline(always)]
pub(crate) fn is_target(tgid: u32) -> bool {
    match TARGETS.get_ptr(&tgid) {
        // SAFETY: the pointer comes from a successful lookup.
        Some(flags) => (unsafe { *flags }) & BORROWS_MEMORY == 0,
        None => false,
    }
}
