//! Captures the stack of a call and sends its frames unless the agent has them.

use core::mem::size_of;

use aya_ebpf::helpers::generated;
use profiler_common::limits::{PAGE_BYTES, STACK_FRAMES_MAX};
use profiler_common::record::{RawStackHeader, RecordHeader, RecordKind, StackHeader};
use profiler_common::stack::{StackEnd, StackHasher};
use profiler_common::step::ReadMemory;

use crate::call::{Call, Store};
use crate::maps::{RAW, count};
use crate::scratch::Claim;
use crate::seen::{forget, is_new};
use crate::window::user_word;
use crate::{config, copy, emit, inflight, walk};

/// Captures the call's stack and returns its id, or `None` if the caller is a hooked function: see [`inflight::is_caller_hooked`].
/// Must be called at entry: at the return, the trampoline has replaced the return address.
#[inline(always)]
pub(crate) fn take(call: &Call<impl Store>) -> Option<u64> {
    let Some(claim) = Claim::take(call.tid()) else {
        return caller_only(call);
    };
    let scratch = claim.scratch;
    let caller = walk::caller(call, &claim);
    if let Some(caller) = caller
        && inflight::is_caller_hooked(call, caller)
    {
        claim.release();
        return None;
    }
    let hasher = StackHasher::new(config::stack_seed(), call.tgid());
    let unwound = walk::unwind(call, &claim, caller, hasher);
    count(unwound.end.counter());
    let mut stack_id = id(unwound.hasher, unwound.end);
    let mut is_urgent = false;
    if config::unwind_by_tables() && unwound.end == StackEnd::MissingModule {
        // Equal frames up to the end can have different callers.
        let own_id = unique_id(call, unwound.hasher);
        is_urgent = copy::send_pages(claim.area, call.tgid(), own_id) != 0;
        if is_urgent {
            stack_id = own_id;
        }
    }
    if is_new(stack_id) {
        // SAFETY: this program has claimed the area.
        let record = unsafe { &raw mut (*scratch).record };
        // SAFETY: as above.
        unsafe { (*record).header = header(call, stack_id, unwound.depth, unwound.end) };
        let depth = if unwound.depth > STACK_FRAMES_MAX as u64 { STACK_FRAMES_MAX as u64 } else { unwound.depth };
        let length = size_of::<StackHeader>() as u64 + depth * 8;
        if !emit::bytes(record.cast_const().cast(), length, is_urgent) {
            forget(stack_id);
        }
    }
    if config::raw_stacks() {
        send_raw(claim.area, call, stack_id);
    }
    claim.release();
    Some(stack_id)
}

/// A stack of one frame, used if no scratch area is free.
#[inline(always)]
fn caller_only(call: &Call<impl Store>) -> Option<u64> {
    let caller = call.caller(&Direct).unwrap_or(0);
    if inflight::is_caller_hooked(call, caller) {
        return None;
    }
    let end = StackEnd::NoScratch;
    count(end.counter());
    let mut hasher = StackHasher::new(config::stack_seed(), call.tgid());
    hasher.add(caller);
    let stack_id = id(hasher, end);
    if is_new(stack_id) && !emit::record((header(call, stack_id, 1, end), caller)) {
        forget(stack_id);
    }
    Some(stack_id)
}

/// Reads words one by one.
struct Direct;

impl ReadMemory for Direct {
    #[inline(always)]
    fn read_u64(&self, address: u64) -> Option<u64> {
        user_word(address)
    }
}

/// Equal frames that ended for different reasons are different stacks.
#[inline(always)]
fn id(mut hasher: StackHasher, end: StackEnd) -> u64 {
    hasher.add(end as u64);
    hasher.finish()
}

/// The id of a stack of this call alone.
#[inline(always)]
fn unique_id(call: &Call<impl Store>, mut hasher: StackHasher) -> u64 {
    hasher.add(call.thread);
    hasher.add(emit::now_ns());
    hasher.finish()
}

#[inline(always)]
fn header(call: &Call<impl Store>, stack_id: u64, depth: u64, end: StackEnd) -> StackHeader {
    StackHeader {
        header: RecordHeader::new(RecordKind::Stack, call.tgid()),
        stack_id,
        depth: depth as u16,
        end: end as u8,
        reserved: 0,
        reserved_too: 0,
    }
}

/// Sends the memory that the stack was unwound from, for checking the unwinder against another one. Disabled in ordinary use:
/// the flag is a constant to the verifier, which then removes this code. `area` is the area that the call has claimed.
#[inline(always)]
fn send_raw(area: u32, call: &Call<impl Store>, stack_id: u64) {
    let header = RawStackHeader {
        header: RecordHeader::new(RecordKind::RawStack, call.tgid()),
        stack_id,
        sp: call.sp(),
        bp: call.bp(),
        // Read again: it would take a register or stack until here also where this is disabled.
        caller: call.caller(&Direct).unwrap_or(0),
        start: call.sp() & !(PAGE_BYTES - 1),
        length: 0,
    };
    copy_and_send(area, &header);
}

/// Copies page by page, because a copy that reaches into an unmapped page fails as a whole.
#[inline(never)]
fn copy_and_send(area: u32, header: &RawStackHeader) {
    let Some(record) = RAW.get_ptr_mut(area) else {
        return;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let record = unsafe { &mut *record };
    record.header = *header;
    let mut length = 0;
    for page in &mut record.pages {
        let from = header.start.wrapping_add(length);
        // SAFETY: a page into a page; the helper checks the address.
        if unsafe { generated::bpf_probe_read_user(page.as_mut_ptr().cast(), PAGE_BYTES as u32, from as *const _) } != 0
        {
            break;
        }
        length += PAGE_BYTES;
    }
    record.header.length = length;
    // The loop over the pages computed the length, so the verifier knows that it fits.
    let _ = emit::bytes((&raw const *record).cast(), size_of::<RawStackHeader>() as u64 + length, false);
}
