//! The machine's description of its structures: tables of fields and types, which it exports.

use heapbpf_base::address::LinkAddr;
use profiler_common::hotspot::CODE_HEAPS_MAX;
use rustc_hash::FxHashMap;
use thiserror::Error;

use super::super::memory::Memory;

/// Why frames of a machine are not unwound.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(super) enum Unsupported {
    #[error("its memory cannot be read")]
    Unreadable,
    #[error("its own description of its structures (`gHotSpotVMStructs`) lacks `{0}`; JDK 11 to 25 have it")]
    Missing(&'static str),
    #[error("it has {0} heaps of code; up to {CODE_HEAPS_MAX} are supported")]
    Heaps(u32),
}

/// Addresses of the pointers to the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exports {
    pub(super) structs: LinkAddr,
    pub(super) types: LinkAddr,
}

impl Exports {
    pub(super) const STRUCTS: &str = "gHotSpotVMStructs";
    pub(super) const TYPES: &str = "gHotSpotVMTypes";
}

/// Types whose fields are used.
const TYPES: &[&str] = &[
    "Abstract_VM_Version",
    "AbstractInterpreter",
    "CodeBlob",
    "CodeCache",
    "CodeHeap",
    "CompiledMethod",
    "CompressedKlassPointers",
    "CompressedOops",
    "ConstMethod",
    "ConstantPool",
    "GenericGrowableArray",
    "GrowableArray<int>",
    "GrowableArrayBase",
    "HeapBlock",
    "InstanceKlass",
    "JVMFlag",
    "Klass",
    "Method",
    "StubQueue",
    "Symbol",
    "VirtualSpace",
    "nmethod",
    "vmClasses",
];

/// Real tables have less than 4,000 entries.
const ENTRIES_MAX: usize = 1 << 14;
const NAME_BYTES_MAX: usize = 64;

/// `VMStructEntry`: names of type, field and its type, whether it is static (4 bytes), its offset, its address.
const FIELD_BYTES: usize = 48;
/// `VMTypeEntry`: names of the type and its superclass, three flags of 4 bytes, its size.
const TYPE_BYTES: usize = 40;

#[derive(Debug, Default)]
pub(super) struct Structs {
    offsets: FxHashMap<(&'static str, String), u64>,
    addresses: FxHashMap<(&'static str, String), u64>,
    sizes: FxHashMap<&'static str, u64>,
}

impl Structs {
    pub(super) fn read(memory: &impl Memory, exports: Exports, bias: u64) -> Result<Self, Unsupported> {
        let mut structs = Self::default();
        let mut texts = Texts::of(memory);
        let mut read = || {
            let fields = memory.word(exports.structs.0.wrapping_add(bias))?;
            each(memory, fields, |entry: &[u8; FIELD_BYTES]| {
                let Some(kind) = texts.known_type(word(entry, 0)) else { return };
                let Some(field) = texts.at(word(entry, 1)) else { return };
                if word(entry, 3) & u64::from(u32::MAX) == 0 {
                    structs.offsets.insert((kind, field), word(entry, 4));
                } else {
                    structs.addresses.insert((kind, field), word(entry, 5));
                }
            })?;
            let types = memory.word(exports.types.0.wrapping_add(bias))?;
            each(memory, types, |entry: &[u8; TYPE_BYTES]| {
                if let Some(kind) = texts.known_type(word(entry, 0)) {
                    structs.sizes.insert(kind, word(entry, 4));
                }
            })
        };
        read().ok_or(Unsupported::Unreadable)?;
        Ok(structs)
    }

    /// The offset of a field, which is below 64 KiB.
    pub(super) fn offset(&self, kind: &'static str, field: &'static str) -> Result<u64, Unsupported> {
        self.find(kind, field).ok_or(Unsupported::Missing(field))
    }

    pub(super) fn find(&self, kind: &'static str, field: &'static str) -> Option<u64> {
        self.offsets.get(&(kind, field.to_owned())).copied().filter(|&offset| offset < 1 << 16)
    }

    /// The address of a static field.
    pub(super) fn value(&self, kind: &'static str, field: &'static str) -> Result<u64, Unsupported> {
        self.addresses.get(&(kind, field.to_owned())).copied().ok_or(Unsupported::Missing(field))
    }

    pub(super) fn size(&self, kind: &'static str) -> Result<u64, Unsupported> {
        self.sizes.get(kind).copied().filter(|&size| size < 1 << 16).ok_or(Unsupported::Missing(kind))
    }
}

fn word(entry: &[u8], index: usize) -> u64 {
    entry.as_chunks().0.get(index).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Reads entries up to the one without a name. `None` if they cannot be read, or do not end.
fn each<const N: usize>(memory: &impl Memory, first: u64, mut entry: impl FnMut(&[u8; N])) -> Option<()> {
    const BATCH: usize = 64;
    let mut buffer = vec![0; BATCH * N];
    for batch in 0..ENTRIES_MAX / BATCH {
        let at = first.wrapping_add((batch * BATCH * N) as u64);
        // The end of the table may be the end of the mapping.
        let whole = memory.fill(at, &mut buffer).is_some();
        for (index, place) in buffer.as_chunks_mut::<N>().0.iter_mut().enumerate() {
            if !whole {
                memory.fill(at.wrapping_add((index * N) as u64), place)?;
            }
            if word(place, 0) == 0 {
                return Some(());
            }
            entry(place);
        }
    }
    None
}

/// Texts of the machine's library, of which neighbors are read together.
pub(super) struct Texts<'a, M> {
    memory: &'a M,
    pages: FxHashMap<u64, Option<Box<[u8; PAGE_BYTES]>>>,
}

const PAGE_BYTES: usize = 4096;
/// Real machines have them in some 100 pages.
const PAGES_MAX: usize = 1024;

impl<'a, M: Memory> Texts<'a, M> {
    pub(super) fn of(memory: &'a M) -> Self {
        Self { memory, pages: FxHashMap::default() }
    }

    fn known_type(&mut self, address: u64) -> Option<&'static str> {
        let name = self.at(address)?;
        TYPES.iter().find(|known| **known == name).copied()
    }

    pub(super) fn at(&mut self, address: u64) -> Option<String> {
        let mut text = Vec::new();
        for at in address..address.saturating_add(NAME_BYTES_MAX as u64) {
            let page = at / PAGE_BYTES as u64;
            let offset = usize::try_from(at % PAGE_BYTES as u64).ok()?;
            if self.pages.len() >= PAGES_MAX && !self.pages.contains_key(&page) {
                return None;
            }
            let memory = self.memory;
            let content = self.pages.entry(page).or_insert_with(|| {
                let mut content = Box::new([0; PAGE_BYTES]);
                memory.fill(page * PAGE_BYTES as u64, &mut *content).map(|()| content)
            });
            match content.as_ref()?[offset] {
                0 => break,
                byte => text.push(byte),
            }
        }
        String::from_utf8(text).ok()
    }
}
