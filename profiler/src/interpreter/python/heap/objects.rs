//! Objects in blocks, and the tables that they own.

use std::iter::successors;
use std::ops::Range;

use heapbpf_base::language::Language;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{HeapBlocks, ObjectType, ObjectTypes};
use rustc_hash::FxHashMap;

use super::keys::{DICT_KEYS, Keys};
use super::layout::Values;
use super::pools::{Arenas, Blocks, block_bytes};
use super::types::{Type, Types};

/// Offsets of pointers to tables, and of their sizes, in `PyDictObject`, `PyListObject` and `PySetObject`.
const DICT_VALUES: u64 = 40;
const LIST_ITEMS: u64 = 24;
const LIST_ALLOCATED: u64 = 32;
const SET_MASK: u64 = 32;
const SET_TABLE: u64 = 40;
const SET_ENTRY_BYTES: u64 = 16;

/// Bytes before a block's data with the debug hooks (`PYTHONMALLOC=debug`): its size, a letter, and bytes that are forbidden to write.
const DEBUG_HEAD_BYTES: usize = 16;
/// As many behind it at least.
const DEBUG_TAIL_BYTES: usize = 8;
const FORBIDDEN: u8 = 0xfd;
/// Nothing is mapped below (`vm.mmap_min_addr`).
const LOWEST_ADDRESS: u64 = 1 << 16;
/// Larger blocks are in the C library's heap.
const SMALL_BYTES_MAX: u64 = 512;
/// Tables of keys outside of the heap that are read.
const LARGE_KEYS_MAX: u64 = 1 << 20;
/// Types that one is derived from, one from the other.
const BASES_MAX: usize = 32;
/// A larger table is no table.
const TABLE_BYTES_MAX: u64 = 1 << 42;

#[derive(Clone, Copy, Debug, Default)]
struct Row {
    objects: u64,
    own_bytes: u64,
    /// Tables in pools.
    tables: HeapBlocks,
    large_bytes: u64,
}

/// Counts objects.
pub(super) struct Census<'a> {
    types: Types<'a>,
    arenas: &'a Arenas,
    /// The mapped module of the interpreter.
    module: Range<u64>,
    /// Types of sets, frozen or not, which no flag tells.
    is_set: FxHashMap<u64, bool>,
    rows: FxHashMap<u64, Row>,
    no_objects: HeapBlocks,
    /// Blocks that are perhaps objects of types that were not looked at.
    refused: HeapBlocks,
    /// Tables of keys outside of the heap.
    large_keys: u64,
}

/// An object in a block.
struct Object<'b> {
    address: u64,
    /// Address of its type.
    of: u64,
    is: Type,
    /// The words before it, itself, and what is behind it in the block.
    block: &'b [u8],
    offset: usize,
}

impl Object<'_> {
    /// A word of the object; at a negative offset, of those before it.
    fn word(&self, offset: i64) -> Option<u64> {
        let at = usize::try_from(i64::try_from(self.offset).ok()? + offset).ok()?;
        self.block.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
    }
}

impl<'a> Census<'a> {
    pub(super) fn new(types: Types<'a>, arenas: &'a Arenas, module: Range<u64>) -> Self {
        Self {
            types,
            arenas,
            module,
            is_set: FxHashMap::default(),
            rows: FxHashMap::default(),
            no_objects: HeapBlocks::default(),
            refused: HeapBlocks::default(),
            large_keys: 0,
        }
    }

    pub(super) fn count(&mut self, blocks: &Blocks) {
        let bytes = blocks.size_bytes();
        for (address, block) in blocks.allocated() {
            let Some(object) = self.object(address, block) else {
                let is_refused = self.types.take_refused();
                let blocks = if is_refused { &mut self.refused } else { &mut self.no_objects };
                blocks.blocks += 1;
                blocks.bytes += bytes;
                continue;
            };
            let row = self.rows.entry(object.of).or_default();
            row.objects += 1;
            row.own_bytes += bytes;
            self.count_tables(&object);
        }
    }

    /// The object in a block.
    fn object<'b>(&self, address: u64, block: &'b [u8]) -> Option<Object<'b>> {
        let debug = debug_data(block);
        let (address, block) = match debug {
            Some(data) => (address + DEBUG_HEAD_BYTES as u64, data),
            None => (address, block),
        };
        // The words of the collector can look like an object, but not the other way round: the object's own first word is a count.
        [0_usize, 16, 32].into_iter().find_map(|offset| {
            let word = |at: usize| block.get(offset + at..)?.first_chunk().map(|word| u64::from_le_bytes(*word));
            word(0).filter(|count| is_count(*count) && !self.is_address(*count))?;
            let of = word(8).filter(|of| self.may_be_type(*of))?;
            let is = self.types.get(of)?;
            let used = is.before_bytes() + is.own_bytes(self.types.layout());
            let has_room = match (is.has_one_size(), debug) {
                (true, Some(_)) => used == block.len() as u64,
                (true, None) => used.next_multiple_of(16) == block.len() as u64,
                (false, _) => used <= block.len() as u64,
            };
            let is_here = is.before_bytes() == offset as u64 && has_room;
            is_here.then_some(Object { address: address + offset as u64, of, is, block, offset })
        })
    }

    /// Whether a word is rather the address of an object than a number of references. Programs that are not position-independent are at low
    /// addresses, and so is their `None`, with which many lists begin.
    fn is_address(&self, word: u64) -> bool {
        word >= LOWEST_ADDRESS && word.is_multiple_of(8) && self.types.memory().is_mapped(word)
    }

    /// Types are larger than the blocks of pools.
    fn may_be_type(&self, address: u64) -> bool {
        self.is_address(address) && self.arenas.block_at(address).is_none()
    }

    fn count_tables(&mut self, object: &Object<'_>) {
        let words =
            |offsets: [u64; 2]| offsets.map(|offset| object.word(i64::try_from(offset).unwrap_or(0)).unwrap_or(0));
        if object.is.is_dict() {
            let [keys, values] = words([DICT_KEYS, DICT_VALUES]);
            // With values of their own, dictionaries share their keys.
            if values == 0 {
                self.count_keys(object.of, keys);
            } else if self.types.layout().values != Values::Inline || self.arenas.begins_block(values) {
                self.count_table(object.of, values, 0);
            }
        } else if object.is.is_list() {
            let [items, allocated] = words([LIST_ITEMS, LIST_ALLOCATED]);
            self.count_table(object.of, items, allocated.saturating_mul(8));
        } else if self.is_set(object.of) {
            let [mask, table] = words([SET_MASK, SET_TABLE]);
            // A small set has its table in itself.
            if !(object.address..object.address + 512).contains(&table) {
                self.count_table(object.of, table, mask.saturating_add(1).saturating_mul(SET_ENTRY_BYTES));
            }
        }
        if object.is.may_have_values() {
            let values = match self.types.layout().values {
                Values::Address => object.word(-32),
                Values::TaggedAddress => object.word(-24).filter(|word| word & 1 != 0).map(|word| word.wrapping_add(1)),
                Values::None | Values::Inline => None,
            };
            if let Some(values) = values {
                self.count_table(object.of, values, 0);
            }
        }
    }

    fn count_keys(&mut self, of: u64, keys: u64) {
        if self.arenas.block_at(keys).is_some() {
            self.count_table(of, keys, 0);
            return;
        }
        // The keys of an empty dictionary are a constant of the interpreter.
        if self.module.contains(&keys) {
            return;
        }
        self.large_keys += 1;
        if self.large_keys > LARGE_KEYS_MAX {
            return;
        }
        if let Some(keys) = Keys::read(self.types.memory(), keys, self.types.layout()) {
            self.count_large(of, keys.bytes);
        }
    }

    /// Counts a table at an address, of which the size is known from its block in a pool, else from the object.
    fn count_table(&mut self, of: u64, address: u64, bytes: u64) {
        match self.arenas.block_at(address) {
            Some(bytes) => {
                let tables = &mut self.rows.entry(of).or_default().tables;
                tables.blocks += 1;
                tables.bytes += bytes;
            }
            None if address != 0 => self.count_large(of, bytes),
            None => {}
        }
    }

    fn count_large(&mut self, of: u64, bytes: u64) {
        if (SMALL_BYTES_MAX + 1..=TABLE_BYTES_MAX).contains(&bytes) {
            let row = self.rows.entry(of).or_default();
            row.large_bytes = row.large_bytes.saturating_add(bytes);
        }
    }

    fn is_set(&mut self, of: u64) -> bool {
        let types = &self.types;
        *self.is_set.entry(of).or_insert_with(|| {
            let mut all = successors(Some(of), |of| types.get(*of).map(|is| is.base)).take(BASES_MAX);
            all.any(|of| matches!(&*types.name(of), "set" | "frozenset"))
        })
    }

    /// `one_of` so many pools was read. `unread` are numbers of blocks by the index of their size.
    pub(super) fn finish(self, one_of: u64, unread: &FxHashMap<u8, u64>, time: MonotonicNanos) -> ObjectTypes {
        let all = self.arenas.pools().fold(HeapBlocks::default(), |sum, pool| HeapBlocks {
            blocks: sum.blocks + u64::from(pool.count),
            bytes: sum.bytes + u64::from(pool.count) * pool.block_bytes(),
        });
        let times = |number: u64| number.saturating_mul(one_of);
        let mut owned = HeapBlocks::default();
        let mut types: Vec<ObjectType> = Vec::new();
        for (address, row) in &self.rows {
            owned.blocks += row.tables.blocks;
            owned.bytes += row.tables.bytes;
            types.push(ObjectType {
                name: self.types.name(*address),
                objects: times(row.objects),
                bytes: times(row.own_bytes + row.tables.bytes),
                large_bytes: times(row.large_bytes),
                grown_objects: 0,
                grown_bytes: 0,
            });
        }
        let not_looked_at = HeapBlocks {
            blocks: times(self.refused.blocks),
            bytes: times(self.refused.bytes) + self.arenas.unread_bytes(),
        };
        let unread = unread.iter().fold(not_looked_at, |sum, (size, blocks)| HeapBlocks {
            blocks: sum.blocks + times(*blocks),
            bytes: sum.bytes + times(*blocks * block_bytes(*size)),
        });
        let mut counted = ObjectTypes {
            language: Language::Python,
            time,
            since: None,
            types,
            more_types: 0,
            blocks: all,
            other: HeapBlocks {
                blocks: times(self.no_objects.blocks.saturating_sub(owned.blocks)),
                bytes: times(self.no_objects.bytes.saturating_sub(owned.bytes)),
            },
            reserved_bytes: self.arenas.reserved_bytes(),
            one_of,
            unread,
        };
        counted.sort();
        counted
    }
}

/// Whether a word can be the number of references to a live object. In 3.14 its upper half has flags, in its last 16 bits.
fn is_count(word: u64) -> bool {
    word & 0xffff_ffff != 0 && word >> 32 & 0xffff == 0
}

/// The data of a block, where debug hooks are around it: as many bytes as the head says.
fn debug_data(block: &[u8]) -> Option<&[u8]> {
    let (head, data) = block.split_at_checked(DEBUG_HEAD_BYTES)?;
    let is_marked = matches!(head[8], b'o' | b'm' | b'r') && head[9..].iter().all(|byte| *byte == FORBIDDEN);
    let bytes = head.first_chunk().and_then(|bytes| usize::try_from(u64::from_be_bytes(*bytes)).ok());
    let (data, tail) = data.split_at_checked(bytes.filter(|_| is_marked)?)?;
    tail.starts_with(&[FORBIDDEN; DEBUG_TAIL_BYTES]).then_some(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_references_are_told_from_addresses() {
        for count in [1, 2, 0xffff_ffff, 0x4000_0001, 0x0001_0000_0000_0003] {
            assert!(is_count(count), "{count:#x}");
        }
        for other in [0, 0x7f12_3456_7890, 0x5555_5555_0010, 1 << 32] {
            assert!(!is_count(other), "{other:#x}");
        }
    }
}
