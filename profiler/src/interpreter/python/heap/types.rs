//! Types of objects.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use heapbpf_base::shown;
use heapbpf_linux::process_memory::PageState;
use rustc_hash::FxHashMap;

use super::super::super::memory::{HeapMemory, Memory};
use super::keys::{DICT_KEYS, Keys};
use super::layout::Layout;

/// `Py_TPFLAGS_…` in Include/object.h.
const MANAGED_WEAK_REFERENCES: u64 = 1 << 3;
const MANAGED_DICT: u64 = 1 << 4;
const INLINE_VALUES: u64 = 1 << 2;
const ON_HEAP: u64 = 1 << 9;
const COLLECTED: u64 = 1 << 14;
const IS_LIST: u64 = 1 << 25;
const IS_TEXT: u64 = 1 << 28;
const IS_DICT: u64 = 1 << 29;
const IS_TYPE: u64 = 1 << 31;

/// Offsets in `PyTypeObject`.
const OF_TYPE: usize = 8;
const NAME: usize = 24;
const SIZE: usize = 32;
const ITEM: usize = 40;
const FLAGS: usize = 168;
const BASE: usize = 256;
const DICT: usize = 264;
const HEAD_BYTES: usize = DICT + 8;

/// Two words, of the collector, or of an instance's dictionary and weak references.
const PREFIX_BYTES: u64 = 16;
/// Types of types that are followed: a metaclass of a metaclass of a metaclass.
const META_DEPTH: usize = 4;
/// Addresses that are read as those of types: programs have some thousand types.
const CANDIDATES_MAX: usize = 1 << 16;
const NAME_BYTES_MAX: usize = 256;
/// Entries of the dictionary of a type that are searched for its module, which is one of the first; and of all types.
const ENTRIES_OF_TYPE_MAX: u64 = 64;
const ENTRIES_MAX: u64 = 1 << 18;

/// What is known of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Type {
    /// Bytes of an object, without those of its items and the words before it.
    size_bytes: u64,
    item_bytes: u64,
    flags: u64,
    name: u64,
    pub(super) base: u64,
    dict: u64,
}

impl Type {
    /// Bytes before an object in its block.
    pub(super) fn before_bytes(self) -> u64 {
        let prefixes = [self.flags & COLLECTED != 0, self.flags & (MANAGED_DICT | MANAGED_WEAK_REFERENCES) != 0];
        PREFIX_BYTES * prefixes.into_iter().filter(|has| *has).count() as u64
    }

    /// Whether all objects have the same size.
    pub(super) fn has_one_size(self) -> bool {
        self.item_bytes == 0 && self.flags & (IS_TEXT | INLINE_VALUES) == 0 && self.flags & ON_HEAP != 0
    }

    /// Bytes that an object has at least, without the words before it.
    pub(super) fn own_bytes(self, layout: Layout) -> u64 {
        // The characters follow an object that is shorter than others of its type.
        if self.flags & IS_TEXT != 0 { layout.text_ascii + 1 } else { self.size_bytes }
    }

    pub(super) fn is_list(self) -> bool {
        self.flags & IS_LIST != 0
    }

    pub(super) fn is_dict(self) -> bool {
        self.flags & IS_DICT != 0
    }

    /// Whether attributes of its instances may be where [`Values`](super::layout::Values) says.
    pub(super) fn may_have_values(self) -> bool {
        self.flags & MANAGED_DICT != 0
    }
}

/// Types of a process, by address.
pub(super) struct Types<'a> {
    memory: &'a dyn HeapMemory,
    layout: Layout,
    /// Address of `type`.
    type_of_types: u64,
    /// `None` of what is no type.
    known: RefCell<FxHashMap<u64, Option<Type>>>,
    /// Whether something was not looked at since this was taken last: it is swapped out, or there were too many.
    has_refused: Cell<bool>,
    /// Entries of types' dictionaries that may still be read.
    entries_left: Cell<u64>,
}

impl<'a> Types<'a> {
    /// `None` if what is at the address is not the type of types.
    pub(super) fn new(memory: &'a dyn HeapMemory, layout: Layout, type_of_types: u64) -> Option<Self> {
        let own = memory.word(type_of_types.wrapping_add(OF_TYPE as u64))?;
        (own == type_of_types).then(|| Self {
            memory,
            layout,
            type_of_types,
            known: RefCell::default(),
            has_refused: Cell::new(false),
            entries_left: Cell::new(ENTRIES_MAX),
        })
    }

    pub(super) fn memory(&self) -> &'a dyn HeapMemory {
        self.memory
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// The type at an address.
    pub(super) fn get(&self, address: u64) -> Option<Type> {
        if let Some(known) = self.known.borrow().get(&address) {
            return *known;
        }
        let mut known = self.known.borrow_mut();
        // A program can make all of its blocks look like objects, each of another type.
        if known.len() >= CANDIDATES_MAX {
            self.has_refused.set(true);
            return None;
        }
        let found = self.read(address, META_DEPTH);
        if found.is_none() && self.is_swapped(address) {
            self.has_refused.set(true);
            return None;
        }
        known.insert(address, found);
        found
    }

    fn is_swapped(&self, address: u64) -> bool {
        let pages = self.memory.pages(address, HEAD_BYTES as u64);
        pages.is_some_and(|pages| pages.contains(&PageState::Swapped))
    }

    /// Whether a type was not looked at since this was called last.
    pub(super) fn take_refused(&self) -> bool {
        self.has_refused.replace(false)
    }

    /// An object is a type if its own type is that of types, or one derived from it.
    fn read(&self, address: u64, depth: usize) -> Option<Type> {
        let head: [u8; HEAD_BYTES] = Memory::bytes(&self.memory, address)?;
        let word = |at: usize| head[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let meta = word(OF_TYPE);
        let is_type = meta == self.type_of_types
            || depth > 0 && self.read(meta, depth - 1).is_some_and(|meta| meta.flags & IS_TYPE != 0);
        let found = Type {
            size_bytes: word(SIZE),
            item_bytes: word(ITEM),
            flags: word(FLAGS),
            name: word(NAME),
            base: word(BASE),
            dict: word(DICT),
        };
        // An object has two words at least, and what has more than this has no block in a pool.
        (is_type && (16..=1 << 20).contains(&found.size_bytes)).then_some(found)
    }

    /// The name, with that of its module.
    pub(super) fn name(&self, address: u64) -> Arc<str> {
        let Some(found) = self.get(address) else { return format!("{address:#x}").into() };
        let name = self.c_string(found.name).unwrap_or_else(|| format!("{address:#x}"));
        if found.flags & ON_HEAP == 0 {
            return name.into();
        }
        // The qualified name must be one of this name: else the type has another form than a class.
        let qualified =
            self.memory.word(address.wrapping_add(self.layout.qualified_name)).and_then(|text| self.text(text));
        let short = name.rsplit('.').next().unwrap_or(&name);
        let own = qualified.filter(|it| it == short || it.ends_with(&format!(".{short}")));
        let mut full = match self.module(found.dict) {
            Some(module) => format!("{module}.{}", own.as_deref().unwrap_or(short)),
            None => name,
        };
        full.truncate(full.floor_char_boundary(NAME_BYTES_MAX));
        full.into()
    }

    /// `__module__` of a class.
    fn module(&self, dict: u64) -> Option<String> {
        let keys = self.memory.word(dict.wrapping_add(DICT_KEYS))?;
        let entries = Keys::read(self.memory, keys, self.layout)?;
        for number in 0..entries.used.min(ENTRIES_OF_TYPE_MAX) {
            self.entries_left.set(self.entries_left.get().checked_sub(1)?);
            let [key, value] = entries.entry(self.memory, number)?;
            if key != 0 && self.text(key).as_deref() == Some("__module__") {
                return self.text(value);
            }
        }
        None
    }

    fn c_string(&self, address: u64) -> Option<String> {
        const PAGE_BYTES: u64 = 4096;
        let mut bytes = vec![0; NAME_BYTES_MAX];
        // It may end right before memory that cannot be read.
        let in_page = usize::try_from(PAGE_BYTES - address % PAGE_BYTES).unwrap_or(NAME_BYTES_MAX).min(NAME_BYTES_MAX);
        let (first, rest) = bytes.split_at_mut(in_page);
        self.memory.fill_from_files(address, first)?;
        if !first.contains(&0) && !rest.is_empty() {
            self.memory.fill_from_files(address.wrapping_add(in_page as u64), rest)?;
        }
        let name = bytes.split(|byte| *byte == 0).next().filter(|name| !name.is_empty())?;
        let mut name = shown::text(name).into_owned();
        name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
        Some(name)
    }

    /// A string object.
    fn text(&self, address: u64) -> Option<String> {
        const CHARACTERS: u64 = 16;
        const STATE: u64 = 32;
        let of = self.memory.word(address.wrapping_add(OF_TYPE as u64))?;
        self.get(of).filter(|of| of.flags & IS_TEXT != 0)?;
        let characters = usize::try_from(self.memory.word(address.wrapping_add(CHARACTERS))?).ok()?;
        let state = self.memory.integer(address.wrapping_add(STATE))?;
        let (width, is_compact, is_ascii) = (state >> 2 & 7, state >> 5 & 1 != 0, state >> 6 & 1 != 0);
        let width = usize::try_from(width).ok().filter(|width| is_compact && matches!(width, 1 | 2 | 4))?;
        let start = address.wrapping_add(if is_ascii { self.layout.text_ascii } else { self.layout.text_wide });
        let length = characters.min(NAME_BYTES_MAX) * width;
        let bytes = self.memory.range(start, start.checked_add(length as u64)?, length)?;
        let character = |bytes: &[u8]| {
            let number = bytes.iter().rev().fold(0_u32, |number, byte| number << 8 | u32::from(*byte));
            char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)
        };
        Some(bytes.chunks_exact(width).map(character).collect())
    }
}
