//! Where the machine keeps frames of virtual threads that are not on the stack: since JDK 21.
//!
//! Stack chunks and continuations are objects of two classes, whose fields have no fixed offsets: the machine keeps them in a stream of
//! compressed numbers for each class (`fieldStreams.hpp`).

use profiler_common::hotspot::FrozenFrames;
use rustc_hash::FxHashMap;

use super::super::memory::Memory;
use super::layout::Layout;
use super::method::symbol;
use super::structs::{Structs, Texts};

pub(super) const CONTINUATION: &str = "jdk/internal/vm/Continuation";
pub(super) const CHUNK: &str = "jdk/internal/vm/StackChunk";

/// Classes that the machine loads first, of which the description has some.
pub(super) const FIRST_CLASS: &str = "_klasses[static_cast<int>(vmClassID::Object_klass_knum)]";
/// It is loaded after the two classes.
pub(super) const LATER_CLASS: &str = "_klasses[static_cast<int>(vmClassID::MethodHandle_klass_knum)]";
/// Real machines have some 120.
const CLASSES_MAX: u64 = 256;
/// A stream of fields. Real ones have 90 bytes.
const STREAM_BYTES_MAX: usize = 4096;
const FIELDS_MAX: u32 = 128;

/// Flags of a field (`fieldInfo.hpp`).
const INITIALIZED: u32 = 1;
const INJECTED: u32 = 2;
const GENERIC: u32 = 4;
const CONTENDED: u32 = 16;

/// In the header of an object: its class, if it is not in the first word.
const CLASS_AT: u16 = 8;
/// In the first word, with compact headers (`markWord::klass_shift`).
const COMPACT_CLASS_SHIFT: u16 = 42;
const COMPACT_CLASS_MASK: u64 = (1 << 22) - 1;

/// Flags of the machine's command line. Real machines have 1,300.
const FLAGS_MAX: u32 = 4096;
const FLAG_BYTES_MAX: u64 = 64;
const FLAGS_BYTES_MAX: usize = 1 << 18;

/// `None` while the machine has not loaded its first classes. Places without a stack if the frames cannot be found: the machine is older, or its
/// garbage collector moves objects at any time and marks references (ZGC).
pub(super) fn find(structs: &Structs, layout: &Layout, memory: &impl Memory) -> Option<FrozenFrames> {
    let (Ok(first), Ok(later), Some(_)) = (
        structs.value("vmClasses", FIRST_CLASS),
        structs.value("vmClasses", LATER_CLASS),
        structs.find("InstanceKlass", "_fieldinfo_stream"),
    ) else {
        return Some(FrozenFrames::default());
    };
    if memory.word(later)? == 0 {
        return None;
    }
    let classes = Classes { structs, layout, memory };
    Some(classes.frozen(first).unwrap_or_default())
}

struct Classes<'a, M> {
    structs: &'a Structs,
    layout: &'a Layout,
    memory: &'a M,
}

impl<M: Memory> Classes<'_, M> {
    fn frozen(&self, first: u64) -> Option<FrozenFrames> {
        let flags = self.flags()?;
        let is_set = |name: &str| flags.get(name).copied().unwrap_or(false);
        if is_set("UseZGC") {
            return None;
        }
        let [continuation, chunk] = self.named(first, [CONTINUATION, CHUNK])?;
        let (of_continuation, of_chunk) = (self.fields(continuation)?, self.fields(chunk)?);
        let in_chunk = |name: &str| of_chunk.get(name).copied();
        let size = self.memory.integer(chunk.wrapping_add(self.structs.find("Klass", "_layout_helper")?))?;
        let mut frozen = FrozenFrames {
            class: chunk,
            class_mask: u64::MAX,
            class_at: CLASS_AT,
            tail: *of_continuation.get("tail")?,
            parent: in_chunk("parent")?,
            sp: in_chunk("sp")?,
            bottom: in_chunk("bottom")?,
            // The size of its fields; the lowest bit is a flag.
            stack: u16::try_from(size & !7).ok()?,
            ..FrozenFrames::default()
        };
        if is_set("UseCompressedClassPointers") || is_set("UseCompactObjectHeaders") {
            let [base, shift] =
                self.compression("CompressedKlassPointers", "_narrow_klass._base", "_narrow_klass._shift")?;
            frozen.class = chunk.checked_sub(base)?.checked_shr(u32::try_from(shift).ok()?)?;
            frozen.class_mask = u64::from(u32::MAX);
        }
        if is_set("UseCompactObjectHeaders") {
            (frozen.class_at, frozen.class_shift, frozen.class_mask) = (0, COMPACT_CLASS_SHIFT, COMPACT_CLASS_MASK);
        }
        if is_set("UseCompressedOops") {
            let [base, shift] = self.compression("CompressedOops", "_narrow_oop._base", "_narrow_oop._shift")?;
            (frozen.reference_base, frozen.reference_shift) = (base, u16::try_from(shift).ok()?);
            frozen.is_compressed = 1;
        }
        Some(frozen)
    }

    /// Base and shift, whose names have no prefix since JDK 22.
    fn compression(&self, kind: &'static str, base: &'static str, shift: &'static str) -> Option<[u64; 2]> {
        let value = |name: &'static str, short: &'static str| {
            self.structs.value(kind, name).or_else(|_| self.structs.value(kind, short)).ok()
        };
        let base = self.memory.word(value(base, "_base")?)?;
        Some([base, self.memory.integer(value(shift, "_shift")?)?.into()])
    }

    /// The classes with these names.
    fn named<const N: usize>(&self, first: u64, names: [&str; N]) -> Option<[u64; N]> {
        let mut found = [0; N];
        for index in 0..CLASSES_MAX {
            let class = self.memory.word(first.wrapping_add(index * 8))?;
            let name = self.memory.word(class.wrapping_add(self.layout.class_name));
            let name = name.and_then(|name| symbol(self.memory, self.layout, name));
            if let Some(at) = names.iter().position(|wanted| name.as_deref() == Some(wanted)) {
                found[at] = class;
            }
            if found.iter().all(|class| *class != 0) {
                return Some(found);
            }
        }
        None
    }

    /// Offsets of the fields of a class, by their names, without those that the machine has added.
    fn fields(&self, class: u64) -> Option<FxHashMap<String, u16>> {
        let stream = self.memory.word(class.wrapping_add(self.structs.find("InstanceKlass", "_fieldinfo_stream")?))?;
        let pool = self.memory.word(class.wrapping_add(self.structs.find("InstanceKlass", "_constants")?))?;
        let length = self.memory.integer(stream)?;
        let start = stream.wrapping_add(4);
        let bytes = self.memory.range(start, start.checked_add(length.into())?, STREAM_BYTES_MAX)?;
        let mut rest = &bytes[..];
        let mut number = || self.layout.encoding.number(&mut rest);
        let (count, _added) = (number()?, number()?);
        let mut fields = FxHashMap::default();
        for _ in 0..count.min(FIELDS_MAX) {
            let [name, _signature, offset, _access, flags] = [number()?, number()?, number()?, number()?, number()?];
            for flag in [INITIALIZED, GENERIC, CONTENDED] {
                if flags & flag != 0 {
                    number()?;
                }
            }
            if flags & INJECTED != 0 {
                continue;
            }
            let entry = pool.wrapping_add(self.layout.pool_bytes).wrapping_add(u64::from(name) * 8);
            let name = symbol(self.memory, self.layout, self.memory.word(entry)?)?;
            fields.insert(name, u16::try_from(offset).ok()?);
        }
        Some(fields)
    }

    /// Flags of the command line that are used, by their names.
    fn flags(&self) -> Option<FxHashMap<&'static str, bool>> {
        const USED: [&str; 4] =
            ["UseZGC", "UseCompressedOops", "UseCompressedClassPointers", "UseCompactObjectHeaders"];
        let offset = |field| self.structs.find("JVMFlag", field).and_then(|offset| usize::try_from(offset).ok());
        let (name, value) = (offset("_name")?, offset("_addr")?);
        let bytes = self.structs.size("JVMFlag").ok().filter(|&bytes| bytes <= FLAG_BYTES_MAX)?;
        let first = self.memory.word(self.structs.value("JVMFlag", "flags").ok()?)?;
        let count = self.memory.integer(self.structs.value("JVMFlag", "numFlags").ok()?)?.min(FLAGS_MAX);
        let end = first.checked_add(u64::from(count) * bytes)?;
        let all = self.memory.range(first, end, FLAGS_BYTES_MAX)?;
        let mut texts = Texts::of(self.memory);
        let mut flags = FxHashMap::default();
        for flag in all.chunks_exact(usize::try_from(bytes).ok().filter(|&bytes| bytes > 0)?) {
            let word = |at: usize| flag.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
            let Some(text) = texts.at(word(name)?) else { continue };
            if let Some(known) = USED.into_iter().find(|known| **known == text) {
                flags.insert(known, self.memory.bytes::<1>(word(value)?)? != [0]);
            }
        }
        Some(flags)
    }
}
