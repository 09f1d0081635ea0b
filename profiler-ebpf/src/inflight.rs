//! Hooked calls between entry and return: the outermost of each thread. Calls nested in it are internal to the allocator
//! (`realloc` calls `malloc`) and are not counted again.
//!
//! Every call of an allocating function searches for its thread. The calls are therefore in an array of buckets instead of a
//! hash map: the search reads one cache line and calls no helper, and a bucket needs no lock, because only the thread itself
//! changes its entry. Thread ids are unique and mostly consecutive, so buckets fill evenly.
//!
//! A free entry of a bucket is claimed by an atomic exchange, and the return of a call is recognised by its cookie. Kernels that
//! lack either have a hash map of calls by thread instead ([`Any`]), whose elements have the cookie too.

use aya_ebpf::bindings::BPF_ANY;
use profiler_common::arch::CALL_BYTES;
use profiler_common::counter::Counter;
use profiler_common::hook::{RawCookie, Site};
use profiler_common::limits::{INFLIGHT_BUCKETS, INFLIGHT_WAYS};

use crate::asm;
use crate::call::{Any, Call, Store};
use crate::layout::{Inflight, InflightBucket, InflightCall};
use crate::maps::{INFLIGHT, INFLIGHT_CALLS, NESTED, count};

/// The entry of a thread in its bucket, or in the map.
struct Entry {
    /// In the bucket: its owner.
    owner: Option<*mut u64>,
    call: *const Inflight,
}

impl Entry {
    #[inline(always)]
    fn remove(self, thread: u64) {
        match self.owner {
            Some(owner) => asm::store(owner, 0),
            None => {
                let _ = INFLIGHT_CALLS.remove(&thread);
            }
        }
    }
}

#[inline(always)]
fn bucket(thread: u64) -> Option<*mut InflightBucket> {
    INFLIGHT.get_ptr_mut(thread as u32 & (INFLIGHT_BUCKETS - 1))
}

#[inline(always)]
fn find<S: Store>(thread: u64) -> Option<Entry> {
    if S::is_map() {
        let found = INFLIGHT_CALLS.get_ptr(&thread)?;
        // SAFETY: the pointer comes from a successful lookup.
        return Some(Entry { owner: None, call: unsafe { &raw const (*found).call } });
    }
    let bucket = bucket(thread)?;
    for way in 0..INFLIGHT_WAYS {
        // SAFETY: the pointer comes from a successful lookup, and the index is below the arrays' length.
        let owner = unsafe { (&raw mut (*bucket).threads).cast::<u64>().add(way) };
        // SAFETY: as above.
        if unsafe { owner.read_volatile() } == thread {
            // SAFETY: as above.
            let call = unsafe { (&raw mut (*bucket).calls).cast::<Inflight>().add(way) };
            return Some(Entry { owner: Some(owner), call });
        }
    }
    None
}

/// Whether the call is made by a hooked function that has not returned. Removes a call whose return was missed.
#[inline(always)]
pub(crate) fn nested<S: Store>(call: &Call<S>) -> bool {
    let Some(outer) = find::<S>(call.thread) else {
        return false;
    };
    // SAFETY: the pointer comes from a successful lookup. Only this thread changes the entry.
    let outer_sp = unsafe { (*outer.call).sp };
    // A nested call is deeper on the stack, or at the same depth after a tail jump.
    if call.sp() <= outer_sp {
        return true;
    }
    count(Counter::MissedReturn);
    outer.remove(call.thread);
    false
}

/// Whether this return address of a call is in a hooked function whose calls are followed to their return only if they are
/// sampled. The call is then nested in it, although it may not be stored. `ip` is the address of the probe.
#[inline(always)]
pub(crate) fn is_caller_hooked(cookie: RawCookie, ip: u64, caller: u64) -> bool {
    if !cookie.has_nested_callers() || cookie.site() != Site::Function as u8 {
        return false;
    }
    let Some(callers) = NESTED.get(u32::from(cookie.hook())) else {
        return false;
    };
    let distance = caller.wrapping_sub(ip) as i64;
    distance != 0 && callers.iter().any(|&listed| i64::from(listed) == distance)
}

/// Stores the call until its return. Returns whether the return must be handled. The thread must have no entry: see [`nested`].
#[inline(always)]
pub(crate) fn enter<S: Store>(call: &Call<S>, inflight: &Inflight) -> bool {
    if S::is_map() {
        let stored = InflightCall { cookie: call.cookie.0, call: *inflight };
        let is_stored = INFLIGHT_CALLS.insert(&call.thread, &stored, u64::from(BPF_ANY)).is_ok();
        if !is_stored {
            count(Counter::InflightFull);
        }
        return is_stored;
    }
    let Some(bucket) = bucket(call.thread) else {
        return false;
    };
    for way in 0..INFLIGHT_WAYS {
        // SAFETY: the pointer comes from a successful lookup, and the index is below the arrays' length.
        let owner = unsafe { (&raw mut (*bucket).threads).cast::<u64>().add(way) };
        // SAFETY: as above.
        if unsafe { owner.read_volatile() } == 0 && asm::claim(owner, call.thread) {
            // SAFETY: as above; the entry is this thread's now.
            unsafe { (&raw mut (*bucket).calls).cast::<Inflight>().add(way).write(*inflight) };
            return true;
        }
    }
    count(Counter::InflightFull);
    false
}

/// Removes and returns the stored call that this return belongs to.
#[inline(always)]
pub(crate) fn leave<S: Store>(call: &Call<S>) -> Option<Inflight> {
    let entry = find::<S>(call.thread)?;
    // SAFETY: as in `nested`.
    let inflight = unsafe { *entry.call };
    // The return of a nested call, or of a tail call of the outer one, is not the return of the outer call.
    // In a stub, the return address is still on the stack.
    let popped = if call.cookie.site() == Site::StubReturn as u8 { 0 } else { CALL_BYTES };
    if inflight.hook != call.cookie.hook() || inflight.sp + popped != call.sp() {
        return None;
    }
    entry.remove(call.thread);
    Some(inflight)
}

/// Removes the call that a thread is in: it will not return.
#[inline(always)]
pub(crate) fn abandon(thread: u64) {
    if let Some(entry) = find::<Any>(thread) {
        entry.remove(thread);
    }
}
