//! What differs between versions of CPython's allocator and objects, and where a process has them.

use std::ops::Range;

use thiserror::Error;

use super::super::super::version::Version;

/// Why objects are not counted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum HeapError {
    #[error(
        "its allocator for objects was not found: `PYTHONMALLOC=malloc`, another build than those known, or memory that is swapped out"
    )]
    NoPools,
    #[error("the program's symbols lack `PyType_Type`")]
    NoTypes,
    #[error("its memory cannot be read, or is swapped out")]
    Unreadable,
}

/// Offsets and sizes of a version.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(super) arena_bytes: u64,
    pub(super) pool_bytes: u64,
    /// Whether the list of arenas follows the table of pools.
    pub(super) is_one_state: bool,
    /// Whether tables of keys have the logarithms of their sizes.
    pub(super) has_logarithms: bool,
    /// Offset of the characters of a string of ASCII, and of another one.
    pub(super) text_ascii: u64,
    pub(super) text_wide: u64,
    pub(super) values: Values,
    /// Offset of the qualified name in a type that is on the heap.
    pub(super) qualified_name: u64,
}

/// Where instances keep their attributes if they have no dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Values {
    /// They have one.
    None,
    /// In a block whose address is in the fourth word before the object.
    Address,
    /// In a block whose address minus one is in the third word before the object.
    TaggedAddress,
    /// Behind the object itself.
    Inline,
}

impl Layout {
    /// `text` are the offsets of characters in strings.
    pub(crate) fn of(version: Version, text_ascii: u16, text_wide: u16) -> Self {
        let minor = version.minor;
        let (arena_bytes, pool_bytes) = if minor < 10 { (256 << 10, 4 << 10) } else { (1 << 20, 16 << 10) };
        Self {
            arena_bytes,
            pool_bytes,
            is_one_state: minor >= 12,
            has_logarithms: minor >= 11,
            text_ascii: text_ascii.into(),
            text_wide: text_wide.into(),
            values: match minor {
                ..=10 => Values::None,
                11 => Values::Address,
                12 => Values::TaggedAddress,
                13.. => Values::Inline,
            },
            // `PyTypeObject`, with a field more in 3.8 and since 3.12; methods of asynchronous objects, with a field more since 3.10; of
            // numbers, mappings, sequences and buffers; name and slots (`PyHeapTypeObject` in cpython/object.h).
            qualified_name: match minor {
                8 => 416 + 24,
                9 => 408 + 24,
                10 | 11 => 408 + 32,
                _ => 416 + 32,
            } + 288
                + 24
                + 80
                + 16
                + 16,
        }
    }
}

/// Writable data of the module with the interpreter, in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Data {
    pub(crate) sections: Vec<Range<u64>>,
    /// The mapped module.
    pub(crate) module: Range<u64>,
}
