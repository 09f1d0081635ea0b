//! Tables of keys of dictionaries.

use super::super::super::memory::{HeapMemory, Memory};
use super::layout::Layout;

/// Offset of the pointer to the table in `PyDictObject`.
pub(super) const DICT_KEYS: u64 = 32;

/// A table of keys of dictionaries (`struct _dictkeysobject` in pycore_dict.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    entries: u64,
    entry_bytes: u64,
    /// Entries that have been used.
    pub(super) used: u64,
    /// Of the whole table.
    pub(super) bytes: u64,
}

impl Keys {
    /// `None` if it is malformed.
    pub(super) fn read(memory: &dyn HeapMemory, address: u64, layout: Layout) -> Option<Self> {
        /// Tables of larger dictionaries have 2^40 slots.
        const LOGARITHM_MAX: u8 = 40;
        let head: [u8; 40] = Memory::bytes(&memory, address)?;
        let word = |at: usize| head[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let (head_bytes, index_bytes, slots, entry_bytes, used) = if layout.has_logarithms {
            let [slots, indexes, kind] = [head[8], head[9], head[10]];
            if slots > LOGARITHM_MAX || indexes > LOGARITHM_MAX + 3 {
                return None;
            }
            // Without the hash if all keys are strings.
            let entry_bytes = if kind == 0 { 24 } else { 16 };
            (32, 1_u64 << indexes, 1_u64 << slots, entry_bytes, word(24))
        } else {
            let slots = word(8);
            if !slots.is_power_of_two() || slots > 1 << LOGARITHM_MAX {
                return None;
            }
            let width = match slots {
                ..=0xff => 1,
                0x100..=0xffff => 2,
                0x1_0000..=0xffff_ffff => 4,
                _ => 8,
            };
            (40, slots * width, slots, 24, word(32))
        };
        // Two thirds of the slots can be used (`USABLE_FRACTION`).
        let usable = (slots << 1) / 3;
        let entries = address.checked_add(head_bytes + index_bytes)?;
        (used <= usable).then_some(Self {
            entries,
            entry_bytes,
            used,
            bytes: head_bytes + index_bytes + usable * entry_bytes,
        })
    }

    /// Key and value.
    pub(super) fn entry(&self, memory: &dyn HeapMemory, number: u64) -> Option<[u64; 2]> {
        let end = self.entries.checked_add((number + 1) * self.entry_bytes)?;
        let bytes: [u8; 16] = Memory::bytes(&memory, end - 16)?;
        Some([0, 8].map(|at| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))))
    }
}
