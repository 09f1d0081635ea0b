//! Inserts blocks into the live set, removes them, and reports both to the agent.

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use profiler_common::counter::Counter;
use profiler_common::live::{FILTER_FULL, LiveBlock, LiveKey};
use profiler_common::pages::PAGES_HOOK;
use profiler_common::record::{AllocRecord, FreeRecord, RecordHeader, RecordKind, UNKNOWN_ADDRESS};

use crate::call::{Call, Store};
use crate::maps::{LIVE, LIVE_FILTER, add, count};
use crate::{asm, emit, sample};

/// `EEXIST` of the kernel's errno table.
const EEXIST: i32 = 17;
const ENOSPC: i32 = 28;

/// Inserts a block and writes a record of this kind.
#[inline(always)]
pub(crate) fn enter(call: &Call<impl Store>, kind: RecordKind, address: u64, block: LiveBlock) {
    let [stack_id, time, size] = block.words();
    enter_block(address, stack_id, time, size, u64::from(call.cookie.hook()) << 32 | kind as u64);
}

/// As [`enter`], of the current thread: `stack_id`, `time` and `size` are the words of the block, and `what` has the hook above the kind.
///
/// A global function, so that the verifier checks it once.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn enter_block(address: u64, stack_id: u64, time: u64, size: u64, what: u64) -> u32 {
    let thread = bpf_get_current_pid_tgid();
    let block = LiveBlock::from_words([stack_id, time, size]);
    let key = LiveKey::new((thread >> 32) as u32, address);
    let mut has_replaced = 0;
    if let Err(error) = insert(&key, &block) {
        // Two live blocks cannot share an address, so the free of the old one was missed. The new one replaces it.
        if error == -EEXIST {
            has_replaced = 1;
            count(Counter::MissedFree);
            let _ = remove(&key);
        }
        if error != -EEXIST || insert(&key, &block).is_err() {
            count(Counter::LiveSetFull);
            lose(Counter::UntrackedBytes, Counter::UntrackedBlocks, block);
            return 0;
        }
    }
    let kind = if what as u8 == RecordKind::Restore as u8 { RecordKind::Restore } else { RecordKind::Alloc };
    write(kind, thread, address, (what >> 32) as u16, has_replaced, block);
    0
}

/// Writes a record of a block without an address, which is not in the live set.
#[inline(always)]
pub(crate) fn report(call: &Call<impl Store>, block: LiveBlock) {
    write(RecordKind::Alloc, call.thread, UNKNOWN_ADDRESS, call.cookie.hook(), 0, block);
}

#[inline(always)]
fn write(kind: RecordKind, thread: u64, address: u64, hook: u16, has_replaced: u16, block: LiveBlock) {
    let is_written = emit::record(AllocRecord {
        header: RecordHeader::new(kind, (thread >> 32) as u32),
        address,
        tid: thread as u32,
        hook,
        has_replaced,
        block,
    });
    if !is_written {
        lose(Counter::UnwrittenBytes, Counter::UnwrittenBlocks, block);
    }
}

/// Counts what a block represents that is dropped, rounded up: s / p(s, T) is less than T + s.
#[inline(always)]
fn lose(bytes: Counter, blocks: Counter, block: LiveBlock) {
    let (size_bytes, interval_bytes) = (block.size_bytes(), u64::from(block.interval().bytes()));
    let (lost_bytes, lost_blocks) = if size_bytes >= interval_bytes {
        (size_bytes, 1)
    } else {
        let size = if size_bytes == 0 { 1 } else { size_bytes };
        (size_bytes + interval_bytes, 1 + interval_bytes / size)
    };
    add(bytes, lost_bytes);
    add(blocks, lost_blocks);
}

/// Removes a block, if it is in the live set, and writes a record of its free.
#[inline(always)]
pub(crate) fn take(call: &Call<impl Store>, address: u64) -> Option<LiveBlock> {
    let key = LiveKey::new(call.tgid(), address);
    // Most blocks were not sampled: reading the filter costs a third of an unsuccessful search.
    // SAFETY: the pointer comes from a successful lookup. A thread that frees a block learned its address after the block was
    // added to the filter.
    if key.is_excluded_by(unsafe { LIVE_FILTER.get_ptr(key.filter_slot())?.read_volatile() }) {
        return None;
    }
    let Some(block) = LIVE.get_ptr(&key) else {
        report_unknown(call, address);
        return None;
    };
    // SAFETY: the pointer comes from a successful lookup, and the value is not changed in place.
    let block = unsafe { *block };
    // After the recording has ended, the live set stays as it is: the agent may still be reading it, and records may be
    // dropped.
    if !sample::is_on(block.heap()) {
        return None;
    }
    // Two threads that free the same block are a bug of the target; only one of them succeeds.
    remove(&key).ok()?;
    let now_ns = emit::now_ns();
    emit::record(FreeRecord {
        header: RecordHeader::new(RecordKind::Free, call.tgid()),
        address,
        time_ns: now_ns,
        tid: call.tid(),
        age_us: FreeRecord::age_us(block.time_us(), now_ns / 1000),
    });
    Some(block)
}

/// Inserts a page and writes a record. One that another thread is touching at the same time is that thread's.
#[inline(always)]
pub(crate) fn enter_page(thread: u64, key: &LiveKey, block: LiveBlock) {
    match insert(key, &block) {
        Ok(()) => write(RecordKind::Alloc, thread, key.address, PAGES_HOOK, 0, block),
        Err(error) if error == -EEXIST => {}
        Err(_) => {
            count(Counter::LiveSetFull);
            lose(Counter::UntrackedBytes, Counter::UntrackedBlocks, block);
        }
    }
}

/// Whether a block is in the live set.
#[inline(always)]
pub(crate) fn is_live(key: &LiveKey) -> bool {
    match LIVE_FILTER.get_ptr(key.filter_slot()) {
        // SAFETY: the pointer comes from a successful lookup.
        Some(slot) => !key.is_excluded_by(unsafe { slot.read_volatile() }) && LIVE.get_ptr(key).is_some(),
        None => false,
    }
}

/// Removes a page, if it is in the live set, because the process has given it back and touches it again. Writes a record of that.
#[inline(always)]
pub(crate) fn replace(thread: u64, key: &LiveKey) {
    if !is_live(key) {
        return;
    }
    let Some(block) = LIVE.get_ptr(key) else {
        return;
    };
    // SAFETY: the pointer comes from a successful lookup, and the value is not changed in place.
    let born_us = unsafe { (*block).time_us() };
    if remove(key).is_err() {
        return;
    }
    let now_ns = emit::now_ns();
    emit::record(FreeRecord {
        header: RecordHeader::new(RecordKind::Free, key.tgid),
        address: key.address,
        time_ns: now_ns,
        tid: thread as u32,
        age_us: FreeRecord::age_us(born_us, now_ns / 1000),
    });
}

/// Reports the free of a block that is not in the live set, for targets whose earlier blocks are about to be inserted.
#[inline(always)]
fn report_unknown(call: &Call<impl Store>, address: u64) {
    if !sample::reports_frees(call) || !sample::is_on(call.cookie.heap()) {
        return;
    }
    emit::record(FreeRecord {
        header: RecordHeader::new(RecordKind::UnknownFree, call.tgid()),
        address,
        time_ns: emit::now_ns(),
        tid: call.tid(),
        age_us: 0,
    });
}

/// Inserts a block unless its key is present.
#[inline(always)]
fn insert(key: &LiveKey, block: &LiveBlock) -> Result<(), i32> {
    if !add_to_filter(key, key.filter_word() as i64) {
        return Err(-ENOSPC);
    }
    let inserted = LIVE.insert(key, block, u64::from(BPF_NOEXIST));
    if inserted.is_err() {
        add_to_filter(key, -(key.filter_word() as i64));
    }
    inserted
}

/// Removes a block. Of two concurrent calls, one succeeds.
#[inline(always)]
fn remove(key: &LiveKey) -> Result<(), i32> {
    LIVE.remove(key)?;
    add_to_filter(key, -(key.filter_word() as i64));
    Ok(())
}

/// Returns false, without a change, if the slot is full.
#[inline(always)]
fn add_to_filter(key: &LiveKey, change: i64) -> bool {
    let Some(slot) = LIVE_FILTER.get_ptr_mut(key.filter_slot()) else {
        return false;
    };
    // SAFETY: the pointer comes from a successful lookup.
    if change > 0 && unsafe { slot.read_volatile() } >= FILTER_FULL {
        return false;
    }
    asm::atomic_add(slot, change);
    true
}
