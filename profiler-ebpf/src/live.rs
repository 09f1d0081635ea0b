//! The live set: enters, takes out, and tells the agent.

use core::arch::asm;

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::bpf_ktime_get_ns;
use profiler_common::counter::Counter;
use profiler_common::live::{LiveBlock, LiveKey};
use profiler_common::record::{AllocRecord, FreeRecord, RecordHeader, RecordKind};

use crate::hook::Call;
use crate::maps::{LIVE, LIVE_COUNTS};
use crate::{counter, emit, sample};

/// `EEXIST` of the kernel's errno table.
const EEXIST: i32 = 17;

/// Enters a block; tells the agent by a record of this kind.
#[inline(always)]
pub(crate) fn enter(call: &Call, kind: RecordKind, address: u64, block: LiveBlock) {
    let key = LiveKey::new(call.tgid(), address);
    if let Err(error) = insert(&key, &block) {
        // Two live blocks cannot share an address, so the old one's free was not seen. The new one takes its place.
        if error == -EEXIST {
            counter::raise(Counter::MissedFree);
            let _ = remove(&key);
        }
        if error != -EEXIST || insert(&key, &block).is_err() {
            counter::raise(Counter::LiveSetFull);
            return;
        }
    }
    emit::record(AllocRecord {
        header: RecordHeader::new(kind, call.tgid()),
        address,
        tid: call.tid(),
        hook: call.cookie.hook(),
        reserved: 0,
        block,
    });
}

/// Takes a block out, if it is there, and tells the agent that it is freed.
#[inline(always)]
pub(crate) fn take(call: &Call, address: u64) -> Option<LiveBlock> {
    let key = LiveKey::new(call.tgid(), address);
    // Most blocks were not sampled: looking here costs a third of a search that finds nothing.
    // SAFETY: the pointer comes from a successful lookup. Who frees a block has learned of it after it was counted.
    if unsafe { LIVE_COUNTS.get_ptr(key.place())?.read_volatile() } == 0 {
        return None;
    }
    let block = LIVE.get_ptr(&key)?;
    // SAFETY: the pointer comes from a successful lookup, and the value is not changed in place.
    let block = unsafe { *block };
    // When the recording has ended, what was live then stays: a set that is still read must not change, and records of it may be
    // lost.
    if !sample::is_on(block.heap()) {
        return None;
    }
    // Two threads freeing one block is the target's bug; only one of them gets it.
    remove(&key).ok()?;
    let now_ns = now();
    emit::record(FreeRecord {
        header: RecordHeader::new(RecordKind::Free, call.tgid()),
        address,
        time_ns: now_ns,
        tid: call.tid(),
        age_us: FreeRecord::age_us(block.time_us(), now_ns / 1000),
    });
    Some(block)
}

/// Enters a block where there is none.
#[inline(always)]
fn insert(key: &LiveKey, block: &LiveBlock) -> Result<(), i32> {
    count(key, 1);
    let inserted = LIVE.insert(key, block, u64::from(BPF_NOEXIST));
    if inserted.is_err() {
        count(key, -1);
    }
    inserted
}

/// Takes out a block; of two that try it, one succeeds.
#[inline(always)]
fn remove(key: &LiveKey) -> Result<(), i32> {
    LIVE.remove(key)?;
    count(key, -1);
    Ok(())
}

/// Adds to the count of the key's place.
#[inline(always)]
fn count(key: &LiveKey, change: i64) {
    if let Some(count) = LIVE_COUNTS.get_ptr_mut(key.place()) {
        // SAFETY: the pointer comes from a successful lookup, to an aligned word.
        unsafe { asm!("lock *(u64 *)({count} + 0) += {change}", count = in(reg) count, change = in(reg) change) };
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: the helper takes no arguments.
    unsafe { bpf_ktime_get_ns() }
}
