//! Decides which calls are sampled.

use aya_ebpf::helpers::bpf_get_prandom_u32;
use profiler_common::sampling::SamplingRate;

use crate::maps::RATES;

/// A draw at a heap's present rate: the interval's code when the call is sampled.
#[inline(always)]
pub(crate) fn draw(heap: u8, size_bytes: u64) -> Option<u32> {
    let rate: &SamplingRate = RATES.get(u32::from(heap))?;
    // A rate of 0 has not been set: the heap is not sampled.
    if rate.interval_bytes == 0 {
        return None;
    }
    // SAFETY: the helper takes no arguments.
    if rate.samples(size_bytes, || unsafe { bpf_get_prandom_u32() }) { Some(rate.interval_code) } else { None }
}

/// Whether the heap is being recorded at all: for calls that are taken whatever the rate.
#[inline(always)]
pub(crate) fn is_on(heap: u8) -> bool {
    match RATES.get(u32::from(heap)) {
        Some(rate) => rate.interval_bytes != 0,
        None => false,
    }
}
