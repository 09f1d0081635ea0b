//! Of [`call.rs`](../../src/call.rs): a hooked call at its function's entry.

use core::marker::PhantomData;

use profiler_common::step::ReadMemory;

pub(crate) trait Store {}

pub(crate) struct Buckets;

impl Store for Buckets {}

pub(crate) struct Call<S> {
    pub(crate) tgid: u32,
    pub(crate) sp: u64,
    pub(crate) bp: u64,
    /// The return address, which is on the stack of some processors.
    pub(crate) caller: Option<u64>,
    pub(crate) store: PhantomData<S>,
}

impl<S: Store> Call<S> {
    pub(crate) fn tgid(&self) -> u32 {
        self.tgid
    }

    pub(crate) fn sp(&self) -> u64 {
        self.sp
    }

    pub(crate) fn bp(&self) -> u64 {
        self.bp
    }

    pub(crate) fn caller(&self, _memory: &impl ReadMemory) -> Option<u64> {
        self.caller
    }
}
