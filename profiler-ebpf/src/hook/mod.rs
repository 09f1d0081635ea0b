//! Hooks: what happens at the entry and at the return of a watched function.

pub(crate) mod alloc;
pub(crate) mod free;
pub(crate) mod map;
pub(crate) mod realloc;
mod register;

use core::ffi::c_void;

use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::bpf_get_attach_cookie;
use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use aya_ebpf::helpers::bpf_probe_read_user;
use profiler_common::counter::Counter;
use profiler_common::hook::{CallShape, RawCookie, checked_product};
use profiler_common::interval::Interval;
use profiler_common::limits::PAGE_BYTES;
use profiler_common::live::LiveBlock;
use profiler_common::record::RecordKind;

use crate::inflight::{self, Inflight};
use crate::{counter, live};

/// One hit of a probe: the registers, the hook's cookie, the thread.
pub(crate) struct Call {
    pub(crate) regs: *const pt_regs,
    pub(crate) cookie: RawCookie,
    /// Process id in the high half, thread id in the low half.
    pub(crate) thread: u64,
}

impl Call {
    #[inline(always)]
    pub(crate) fn new(ctx: *mut c_void) -> Self {
        // SAFETY: `ctx` is the program's own context, as the kernel passed it.
        let cookie = RawCookie(unsafe { bpf_get_attach_cookie(ctx) });
        Self { regs: ctx.cast(), cookie, thread: bpf_get_current_pid_tgid() }
    }

    #[inline(always)]
    pub(crate) fn tgid(&self) -> u32 {
        (self.thread >> 32) as u32
    }

    #[inline(always)]
    pub(crate) fn tid(&self) -> u32 {
        self.thread as u32
    }

    #[inline(always)]
    pub(crate) fn ip(&self) -> u64 {
        // SAFETY: a uprobe's context is a pt_regs, valid while the program runs.
        unsafe { (*self.regs).rip }
    }

    #[inline(always)]
    pub(crate) fn sp(&self) -> u64 {
        // SAFETY: a uprobe's context is a pt_regs, valid while the program runs.
        unsafe { (*self.regs).rsp }
    }

    #[inline(always)]
    pub(crate) fn bp(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (*self.regs).rbp }
    }

    #[inline(always)]
    fn result(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (*self.regs).rax }
    }

    /// A register by its number.
    #[inline(always)]
    fn register(&self, number: u8) -> u64 {
        register::read(self.regs, number)
    }

    /// The pointer argument.
    #[inline(always)]
    pub(crate) fn pointer(&self) -> u64 {
        self.register(self.cookie.pointer_register())
    }

    /// Requested bytes, or `None` when the product overflows: such a call fails.
    #[inline(always)]
    pub(crate) fn size_bytes(&self) -> Option<u64> {
        let mut size = self.register(self.cookie.size_register());
        if self.cookie.has_count() {
            size = checked_product(size, self.register(self.cookie.count_register()))?;
        }
        if self.cookie.page_rounded() {
            size = size.wrapping_add(PAGE_BYTES - 1) & !(PAGE_BYTES - 1);
        }
        Some(size)
    }
}

/// The entry of a hooked function. True when its return has to be seen.
#[inline(always)]
pub(crate) fn entry(call: &Call) -> bool {
    match call.cookie.shape() {
        FREE => {
            free::entry(call);
            false
        }
        shape @ (REALLOC | RESIZE) => realloc::entry(call, shape),
        shape if map::is_shape(shape) => map::entry(call, shape),
        shape => alloc::entry(call, shape),
    }
}

const FREE: u8 = CallShape::Free as u8;
const REALLOC: u8 = CallShape::Realloc as u8;
const RESIZE: u8 = CallShape::Resize as u8;
const ALLOC_OUT: u8 = CallShape::AllocOut as u8;

/// The return of a call that was noted at its entry.
#[inline(always)]
pub(crate) fn finish(call: &Call) {
    let Some(inflight) = inflight::leave(call) else {
        return;
    };
    if map::is_shape(inflight.shape) {
        map::finish(call, &inflight);
        return;
    }
    let Some(address) = block_address(call, &inflight) else {
        restore_old(call, &inflight);
        return;
    };
    if inflight.interval_code != 0 {
        let interval = Interval::from_code(inflight.interval_code);
        let heap = call.cookie.heap();
        let block = LiveBlock::new(inflight.size_bytes, live::now(), inflight.stack_id, interval, heap);
        live::enter(call, RecordKind::Alloc, address, block);
    }
}

/// The block that the call made, or `None` when it made none.
#[inline(always)]
fn block_address(call: &Call, inflight: &Inflight) -> Option<u64> {
    let result = call.result();
    let address = if inflight.shape == RESIZE {
        // The result is a size: that of the block where it is.
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
                counter::raise(Counter::ResultUnreadable);
                return None;
            }
        }
    } else {
        result
    };
    if address == 0 { None } else { Some(address) }
}

/// A realloc that made no block left the old one alone, unless it was asked for 0 bytes: then a null result means that
/// it was freed (glibc; other allocators return a block). Some free it in any case.
#[inline(always)]
fn restore_old(call: &Call, inflight: &Inflight) {
    if inflight.old_tracked != 0 && inflight.size_bytes != 0 && !call.cookie.frees_on_failure() {
        live::enter(call, RecordKind::Restore, inflight.pointer, inflight.old);
    }
}
