//! Memory for tests that counts how often it is read: a walk that goes through all addresses fails instead of taking hours.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::address::TargetAddr;
use crate::memory::{Copied, Memory};

/// Memory that panics when it is read too often.
pub(super) struct Patient {
    memory: Copied,
    reads_left: AtomicU64,
}

impl Patient {
    pub(super) fn new(memory: Copied, reads_max: u64) -> Self {
        Self { memory, reads_left: AtomicU64::new(reads_max) }
    }
}

impl Memory for Patient {
    fn present(&self, range: Range<TargetAddr>) -> Vec<Range<TargetAddr>> {
        self.memory.present(range)
    }

    fn read(&self, address: TargetAddr, buffer: &mut [u8]) -> usize {
        assert!(self.reads_left.fetch_sub(1, Ordering::Relaxed) > 0, "memory is read too often");
        self.memory.read(address, buffer)
    }

    fn slice(&self, address: TargetAddr, length: usize) -> Option<&[u8]> {
        self.memory.slice(address, length)
    }
}
