//! Decides which calls are sampled.

use aya_ebpf::helpers::bpf_get_prandom_u32;
use profiler_common::arch::STUB_INTERVAL;
use profiler_common::counter::Counter;
use profiler_common::hook::{ProbeScope, Site};
use profiler_common::interval::Interval;
use profiler_common::sampling::{self, SamplingRate};
use profiler_common::target::{
    BORROWS_MEMORY, OTHER_PROCESSES, REPORTS_FREES, SAMPLED_CALLS, SHARES_PROBES, TRAPPED_CALLS,
};

use crate::call::{Call, Store};
use crate::maps::{RATES, STUB_CALLS, TARGETS, count};
use crate::{asm, config, emit, inflight};

/// Samples a call at the current rate of its heap. Returns the interval's code if the call is sampled.
///
/// Links outlive the state of their process: they survive an exec to a program that is not a target, and removing them takes
/// a while. Blocks of such a process would never leave the live set. The check follows the sampling decision, so unsampled
/// calls through a target's own probe do not pay for it.
#[inline(always)]
pub(crate) fn sample(call: &Call<impl Store>, size_bytes: u64) -> Option<u32> {
    let rate: &SamplingRate = RATES.get(u32::from(call.cookie.heap()))?;
    // A rate of 0 has not been set: the heap is not sampled.
    if rate.interval_bytes == 0 {
        return None;
    }
    let interval_code = if call.cookie.site() == STUB_ENTRY {
        // The stub decided. A target that forges it falsifies its own profile.
        Interval::from_code(call.register(STUB_INTERVAL.number()) as u32).code()
    } else if rate.samples_by(size_bytes, random, |x| probability(x)) {
        rate.interval_code
    } else {
        0
    };
    if interval_code == 0 {
        return None;
    }
    let interval_code = if emit::is_filling() { resample(size_bytes, interval_code) } else { interval_code };
    let chance = if size_bytes < u64::from(rate.interval_bytes) { Chance::Random } else { Chance::Certain };
    if interval_code != 0 && is_recorded(call, chance) { Some(interval_code) } else { None }
}

#[inline(always)]
fn random() -> u32 {
    // SAFETY: the helper takes no arguments.
    unsafe { bpf_get_prandom_u32() }
}

/// See [`sampling::probability`]. A global function, as the next one, so that the verifier checks the arithmetic once.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn probability(x: u64) -> u64 {
    sampling::probability(x)
}

/// Samples a sampled call again if the ring buffer is filling: see [`sampling::resampled`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn resample(size_bytes: u64, interval_code: u32) -> u32 {
    let exponent_max = config::back_pressure_max();
    let exponent = sampling::back_pressure_exponent(emit::unread_bytes(), config::ring_shift());
    if exponent == 0 {
        return interval_code;
    }
    let exponent = if exponent > exponent_max { exponent_max } else { exponent };
    let random = (random() as u64) << 32 | random() as u64;
    sampling::resampled(size_bytes, interval_code, exponent, random, |x| probability(x))
}

/// Whether two probes of the same call take the same decision.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chance {
    Certain,
    Random,
}

/// Counts a call of a process with stubs: one that met a probe in the function, or that a stub has sampled. Nested ones are internal
/// to the allocator.
#[inline(always)]
pub(crate) fn count_stub_call(call: &Call<impl Store>) {
    let field = if call.cookie.site() == FUNCTION {
        TRAPPED_CALLS
    // Without an interval, a stub passes a block that may be tracked to the probe.
    } else if call.register(STUB_INTERVAL.number()) as u32 != 0 {
        SAMPLED_CALLS
    } else {
        return;
    };
    let own = STUB_CALLS.get_ptr_mut(&call.tgid());
    let calls = if own.is_none() && field == SAMPLED_CALLS { STUB_CALLS.get_ptr_mut(&OTHER_PROCESSES) } else { own };
    if let Some(calls) = calls
        && (field == SAMPLED_CALLS || !inflight::nested(call))
    {
        // SAFETY: both fields are in the map's value.
        asm::atomic_add(unsafe { calls.cast::<u64>().add(field) }, 1);
    }
}

/// Whether the heap is recorded at all: for calls that are recorded at any rate.
#[inline(always)]
pub(crate) fn is_on(heap: u8) -> bool {
    match RATES.get(u32::from(heap)) {
        Some(rate) => rate.interval_bytes != 0,
        None => false,
    }
}

/// Whether the agent keeps a ledger of the process, and this probe records its calls.
#[inline(always)]
pub(crate) fn is_recorded(call: &Call<impl Store>, chance: Chance) -> bool {
    match TARGETS.get_ptr(&call.tgid()) {
        // SAFETY: the pointer comes from a successful lookup.
        Some(flags) => is_recorded_by(call.cookie.scope(), unsafe { *flags }, chance),
        None => false,
    }
}

/// Whether frees of blocks that are not in the live set are reported.
#[inline(always)]
pub(crate) fn reports_frees(call: &Call<impl Store>) -> bool {
    match TARGETS.get_ptr(&call.tgid()) {
        // SAFETY: the pointer comes from a successful lookup.
        Some(flags) => (unsafe { *flags }) & REPORTS_FREES != 0,
        None => false,
    }
}

/// The kernel calls the newest probe first (`consumer_add` in kernel/events/uprobes.c, up to 7.3): the shared one. If the agent
/// sets the flag after that one has left a call to the process's own probe, the own one must still record it. In all other
/// calls, the own one finds that the shared one has stored the call (see [`inflight::nested`]), unless the decision was random:
/// then it must not draw again.
#[inline(always)]
fn is_recorded_by(scope: u8, flags: u32, chance: Chance) -> bool {
    let shares = flags & SHARES_PROBES != 0;
    let is_in_scope = match scope {
        ANY => true,
        SHARED => shares,
        _ => !shares || chance == Chance::Certain,
    };
    flags & BORROWS_MEMORY == 0 && is_in_scope
}

/// Whether the probe must not even note the call: another probe records it, or the probe is shared and the caller not a target.
#[inline(always)]
pub(crate) fn is_foreign(call: &Call<impl Store>) -> bool {
    let scope = call.cookie.scope();
    // Functions that may throw have probes in processes that are not targets.
    if scope == ANY && !call.cookie.may_throw() {
        return false;
    }
    match TARGETS.get_ptr(&call.tgid()) {
        // SAFETY: the pointer comes from a successful lookup.
        Some(flags) => !is_recorded_by(scope, unsafe { *flags }, Chance::Certain),
        None if scope != PROCESS => {
            count(Counter::ForeignCalls);
            true
        }
        // What has been recorded of it may still be freed.
        None => false,
    }
}

/// As [`is_foreign`], for calls that are not noted unless they are sampled: then [`sample`] checks, and only for them.
#[inline(always)]
pub(crate) fn is_foreign_alloc(call: &Call<impl Store>) -> bool {
    (call.cookie.scope() == SHARED || call.cookie.delegates()) && is_foreign(call)
}

const ANY: u8 = ProbeScope::Any as u8;
const PROCESS: u8 = ProbeScope::Process as u8;
const SHARED: u8 = ProbeScope::Shared as u8;
const STUB_ENTRY: u8 = Site::StubEntry as u8;
const FUNCTION: u8 = Site::Function as u8;
