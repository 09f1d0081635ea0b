//! The heap profile that Go's runtime keeps, read from outside.
//!
//! The runtime samples its own allocations, one of each 512 KiB, from the start of the program (`runtime/mprof.go`, Go 1.18 to 1.27): a list
//! of buckets, one for each stack and size, with the numbers of sampled blocks that were allocated and freed. Buckets stay at their
//! addresses, and only their numbers change. So the list is read while the program runs: nothing is written into it, it is not stopped,
//! and no function is probed.
//!
//! Nothing is guessed: the version is that of the program's build information, the hash in each bucket must be that of its stack and size,
//! and sums of bytes must be products of numbers of blocks, where the version has them.

mod buckets;
mod calls;
mod error;
mod locate;
mod memory;

use std::sync::Arc;

use heapbpf_base::address::TargetAddr;
use profiler_common::interval::Interval;

use self::buckets::Buckets;
pub(crate) use self::buckets::Change;
pub(crate) use self::error::GoHeapError;
use self::locate::Code;
use self::memory::Memory;
use crate::object::module::Module;

/// Set in the addresses that stand for sampled blocks of Go, whose own addresses the runtime does not keep. No process has memory there.
pub(crate) const BLOCK_FLAG: u64 = 1 << 62;

/// Where a Go program keeps its heap profile, in one process.
#[derive(Clone, Debug)]
pub(crate) struct GoHeap {
    /// Address of `runtime.mbuckets`, a pointer to the newest bucket.
    buckets: u64,
    /// Address of `runtime.MemProfileRate`, in bytes.
    rate: u64,
    layout: buckets::Layout,
    code: Arc<Code>,
    bias: u64,
}

impl GoHeap {
    /// Finds the profile of the Go program in a module, whose addresses are `bias` above those in its file. `None` if the module has no
    /// Go code.
    pub(crate) fn of(module: &Module, bias: u64) -> Option<Result<Self, GoHeapError>> {
        let (image, elf) = (module.image().ok()?, module.elf().ok()?);
        elf.is_go.then(|| {
            let found = locate::locate(image, elf)?;
            let layout =
                buckets::Layout::of(&found.version).ok_or_else(|| GoHeapError::Version(found.version.clone()))?;
            let [buckets, rate] = [found.buckets, found.rate].map(|address| address.wrapping_add(bias));
            Ok(Self { buckets, rate, layout, code: Arc::new(found.code), bias })
        })
    }

    /// The interval of the runtime's samples.
    pub(crate) fn interval(&self, memory: &impl Memory) -> Result<Interval, GoHeapError> {
        let rate = memory.word(self.rate)?;
        if rate == 0 {
            return Err(GoHeapError::Off);
        }
        let bytes = u32::try_from(rate).map_err(|_| GoHeapError::Rate(rate))?;
        let interval = Interval::nearest(bytes);
        // Estimates must not be off by more than a hundredth.
        let is_near = u64::from(interval.bytes().abs_diff(bytes)) * 100 <= rate;
        is_near.then_some(interval).ok_or(GoHeapError::Rate(rate))
    }
}

/// Reader of the heap profile of a process.
#[derive(Debug)]
pub(crate) struct GoProfile {
    heap: GoHeap,
    buckets: Buckets,
}

impl GoProfile {
    pub(crate) fn new(heap: &GoHeap) -> Self {
        Self { heap: heap.clone(), buckets: Buckets::new(heap.layout.clone()) }
    }

    pub(crate) fn heap(&self) -> &GoHeap {
        &self.heap
    }

    /// Reads what has changed since the last time; at first, since the program started.
    pub(crate) fn read(&mut self, memory: &impl Memory) -> Result<Vec<Change>, GoHeapError> {
        let head = memory.word(self.heap.buckets)?;
        self.buckets.read(memory, head)
    }

    /// The stack of a bucket: return addresses, without the functions of the runtime that allocate for the caller.
    pub(crate) fn stack(&self, bucket: usize) -> Arc<[TargetAddr]> {
        let linked: Vec<u64> = self.buckets.stack(bucket).iter().map(|pc| pc.wrapping_sub(self.heap.bias)).collect();
        let calls = calls::physical(&linked, &*self.heap.code);
        calls.into_iter().map(|pc| TargetAddr(pc.wrapping_add(self.heap.bias))).collect()
    }

    pub(crate) fn size_bytes(&self, bucket: usize) -> u64 {
        self.buckets.size_bytes(bucket)
    }
}
