//! A hooked call, as the programs at its entry and return see it.

use core::ffi::c_void;
use core::marker::PhantomData;

use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::{bpf_get_attach_cookie, bpf_get_current_pid_tgid};
use profiler_common::arch::DATA_ADDRESS;
use profiler_common::hook::{RawCookie, checked_product};
use profiler_common::live::LiveKey;

use crate::maps::{INFLIGHT_CALLS, PROBES};
use crate::{arch, config, remap};

/// Where calls between entry and return are stored: known when the programs are compiled, so that those for newer kernels need no
/// stack for what older ones do.
pub(crate) trait Store {
    /// In the hash map, not in the array of buckets.
    fn is_map() -> bool;
}

/// Links of Linux 6.6 and later.
pub(crate) struct Buckets;

impl Store for Buckets {
    #[inline(always)]
    fn is_map() -> bool {
        false
    }
}

/// Kernels that may lack cookies or atomic instructions with a result.
pub(crate) struct Any;

impl Store for Any {
    #[inline(always)]
    fn is_map() -> bool {
        !config::cookies() || !config::atomics()
    }
}

/// A probe hit: registers, cookie and thread.
pub(crate) struct Call<S> {
    regs: *const pt_regs,
    pub(crate) cookie: RawCookie,
    /// Process id in the high half, thread id in the low half.
    pub(crate) thread: u64,
    store: PhantomData<S>,
}

impl Call<Buckets> {
    #[inline(always)]
    pub(crate) fn new(ctx: *mut c_void) -> Self {
        Self::with(ctx, cookie(ctx))
    }
}

impl Call<Any> {
    /// At an entry. `None` if the probe is unknown.
    #[inline(always)]
    pub(crate) fn at_entry(ctx: *mut c_void) -> Option<Self> {
        if config::cookies() {
            return Some(Self::with(ctx, cookie(ctx)));
        }
        let call = Self::with(ctx, RawCookie(0));
        // SAFETY: the value is not changed while probes are attached.
        let cookie = unsafe { PROBES.get(LiveKey::new(call.tgid(), call.ip())) }?;
        Some(Self { cookie: RawCookie(*cookie), ..call })
    }

    /// At a return: its address does not identify the hook, but the call does. `None` if that is unknown.
    #[inline(always)]
    pub(crate) fn at_return(ctx: *mut c_void) -> Option<Self> {
        if config::cookies() {
            return Some(Self::with(ctx, cookie(ctx)));
        }
        let call = Self::with(ctx, RawCookie(0));
        // SAFETY: only this thread changes its value.
        let stored = unsafe { INFLIGHT_CALLS.get(call.thread) }?;
        Some(Self { cookie: RawCookie(stored.cookie), ..call })
    }
}

#[inline(always)]
fn cookie(ctx: *mut c_void) -> RawCookie {
    // SAFETY: `ctx` is the program's own context, as the kernel passed it.
    RawCookie(unsafe { bpf_get_attach_cookie(ctx) })
}

impl<S: Store> Call<S> {
    #[inline(always)]
    fn with(ctx: *mut c_void, cookie: RawCookie) -> Self {
        Self { regs: ctx.cast(), cookie, thread: bpf_get_current_pid_tgid(), store: PhantomData }
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

    /// Where the return address is, at a function's entry: see [`arch::caller`].
    #[inline(always)]
    pub(crate) fn return_place(&self) -> u64 {
        arch::return_place(self.regs)
    }

    #[inline(always)]
    pub(crate) fn result(&self) -> u64 {
        arch::result(self.regs)
    }

    #[inline(always)]
    pub(crate) fn register(&self, number: u8) -> u64 {
        arch::register(self.regs, number)
    }

    /// The pointer argument, without a tag.
    #[inline(always)]
    pub(crate) fn pointer(&self) -> u64 {
        self.register(self.cookie.pointer_register()) & DATA_ADDRESS
    }

    /// Requested bytes, or `None` if the product overflows: such a call fails.
    #[inline(always)]
    pub(crate) fn size_bytes(&self) -> Option<u64> {
        let mut size = self.register(self.cookie.size_register());
        if self.cookie.has_count() {
            size = checked_product(size, self.register(self.cookie.count_register()))?;
        }
        if self.cookie.page_rounded() {
            size = remap::whole_pages(size);
        }
        Some(size)
    }
}
