//! Entry and return of hooked functions, by call shape.

use core::mem::MaybeUninit;

use aya_ebpf::helpers::bpf_probe_read_user;
use profiler_common::arch::DATA_ADDRESS;
use profiler_common::counter::Counter;
use profiler_common::hook::CallShape;
use profiler_common::interval::Interval;
use profiler_common::live::LiveBlock;
use profiler_common::record::{RecordKind, UNKNOWN_ADDRESS};

use crate::call::{Call, Store};
use crate::layout::Inflight;
use crate::maps::count;
use crate::{config, emit, inflight, limits, live, remap, sample, stack};

const FREE: u8 = CallShape::Free as u8;
const REALLOC: u8 = CallShape::Realloc as u8;
const RESIZE: u8 = CallShape::Resize as u8;
const ENTRY: u8 = CallShape::Entry as u8;
const ALLOC_OUT: u8 = CallShape::AllocOut as u8;

/// Handles the entry of a hooked function. Returns whether its return must be handled.
#[inline(always)]
pub(crate) fn entry(call: &Call<impl Store>) -> bool {
    match call.cookie.shape() {
        FREE => {
            free(call);
            false
        }
        ENTRY => {
            entered(call);
            false
        }
        shape if remap::is_shape(shape) => remap::entry(call, shape),
        shape => {
            if config::stubs() {
                sample::count_stub_call(call);
            }
            if shape == REALLOC || shape == RESIZE { realloc(call, shape) } else { alloc(call, shape) }
        }
    }
}

/// Records a call whose return is not probed. It is not stored, so a hooked function that it calls is sampled separately.
#[inline(always)]
fn entered(call: &Call<impl Store>) {
    if sample::is_foreign_alloc(call) || inflight::nested(call) {
        return;
    }
    let Some(size_bytes) = call.size_bytes() else {
        return;
    };
    let address = if call.cookie.has_pointer() { call.pointer() } else { UNKNOWN_ADDRESS };
    if call.cookie.has_pointer() && address == 0 {
        return;
    }
    let sampled = sampled(call, size_bytes);
    if sampled.interval_code == 0 {
        return;
    }
    let interval = Interval::from_code(sampled.interval_code);
    let block = LiveBlock::new(size_bytes, emit::now_ns(), sampled.stack_id, interval, call.cookie.heap());
    if address == UNKNOWN_ADDRESS {
        live::report(call, block);
    } else {
        live::enter(call, RecordKind::Alloc, address, block);
    }
}

/// A block that is not in the live set was not sampled, or was allocated before recording started: nothing happens.
#[inline(always)]
pub(crate) fn free(call: &Call<impl Store>) {
    let pointer = call.pointer();
    if pointer != 0 {
        let _ = live::take(call, pointer);
    }
}

#[inline(always)]
fn alloc(call: &Call<impl Store>, shape: u8) -> bool {
    if sample::is_foreign_alloc(call) || inflight::nested(call) {
        return false;
    }
    let size_bytes = call.size_bytes();
    let interval_code = size_bytes.and_then(|size_bytes| sample::sample(call, size_bytes));
    // A function that calls other hooked functions is stored even if it is not sampled; otherwise these would be sampled for
    // the same block.
    if interval_code.is_none() && !call.cookie.delegates() {
        return false;
    }
    // Such a call is not stored, so a hooked function that it calls is sampled separately.
    if may_throw(call, size_bytes) {
        return false;
    }
    let sampled = captured(call, interval_code);
    if sampled.interval_code == 0 && !call.cookie.delegates() {
        return false;
    }
    inflight::enter(
        call,
        &Inflight {
            sp: call.sp(),
            size_bytes: size_bytes.unwrap_or(0),
            pointer: if shape == ALLOC_OUT { call.pointer() } else { 0 },
            stack_id: sampled.stack_id,
            old: MaybeUninit::uninit(),
            interval_code: sampled.interval_code,
            hook: call.cookie.hook(),
            shape,
            old_tracked: 0,
        },
    )
}

/// Whether the call may throw an exception now: then its return must not be probed. Counts it.
#[inline(always)]
fn may_throw(call: &Call<impl Store>, size_bytes: Option<u64>) -> bool {
    let may_throw = call.cookie.may_throw() && limits::may_refuse(size_bytes);
    if may_throw {
        count(Counter::MayThrow);
    }
    may_throw
}

struct Sampled {
    /// 0 if the call is not sampled.
    interval_code: u32,
    stack_id: u64,
}

impl Sampled {
    const NO: Self = Self { interval_code: 0, stack_id: 0 };
}

/// Samples the call and captures its stack. A call by another hooked function is not sampled: its block is that function's.
#[inline(always)]
fn sampled(call: &Call<impl Store>, size_bytes: u64) -> Sampled {
    captured(call, sample::sample(call, size_bytes))
}

/// Captures the stack of a call that is sampled with this interval.
#[inline(always)]
fn captured(call: &Call<impl Store>, interval_code: Option<u32>) -> Sampled {
    match interval_code {
        Some(interval_code) => match stack::take(call) {
            Some(stack_id) => Sampled { interval_code, stack_id },
            None => Sampled::NO,
        },
        None => Sampled::NO,
    }
}

/// Removes the old block from the live set at entry, not at the return: by then another thread may have got its address. If
/// the call fails, the return restores it.
#[inline(always)]
fn realloc(call: &Call<impl Store>, shape: u8) -> bool {
    // Another probe of the same call must find the old block.
    if sample::is_foreign(call) || inflight::nested(call) {
        return false;
    }
    let Some(size_bytes) = call.size_bytes() else {
        if call.cookie.may_throw() {
            count(Counter::MayThrow);
            return false;
        }
        // The call will fail and keep the old block. It is stored nevertheless, because it may call others first.
        return enter_realloc(call, shape, u64::MAX, 0, &Sampled::NO, None);
    };
    // The old block counts as freed, and the new one is not recorded.
    if may_throw(call, Some(size_bytes)) {
        free(call);
        return false;
    }
    let pointer = call.pointer();
    let old = if pointer == 0 { None } else { live::take(call, pointer) };
    let sampled = sampled(call, size_bytes);
    let delegates = call.cookie.delegates() || (call.cookie.delegates_null() && pointer == 0);
    if sampled.interval_code == 0 && old.is_none() && !delegates {
        return false;
    }
    enter_realloc(call, shape, size_bytes, pointer, &sampled, old)
}

#[inline(always)]
fn enter_realloc(
    call: &Call<impl Store>,
    shape: u8,
    size_bytes: u64,
    pointer: u64,
    sampled: &Sampled,
    old: Option<LiveBlock>,
) -> bool {
    inflight::enter(
        call,
        &Inflight {
            sp: call.sp(),
            size_bytes,
            pointer,
            stack_id: sampled.stack_id,
            old: old.map_or(MaybeUninit::uninit(), MaybeUninit::new),
            interval_code: sampled.interval_code,
            hook: call.cookie.hook(),
            shape,
            old_tracked: old.is_some() as u8,
        },
    )
}

/// Handles the return of a call that was stored at its entry.
#[inline(always)]
pub(crate) fn finish(call: &Call<impl Store>) {
    let Some(inflight) = inflight::leave(call) else {
        return;
    };
    if remap::is_shape(inflight.shape) {
        remap::finish(call, &inflight);
        return;
    }
    let Some(address) = block_address(call, &inflight) else {
        restore_old(call, &inflight);
        return;
    };
    if inflight.interval_code != 0 {
        let interval = Interval::from_code(inflight.interval_code);
        let heap = call.cookie.heap();
        let block = LiveBlock::new(inflight.size_bytes, emit::now_ns(), inflight.stack_id, interval, heap);
        live::enter(call, RecordKind::Alloc, address, block);
    }
}

/// Address of the block that the call returned, or `None` if it failed.
#[inline(always)]
fn block_address(call: &Call<impl Store>, inflight: &Inflight) -> Option<u64> {
    let result = call.result();
    let address = if inflight.shape == RESIZE {
        // The result is the block's new size.
        if result < inflight.size_bytes {
            return None;
        }
        inflight.pointer
    } else if inflight.shape == ALLOC_OUT {
        if result as u32 != 0 {
            return None;
        }
        // SAFETY: the helper checks the address, which the target chose.
        match unsafe { bpf_probe_read_user(inflight.pointer as *const u64) } {
            Ok(address) => address,
            Err(_) => {
                count(Counter::ResultUnreadable);
                return None;
            }
        }
    } else {
        result
    };
    match address & DATA_ADDRESS {
        0 => None,
        address => Some(address),
    }
}

/// A failed realloc has kept the old block, unless the requested size is 0: then a null result means that the block was freed
/// (glibc; other allocators return a block). Some functions free it in any case.
#[inline(always)]
fn restore_old(call: &Call<impl Store>, inflight: &Inflight) {
    if inflight.old_tracked != 0 && inflight.size_bytes != 0 && !call.cookie.frees_on_failure() {
        live::enter(call, RecordKind::Restore, inflight.pointer, inflight.old());
    }
}
