//! A hooked call, as the programs at its entry and return see it.

use core::ffi::c_void;

use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::{bpf_get_attach_cookie, bpf_get_current_pid_tgid};
use profiler_common::hook::{RawCookie, checked_product};
use profiler_common::limits::PAGE_BYTES;
use profiler_common::step::ReadMemory;

use crate::arch;

/// A probe hit: registers, cookie and thread.
pub(crate) struct Call {
    regs: *const pt_regs,
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
        arch::ip(self.regs)
    }

    #[inline(always)]
    pub(crate) fn sp(&self) -> u64 {
        arch::sp(self.regs)
    }

    #[inline(always)]
    pub(crate) fn bp(&self) -> u64 {
        arch::bp(self.regs)
    }

    /// The return address, at a function's entry.
    #[inline(always)]
    pub(crate) fn caller(&self, memory: &impl ReadMemory) -> Option<u64> {
        arch::caller(self.regs, memory)
    }

    #[inline(always)]
    pub(crate) fn result(&self) -> u64 {
        arch::result(self.regs)
    }

    #[inline(always)]
    pub(crate) fn register(&self, number: u8) -> u64 {
        arch::register(self.regs, number)
    }

    /// The pointer argument.
    #[inline(always)]
    pub(crate) fn pointer(&self) -> u64 {
        self.register(self.cookie.pointer_register())
    }

    /// Requested bytes, or `None` if the product overflows: such a call fails.
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
