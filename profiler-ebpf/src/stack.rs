//! Captures the stack of a call and sends its frames unless the agent has them.

use core::mem::size_of;

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, generated};
use profiler_common::arch::CALL_BYTES;
use profiler_common::hook::RawCookie;
use profiler_common::limits::{PAGE_BYTES, STACK_FRAMES_MAX};
use profiler_common::record::{RawStackHeader, RecordHeader, RecordKind, StackHeader};
use profiler_common::stack::{StackEnd, StackHasher};
use profiler_common::step::ReadMemory;

use crate::call::{Call, Store};
use crate::layout::Origin;
use crate::maps::{RAW, SCRATCH, count};
use crate::scratch::Claim;
use crate::seen::{forget, is_new};
use crate::window::{Window, user_word};
use crate::{arch, config, copy, emit, inflight, walk};

/// Captures the call's stack and returns its id, or `None` if the caller is a hooked function: see [`inflight::is_caller_hooked`].
/// Must be called at entry: at the return, the trampoline has replaced the return address.
#[inline(always)]
pub(crate) fn take(call: &Call<impl Store>) -> Option<u64> {
    let stack_id = match Claim::take(call.tid()) {
        Some(claim) => {
            let origin = Origin {
                ip: call.ip(),
                sp: call.sp(),
                bp: call.bp(),
                return_place: call.return_place(),
                cookie: call.cookie.0,
            };
            // SAFETY: this program has claimed the area.
            unsafe { (*claim.scratch).origin = origin };
            let stack_id = capture(claim.area);
            claim.release();
            stack_id
        }
        None => capture_caller(call.cookie.0, call.ip(), call.return_place()),
    };
    if stack_id == NO_STACK { None } else { Some(stack_id) }
}

/// Captures the stack of the current thread, whose registers are these. `ip` is the address behind that of the innermost frame's code.
/// Returns its id.
#[inline(always)]
pub(crate) fn take_at(tid: u32, ip: u64, sp: u64, bp: u64) -> Option<u64> {
    let stack_id = match Claim::take(tid) {
        Some(claim) => {
            // SAFETY: this program has claimed the area.
            unsafe { (*claim.scratch).origin = Origin { ip, sp, bp, return_place: 0, cookie: 0 } };
            let stack_id = capture_at(claim.area);
            claim.release();
            stack_id
        }
        None => send_caller(ip),
    };
    if stack_id == NO_STACK { None } else { Some(stack_id) }
}

/// No stack has this id.
const NO_STACK: u64 = 0;

/// Captures the stack of the call in a claimed area. Returns its id, or [`NO_STACK`] if the caller is a hooked function.
///
/// A global function, as the next one: the verifier checks it once, not with each function that samples.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn capture(area: u32) -> u64 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return NO_STACK;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let origin = unsafe { &(*scratch).origin };
    // SAFETY: as above.
    unsafe { (*scratch).window_words = 0 };
    let caller = arch::caller(origin.return_place, &Window::of(scratch, area));
    if let Some(caller) = caller
        && inflight::is_caller_hooked(RawCookie(origin.cookie), origin.ip, caller)
    {
        return NO_STACK;
    }
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let hasher = StackHasher::new(config::stack_seed(), tgid);
    let end = walk::unwind(scratch, area, tgid, (origin.sp, origin.bp, caller), hasher);
    count(end.counter());
    send_stack(area, end as u32)
}

/// Captures the stack whose registers are in a claimed area. Returns its id.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn capture_at(area: u32) -> u64 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return NO_STACK;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let origin = unsafe { &(*scratch).origin };
    // SAFETY: as above.
    unsafe { (*scratch).window_words = 0 };
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let hasher = StackHasher::new(config::stack_seed(), tgid);
    // The walk begins behind a call.
    let sp = origin.sp.wrapping_sub(CALL_BYTES);
    let end = walk::unwind(scratch, area, tgid, (sp, origin.bp, Some(origin.ip)), hasher);
    count(end.counter());
    send_stack(area, end as u32)
}

/// Sends the frames of the stack in a claimed area, which ends so, unless the agent has them. Returns the stack's id.
///
/// Called beside the function that unwinds, not by it: the stacks of nested BPF functions have 512 bytes in all.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn send_stack(area: u32, end: u32) -> u64 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return NO_STACK;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let (hasher, depth) = unsafe { (StackHasher::resume((*scratch).walk.hash), (*scratch).walk.depth) };
    let thread = bpf_get_current_pid_tgid();
    let tgid = (thread >> 32) as u32;
    let mut stack_id = id(hasher, end);
    let mut is_urgent = false;
    if config::unwind_by_tables() && end == StackEnd::MissingModule as u32 {
        // Equal frames up to the end can have different callers.
        let own_id = unique_id(thread, hasher);
        is_urgent = copy::send_pages(area, tgid, own_id) != 0;
        if is_urgent {
            stack_id = own_id;
        }
    }
    if is_new(stack_id) {
        // SAFETY: this program has claimed the area.
        let record = unsafe { &raw mut (*scratch).record };
        // SAFETY: as above.
        unsafe { (*record).header = header(tgid, stack_id, depth, end) };
        let depth = if depth > STACK_FRAMES_MAX as u64 { STACK_FRAMES_MAX as u64 } else { depth };
        let length = size_of::<StackHeader>() as u64 + depth * 8;
        if !emit::bytes(record.cast_const().cast(), length, is_urgent) {
            forget(stack_id);
        }
    }
    if config::raw_stacks() {
        send_raw(area, stack_id);
    }
    stack_id
}

/// Captures a stack of one frame, the caller, for calls that find no free area. Returns what [`capture`] does.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn capture_caller(cookie: u64, ip: u64, return_place: u64) -> u64 {
    let caller = arch::caller(return_place, &Direct).unwrap_or(0);
    if inflight::is_caller_hooked(RawCookie(cookie), ip, caller) {
        return NO_STACK;
    }
    send_caller(caller)
}

/// Sends a stack of one frame, and returns its id.
#[inline(always)]
fn send_caller(caller: u64) -> u64 {
    count(StackEnd::NoScratch.counter());
    let end = StackEnd::NoScratch as u32;
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let mut hasher = StackHasher::new(config::stack_seed(), tgid);
    hasher.add(caller);
    let stack_id = id(hasher, end);
    if is_new(stack_id) && !emit::record((header(tgid, stack_id, 1, end), caller)) {
        forget(stack_id);
    }
    stack_id
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
fn id(mut hasher: StackHasher, end: u32) -> u64 {
    hasher.add(u64::from(end));
    hasher.finish()
}

/// The id of a stack of one call alone.
#[inline(always)]
fn unique_id(thread: u64, mut hasher: StackHasher) -> u64 {
    hasher.add(thread);
    hasher.add(emit::now_ns());
    hasher.finish()
}

#[inline(always)]
fn header(tgid: u32, stack_id: u64, depth: u64, end: u32) -> StackHeader {
    StackHeader {
        header: RecordHeader::new(RecordKind::Stack, tgid),
        stack_id,
        depth: depth as u16,
        end: end as u8,
        reserved: 0,
        reserved_too: 0,
    }
}

/// Sends the memory that the stack in a claimed area was unwound from, for checking the unwinder against another one. Copies page by
/// page, because a copy that reaches into an unmapped page fails as a whole.
///
/// Disabled in ordinary use: the flag is a constant to the verifier, which then removes the call.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn send_raw(area: u32, stack_id: u64) -> u32 {
    let (Some(scratch), Some(record)) = (SCRATCH.get_ptr(area), RAW.get_ptr_mut(area)) else {
        return 0;
    };
    // SAFETY: both pointers come from successful lookups, and this program has claimed the area.
    let (origin, record) = unsafe { (&(*scratch).origin, &mut *record) };
    let start = origin.sp & !(PAGE_BYTES - 1);
    record.header = RawStackHeader {
        header: RecordHeader::new(RecordKind::RawStack, (bpf_get_current_pid_tgid() >> 32) as u32),
        stack_id,
        sp: origin.sp,
        bp: origin.bp,
        caller: arch::caller(origin.return_place, &Direct).unwrap_or(0),
        start,
        length: 0,
    };
    let mut length = 0;
    for page in &mut record.pages {
        let from = start.wrapping_add(length);
        // SAFETY: a page into a page; the helper checks the address.
        if unsafe { generated::bpf_probe_read_user(page.as_mut_ptr().cast(), PAGE_BYTES as u32, from as *const _) } != 0
        {
            break;
        }
        length += PAGE_BYTES;
    }
    record.header.length = length;
    // The loop over the pages computed the length, so the verifier knows that it fits.
    emit::bytes((&raw const *record).cast(), size_of::<RawStackHeader>() as u64 + length, false) as u32
}
