//! Objects of V8 in the memory of a target, which controls them: lengths are limited, and so are steps from one to another.

use std::ops::Range;

use super::super::memory::Memory;
use super::layout::Layout;

/// Offsets in objects that are the same in all supported versions: of arrays, and of strings (`src/objects/string.tq`).
const ARRAY_LENGTH: u64 = 8;
const ARRAY_DATA: u64 = 16;
const STRING_LENGTH: u64 = 12;
const STRING_DATA: u64 = 16;
const STRING_SECOND: u64 = 24;

/// In the types of strings: what they consist of, and whether characters have one byte.
const FORM_MASK: u16 = 7;
const ONE_BYTE: u16 = 8;
const FIRST_OTHER_TYPE: u16 = 0x80;

/// Strings that one consists of. The engine joins them when it needs the characters.
const PARTS_MAX: usize = 4096;
/// Strings from one to the other that has its characters.
const INDIRECTIONS_MAX: usize = 4;
/// Elements of an array.
const ARRAY_MAX: u64 = 1 << 16;

/// Memory with objects of this layout.
pub(super) struct Heap<'a, M> {
    pub(super) memory: &'a M,
    pub(super) layout: &'a Layout,
}

/// A small integer.
pub(super) fn small(word: u64) -> Option<i32> {
    if word.trailing_zeros() >= 32 { Some(((word >> 32) as u32).cast_signed()) } else { None }
}

impl<M: Memory> Heap<'_, M> {
    /// Address of the object that a word refers to, strongly or weakly, and its type.
    pub(super) fn object(&self, word: u64) -> Option<(u64, u16)> {
        if word & 1 == 0 {
            return None;
        }
        let address = word & !3;
        let map = self.memory.word(address)?;
        if map & 3 != 1 {
            return None;
        }
        let bytes: [u8; 2] = self.memory.bytes((map - 1).wrapping_add(self.layout.map_type))?;
        Some((address, u16::from_le_bytes(bytes)))
    }

    /// Address of the object that a word refers to, if it has the type.
    pub(super) fn of_kind(&self, word: u64, kind: u16) -> Option<u64> {
        self.object(word).filter(|(_, found)| *found == kind).map(|(address, _)| address)
    }

    pub(super) fn field(&self, object: u64, offset: u64) -> Option<u64> {
        self.memory.word(object.wrapping_add(offset))
    }

    /// The content of an array of bytes.
    pub(super) fn array_bytes(&self, word: u64, bytes_max: usize) -> Option<Vec<u8>> {
        let (array, kind) = self.object(word)?;
        if !self.layout.kinds.bytes.contains(&Some(kind)) {
            return None;
        }
        let length = u64::try_from(small(self.field(array, ARRAY_LENGTH)?)?).ok()?;
        let start = array.wrapping_add(ARRAY_DATA);
        self.memory.range(start, start.checked_add(length)?, bytes_max)
    }

    /// The bytes of a bytecode object.
    pub(super) fn bytecode(&self, object: u64, bytes_max: usize) -> Option<Vec<u8>> {
        let length = u64::try_from(small(self.field(object, ARRAY_LENGTH)?)?).ok()?;
        let start = object.wrapping_add(self.layout.bytecode_data);
        self.memory.range(start, start.checked_add(length)?, bytes_max)
    }

    /// An array of objects: its address, and number of elements.
    pub(super) fn array(&self, word: u64) -> Option<Array> {
        let (address, kind) = self.object(word)?;
        if !self.layout.kinds.arrays.contains(&Some(kind)) {
            return None;
        }
        let length = u64::try_from(small(self.field(address, ARRAY_LENGTH)?)?).ok()?;
        (length <= ARRAY_MAX).then_some(Array { address, length })
    }

    pub(super) fn element(&self, array: Array, index: u64) -> Option<u64> {
        if index < array.length { self.field(array.address, ARRAY_DATA + index * 8) } else { None }
    }

    pub(super) fn is_string(&self, word: u64) -> bool {
        self.object(word).is_some_and(|(_, kind)| kind < FIRST_OTHER_TYPE)
    }

    /// The UTF-16 units of a string; `None` if it is longer, or cannot be read.
    pub(super) fn units(&self, word: u64, units_max: usize) -> Option<Vec<u16>> {
        let mut units = Vec::new();
        let mut pending = vec![word];
        for _ in 0..PARTS_MAX {
            let Some(word) = pending.pop() else { return Some(units) };
            let (string, kind) = self.object(word).filter(|(_, kind)| *kind < FIRST_OTHER_TYPE)?;
            let length = self.memory.integer(string.wrapping_add(STRING_LENGTH))? as usize;
            if units.len() + length > units_max {
                return None;
            }
            let first = self.field(string, STRING_DATA)?;
            match kind & FORM_MASK {
                0 => self.characters(string.wrapping_add(STRING_DATA), length, kind, &mut units)?,
                1 => pending.extend([self.field(string, STRING_SECOND)?, first]),
                // The resource is an object of the program's; its characters are cached behind it.
                2 => self.characters(self.field(string, STRING_SECOND)?, length, kind, &mut units)?,
                3 => {
                    let from = usize::try_from(small(self.field(string, STRING_SECOND)?)?).ok()?;
                    let parent = self.units_of_parent(first, from.checked_add(length)?, units_max)?;
                    units.extend_from_slice(parent.get(from..from + length)?);
                }
                5 => pending.push(first),
                _ => return None,
            }
        }
        None
    }

    /// Units of a string that is in one piece.
    pub(super) fn units_between(&self, mut word: u64, range: Range<usize>) -> Option<Vec<u16>> {
        let mut skipped = 0u64;
        for _ in 0..INDIRECTIONS_MAX {
            let (string, kind) = self.object(word).filter(|(_, kind)| *kind < FIRST_OTHER_TYPE)?;
            let length = self.memory.integer(string.wrapping_add(STRING_LENGTH))? as usize;
            let first = self.field(string, STRING_DATA)?;
            let start = match kind & FORM_MASK {
                0 => string.wrapping_add(STRING_DATA),
                2 => self.field(string, STRING_SECOND)?,
                1 | 5 => {
                    word = first;
                    continue;
                }
                3 => {
                    skipped = skipped.checked_add(u64::try_from(small(self.field(string, STRING_SECOND)?)?).ok()?)?;
                    word = first;
                    continue;
                }
                _ => return None,
            };
            if range.end as u64 + skipped > length as u64 {
                return None;
            }
            let width = if kind & ONE_BYTE != 0 { 1 } else { 2 };
            let mut units = Vec::new();
            let from = (range.start as u64 + skipped).checked_mul(width)?;
            self.characters(start.checked_add(from)?, range.len(), kind, &mut units)?;
            return Some(units);
        }
        None
    }

    /// The first units of a string that has its characters itself, as the parents of slices do.
    fn units_of_parent(&self, word: u64, length: usize, units_max: usize) -> Option<Vec<u16>> {
        let (mut string, mut kind) = self.object(word).filter(|(_, kind)| *kind < FIRST_OTHER_TYPE)?;
        if kind & FORM_MASK == 5 {
            (string, kind) =
                self.object(self.field(string, STRING_DATA)?).filter(|(_, kind)| *kind < FIRST_OTHER_TYPE)?;
        }
        if length > units_max {
            return None;
        }
        let start = match kind & FORM_MASK {
            0 => string.wrapping_add(STRING_DATA),
            2 => self.field(string, STRING_SECOND)?,
            _ => return None,
        };
        let mut units = Vec::new();
        self.characters(start, length, kind, &mut units)?;
        Some(units)
    }

    fn characters(&self, start: u64, length: usize, kind: u16, units: &mut Vec<u16>) -> Option<()> {
        let width = if kind & ONE_BYTE != 0 { 1 } else { 2 };
        let bytes = length.checked_mul(width)?;
        let read = self.memory.range(start, start.checked_add(bytes as u64)?, bytes)?;
        if width == 1 {
            units.extend(read.iter().map(|&byte| u16::from(byte)));
        } else {
            units.extend(read.as_chunks().0.iter().map(|unit| u16::from_le_bytes(*unit)));
        }
        Some(())
    }

    /// A short string, such as a name.
    pub(super) fn text(&self, word: u64) -> Option<String> {
        self.units(word, NAME_UNITS_MAX).map(|units| String::from_utf16_lossy(&units))
    }
}

/// Longer names are not shown.
const NAME_UNITS_MAX: usize = 4096;

#[derive(Clone, Copy)]
pub(super) struct Array {
    address: u64,
    pub(super) length: u64,
}
