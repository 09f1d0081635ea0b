//! Words that are read in the order of their addresses, without asking for each where it is.

use crate::address::TargetAddr;
use crate::memory::Memory;

/// Bytes that are copied at once.
const WINDOW_BYTES: usize = 1 << 16;

/// A reader of words.
pub(super) struct Words<'a> {
    memory: &'a dyn Memory,
    window: Box<[u8]>,
    start: u64,
    filled_bytes: usize,
}

impl<'a> Words<'a> {
    pub(super) fn new(memory: &'a dyn Memory) -> Self {
        Self { memory, window: vec![0; WINDOW_BYTES].into_boxed_slice(), start: 0, filled_bytes: 0 }
    }

    /// The word at this address. Cheap where one shortly before it was the last.
    pub(super) fn at(&mut self, address: u64) -> Option<u64> {
        self.held(address).or_else(|| {
            self.filled_bytes = self.memory.read(TargetAddr(address), &mut self.window);
            self.start = address;
            self.held(address)
        })
    }

    fn held(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.start)?).ok()?;
        let bytes = self.window[..self.filled_bytes].get(offset..offset.checked_add(size_of::<u64>())?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}
