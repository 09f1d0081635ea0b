//! Decides which calls are sampled.

use aya_ebpf::helpers::bpf_get_prandom_u32;
use profiler_common::sampling::SamplingRate;

use crate::hook::Call;
use crate::maps::RATES;
use crate::process;

/// A draw at the present rate of a call's heap: the interval's code when the call is sampled.
///
/// Links outlive what is made of their process: they stay over an exec to a program that nobody asked for, and removing them
/// takes a while. The blocks of such a process nobody would take out of the live set. Asking after the draw costs only the
/// calls that are sampled.
#[inline(always)]
pub(crate) fn draw(call: &Call, size_bytes: u64) -> Option<u32> {
    let rate: &SamplingRate = RATES.get(u32::from(call.cookie.heap()))?;
    // A rate of 0 has not been set: the heap is not sampled.
    if rate.interval_bytes == 0 {
        return None;
    }
    // SAFETY: the helper takes no arguments.
    let sampled = rate.samples(size_bytes, || unsafe { bpf_get_prandom_u32() });
    if sampled && process::is_target(call.tgid()) { Some(rate.interval_code) } else { None }
}

/// Whether the heap is being recorded at all: for calls that are taken whatever the rate.
#[inline(always)]
pub(crate) fn is_on(heap: u8) -> bool {
    match RATES.get(u32::from(heap)) {
        Some(rate) => rate.interval_bytes != 0,
        None => false,
    }
}
