//! Frames of CRuby: where the kernel side finds the control frames of a thread.
//!
//! Each execution context, that of a thread or of a fiber, has a stack of values. Control frames are at its end and grow downwards
//! (`rb_control_frame_t` in `vm_core.h`). The layouts here are the same in 3.0 to 3.4; those that differ are in [`Ruby`].

use crate::interpreter::{AddressRange, CODE_NAME_BYTES};
use crate::record::RecordHeader;
use crate::step::ReadMemory;

/// Where a process has the control frames of its threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[repr(C)]
pub struct Ruby {
    /// `vm_exec`: up to two ranges of addresses, of which the second holds what the compiler considered cold.
    pub loops: [AddressRange; 2],
    /// Number of the module whose thread-local storage has the pointer to the execution context (`ruby_current_ec`); 0 if the
    /// offset is from the thread pointer.
    pub tls_module: u64,
    /// Offset of the pointer in that storage (wrapping).
    pub tls_offset: u64,
    /// Bytes of a control frame: at most [`FRAME_BYTES_MAX`].
    pub frame_bytes: u32,
    /// [`USES_MUSL`], [`NAMES_OWNERS`] and [`LENGTH_IN_FLAGS`].
    pub flags: u32,
    /// In a body: the table of lines (`insns_info`), and the bytes of one of its entries, which begins with the line.
    pub lines: u32,
    pub line_bytes: u32,
    /// Address of the array with the names of symbols (`ids` of `ruby_global_symbols`); 0 if it is unknown.
    pub names: u64,
}

const _: () = assert!(size_of::<Ruby>() == 72);

/// The C library, which has the table of thread-local storage, is musl; without the flag, glibc.
pub const USES_MUSL: u32 = 1;
/// Names of frames have the owner of the method, and frames of `rescue` and `ensure` stand for the one that contains them (since 3.4).
pub const NAMES_OWNERS: u32 = 2;

/// Short strings have their length in their flags, and their bytes in its place (until 3.1).
pub const LENGTH_IN_FLAGS: u32 = 4;

pub const FRAME_BYTES_MAX: u32 = 64;

/// In an execution context (`rb_execution_context_t`): its stack, the number of words in it, and the innermost control frame.
pub const CONTEXT_STACK: u64 = 0;
pub const CONTEXT_STACK_WORDS: u64 = 8;
pub const CONTEXT_FRAME: u64 = 16;

/// In a control frame: the address behind the current instruction, the instruction sequence (`rb_iseq_t`), and the environment.
pub const FRAME_PC: u64 = 0;
pub const FRAME_ISEQ: u64 = 16;
pub const FRAME_ENVIRONMENT: u64 = 32;

/// From the word with the flags, which an environment's address refers to, downwards: the previous environment (its low bits are a
/// tag), and the method entry, or what refers to it.
pub const ENVIRONMENT_PREVIOUS: u64 = 8;
pub const ENVIRONMENT_METHOD: u64 = 16;

/// Flags of an environment: the kind of frame, whether it ends a call of the loop, whether it executes C, and whether there is no
/// previous environment.
pub const KIND_MASK: u64 = 0x7fff_0001;
pub const KIND_C: u64 = 0x5555_0001;
pub const IS_LAST: u64 = 0x20;
pub const EXECUTES_C: u64 = 0x80;
pub const IS_LOCAL: u64 = 2;

/// In an instruction sequence: its body (`struct rb_iseq_constant_body`).
pub const SEQUENCE_BODY: u64 = 16;
/// In a body: its type, an integer of 4 bytes, and the address of its instructions, which are words.
pub const BODY_TYPE: u64 = 0;
pub const BODY_INSTRUCTIONS: u64 = 8;

/// In a body: the path or paths, and the label.
pub const BODY_PATH: u64 = 64;
pub const BODY_LABEL: u64 = 80;
/// In the table of lines: the number of entries, an integer of 4 bytes, and the index by position.
pub const LINES_COUNT: u64 = 16;
pub const LINES_INDEX: u64 = 24;

/// In a body of 3.4: the sequence that contains it.
pub const BODY_PARENT: u64 = 160;

/// Types of bodies (`enum rb_iseq_type`).
pub const TYPE_RESCUE: u32 = 4;
pub const TYPE_ENSURE: u32 = 5;
pub const TYPE_EVAL: u32 = 6;

/// In a method entry (`rb_callable_method_entry_t` in `method.h`): its definition, and the class or module that owns it.
pub const METHOD_DEFINITION: u64 = 16;
pub const METHOD_OWNER: u64 = 32;

/// Of the flags of internal objects (`internal/imemo.h`): the bits of the kind, and kinds: a method entry, and special variables, whose
/// first word refers to one.
pub const OBJECT_MASK: u64 = 0xf01f;
pub const OBJECT_METHOD: u64 = 6 << 12 | 0x1a;
pub const OBJECT_VARIABLES: u64 = 2 << 12 | 0x1a;

/// Flags of objects (`ruby/internal/value_type.h`, `fl_type.h`): the type, and whether a string has its bytes, or an array its elements
/// elsewhere (a string) or here (an array).
pub const OBJECT_TYPE: u64 = 0x1f;
pub const CLASS: u64 = 2;
pub const MODULE: u64 = 3;
pub const STRING: u64 = 5;
pub const ARRAY: u64 = 7;
pub const FLAG_1: u64 = 1 << 13;

/// In an object, behind flags and class: the length, and what follows it.
pub const OBJECT_LENGTH: u64 = 16;
pub const OBJECT_CONTENT: u64 = 24;
/// In an array: the pointer to its elements.
pub const ARRAY_ELEMENTS: u64 = 32;

/// In a class of 3.4, with its `rb_classext_t`: the name; a byte whose lowest bit is set if that is its final name; the object of a
/// singleton class, which has [`FLAG_1`].
pub const CLASS_NAME: u64 = 152;
pub const CLASS_IS_NAMED: u64 = 149;
pub const CLASS_OBJECT: u64 = 128;

/// Detail of the place of an instruction sequence: changes if its body is replaced.
#[inline(always)]
pub const fn detail(body: u64, instructions: u64) -> u64 {
    body ^ instructions.rotate_left(16)
}

/// Where a string has its bytes, and their number. `None` if it is not a string.
#[inline(always)]
pub fn text(memory: &impl ReadMemory, flags: u32, string: u64) -> Option<(u64, u64)> {
    /// Where a short string has its length: 5 bits.
    const LENGTH_SHIFT: u32 = 14;
    const LENGTH_MASK: u64 = 0x1f;
    let word = memory.read_u64(string)?;
    if word & OBJECT_TYPE != STRING {
        return None;
    }
    if word & FLAG_1 == 0 && flags & LENGTH_IN_FLAGS != 0 {
        return Some((string.wrapping_add(OBJECT_LENGTH), word >> LENGTH_SHIFT & LENGTH_MASK));
    }
    let length = memory.read_u64(string.wrapping_add(OBJECT_LENGTH))?;
    let content = string.wrapping_add(OBJECT_CONTENT);
    Some((if word & FLAG_1 != 0 { memory.read_u64(content)? } else { content }, length))
}

/// The string with the name of a method in C. Names are in parts of a table (`get_id_serial_entry` in `symbol.c`), by numbers: those of
/// operators, and the upper bits of those of others.
#[inline(always)]
pub fn method_name(memory: &impl ReadMemory, names: u64, method: u64) -> Option<u64> {
    /// In the definition of a method (`rb_method_definition_t` in `method.h`): the number of its name.
    const DEFINITION_NAME: u64 = 32;
    const OPERATORS_END: u64 = 1024;
    const NAME_SHIFT: u32 = 4;
    const PART: u64 = 512;
    const NAME_WORDS: u64 = 2;
    if names == 0 {
        return None;
    }
    let definition = memory.read_u64(method.wrapping_add(METHOD_DEFINITION))?;
    let number = memory.read_u64(definition.wrapping_add(DEFINITION_NAME))?;
    let serial = if number < OPERATORS_END { number } else { number >> NAME_SHIFT };
    let part = element(memory, memory.read_u64(names)?, serial / PART)?;
    element(memory, part, serial % PART * NAME_WORDS)
}

/// An element of an array.
#[inline(always)]
fn element(memory: &impl ReadMemory, array: u64, index: u64) -> Option<u64> {
    let word = memory.read_u64(array)?;
    if word & OBJECT_TYPE != ARRAY {
        return None;
    }
    let elements = if word & FLAG_1 != 0 {
        array.wrapping_add(OBJECT_LENGTH)
    } else if index < memory.read_u64(array.wrapping_add(OBJECT_LENGTH))? {
        memory.read_u64(array.wrapping_add(ARRAY_ELEMENTS))?
    } else {
        return None;
    };
    memory.read_u64(elements.wrapping_add(index.wrapping_mul(8)))
}

/// `rescue` in `ensure` and so on.
const HANDLERS_MAX: usize = 8;

/// The body that has the label of one of 3.4: that of the sequence which contains `rescue`, `ensure` or an evaluated text
/// (`calculate_iseq_label` in `vm_backtrace.c`).
#[expect(clippy::cast_possible_truncation, reason = "integers of 4 bytes are read as words")]
#[inline(always)]
pub fn labelled(memory: &impl ReadMemory, body: u64) -> Option<u64> {
    let mut body = body;
    for _ in 0..HANDLERS_MAX {
        if !matches!(memory.read_u64(body.wrapping_add(BODY_TYPE))? as u32, TYPE_RESCUE | TYPE_ENSURE | TYPE_EVAL) {
            break;
        }
        let parent = memory.read_u64(body.wrapping_add(BODY_PARENT))?;
        if parent == 0 {
            break;
        }
        body = memory.read_u64(parent.wrapping_add(SEQUENCE_BODY))?;
    }
    Some(body)
}

/// The string with the absolute path of a body, or with that of code that is in no file: `(eval)`.
#[inline(always)]
pub fn path(memory: &impl ReadMemory, body: u64) -> Option<u64> {
    let object = memory.read_u64(body.wrapping_add(BODY_PATH))?;
    let word = memory.read_u64(object)?;
    if word & OBJECT_TYPE != ARRAY {
        return Some(object);
    }
    let here = object.wrapping_add(OBJECT_LENGTH);
    let elements = if word & FLAG_1 != 0 { here } else { memory.read_u64(object.wrapping_add(ARRAY_ELEMENTS))? };
    let absolute = memory.read_u64(elements.wrapping_add(8))?;
    match memory.read_u64(absolute) {
        Some(word) if word & OBJECT_TYPE == STRING => Some(absolute),
        _ => memory.read_u64(elements),
    }
}

/// The string with the name of the class or module that owns a method, and whether the method is one of its singleton class. `None`
/// without a name.
#[inline(always)]
pub fn owner(memory: &impl ReadMemory, method: u64) -> Option<(u64, bool)> {
    let owner = memory.read_u64(method.wrapping_add(METHOD_OWNER))?;
    let word = memory.read_u64(owner)?;
    let is_singleton = word & OBJECT_TYPE == CLASS && word & FLAG_1 != 0;
    let class = if is_singleton { memory.read_u64(owner.wrapping_add(CLASS_OBJECT))? } else { owner };
    let kind = memory.read_u64(class)? & OBJECT_TYPE;
    // A word that ends in the byte.
    let is_named = memory.read_u64(class.wrapping_add(CLASS_IS_NAMED - 7))? >> 56 & 1 != 0;
    if (kind != CLASS && kind != MODULE) || !is_named {
        return None;
    }
    Some((memory.read_u64(class.wrapping_add(CLASS_NAME))?, is_singleton))
}

/// Positions that have their ranks in the first words of an index (`struct succ_index_table` in `iseq.c`), 9 of 7 bits in each. Then blocks
/// follow, each with the rank before it, that of its words, and a bit for each of its positions.
const RANKED: u64 = 54;
const RANKED_IN_WORD: u64 = 9;
const RANK_BITS: u64 = 7;
const BLOCK_POSITIONS: u64 = 512;
const BLOCK_BYTES: u64 = 80;
const WORD_RANKS: u64 = 8;
const WORD_RANK_BITS: u64 = 9;
const BLOCK_BITS: u64 = 16;

/// The line of the instruction at this position.
#[expect(clippy::cast_possible_truncation, reason = "integers of 4 bytes are read as words")]
#[inline(always)]
pub fn line(memory: &impl ReadMemory, ruby: &Ruby, body: u64, position: u64) -> Option<u32> {
    let table = body.wrapping_add(ruby.lines as u64);
    let entries = memory.read_u64(table)?;
    let count = memory.read_u64(table.wrapping_add(LINES_COUNT))? as u32;
    let rank = match count {
        0 => return None,
        1 => 1,
        _ => rank(memory, memory.read_u64(table.wrapping_add(LINES_INDEX))?, position)?,
    };
    if rank == 0 || rank > count as u64 {
        return None;
    }
    let entry = entries.wrapping_add((rank - 1).wrapping_mul(ruby.line_bytes as u64));
    Some(memory.read_u64(entry)? as u32)
}

/// Number of entries up to this position.
#[inline(always)]
fn rank(memory: &impl ReadMemory, index: u64, position: u64) -> Option<u64> {
    if position < RANKED {
        let ranks = memory.read_u64(index.wrapping_add(position / RANKED_IN_WORD * 8))?;
        return Some(ranks >> (position % RANKED_IN_WORD * RANK_BITS) & ((1 << RANK_BITS) - 1));
    }
    let (number, bit) = ((position - RANKED) / BLOCK_POSITIONS, (position - RANKED) % BLOCK_POSITIONS);
    let block = index.wrapping_add(RANKED / RANKED_IN_WORD * 8).wrapping_add(number * BLOCK_BYTES);
    let before = memory.read_u64(block)? & 0xffff_ffff;
    let word_ranks = memory.read_u64(block.wrapping_add(WORD_RANKS))?;
    let word = bit / 64;
    let in_words =
        if word == 0 { 0 } else { word_ranks >> ((word - 1) * WORD_RANK_BITS) & ((1 << WORD_RANK_BITS) - 1) };
    let bits = memory.read_u64(block.wrapping_add(BLOCK_BITS).wrapping_add(word * 8))?;
    let in_word = (bits << (63 - bit % 64)).count_ones();
    Some(before + in_words + in_word as u64)
}

/// Maximum bytes of the name of a class or module in a record.
pub const OWNER_BYTES: usize = 128;

/// An instruction sequence, or a method in C: sent before, or shortly after, the first stack that contains it. Sequences of files and of
/// `eval` are freed when they have been executed.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RubyCodeRecord {
    /// Kind `RubyCode`.
    pub header: RecordHeader,
    /// A [`CodeId`](crate::interpreter::CodeId).
    pub code_id: u64,
    /// [`NAMES_OWNERS`] and [`IS_SINGLETON`].
    pub flags: u32,
    /// Bytes that were copied: the last ones of a longer text.
    pub label_bytes: u32,
    pub path_bytes: u32,
    pub owner_bytes: u32,
    pub label: [u8; CODE_NAME_BYTES],
    pub path: [u8; CODE_NAME_BYTES],
    pub owner: [u8; OWNER_BYTES],
}

/// The method is one of a singleton class.
pub const IS_SINGLETON: u32 = 1 << 16;

const _: () = assert!(size_of::<RubyCodeRecord>() == 32 + 2 * CODE_NAME_BYTES + OWNER_BYTES);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Words by their addresses.
    #[derive(Default)]
    struct Image(BTreeMap<u64, u64>);

    impl ReadMemory for Image {
        fn read_u64(&self, address: u64) -> Option<u64> {
            // Words that begin within others.
            let word = |at: u64| self.0.get(&at).copied();
            let (start, shift) = (address & !7, (address & 7) * 8);
            if shift == 0 { word(start) } else { Some(word(start)? >> shift | word(start + 8)? << (64 - shift)) }
        }
    }

    const BODY: u64 = 0x1000;
    const ENTRIES: u64 = 0x10_0000;
    const INDEX: u64 = 0x20_0000;

    /// A body with lines from these positions on, as CRuby makes its index; the lines are 100 and the number of the entry.
    fn image(ruby: &Ruby, starts: &[u64], positions: u64) -> Image {
        let mut bytes = vec![0u8; starts.len() * ruby.line_bytes as usize + 16];
        for (number, entry) in bytes.chunks_exact_mut(ruby.line_bytes as usize).take(starts.len()).enumerate() {
            entry[..4].copy_from_slice(&(100 + u32::try_from(number).expect("few")).to_le_bytes());
        }
        let mut image = Image::default();
        for (word, at) in bytes.as_chunks().0.iter().zip((ENTRIES..).step_by(8)) {
            image.0.insert(at, u64::from_le_bytes(*word));
        }
        let rank = |position: u64| starts.iter().filter(|&&start| start < position).count() as u64;
        for word in 0..6 {
            let ranks = (0..9).map(|place| rank(word * 9 + place + 1) << (place * 7));
            image.0.insert(INDEX + word * 8, ranks.sum());
        }
        for block in 0..positions.saturating_sub(RANKED).div_ceil(BLOCK_POSITIONS) {
            let (first, at) = (RANKED + block * BLOCK_POSITIONS, INDEX + 48 + block * BLOCK_BYTES);
            // Behind the rank, memory is not initialised.
            image.0.insert(at, rank(first) | 0xdead << 32);
            let ranks = (1..8).map(|word| (rank(first + word * 64) - rank(first)) << ((word - 1) * 9));
            image.0.insert(at + 8, ranks.sum());
            for word in 0..8 {
                let is_start = |bit: &u64| starts.contains(&(first + word * 64 + bit));
                image.0.insert(at + 16 + word * 8, (0..64).filter(is_start).map(|bit| 1 << bit).sum());
            }
        }
        image.0.insert(BODY + u64::from(ruby.lines), ENTRIES);
        image.0.insert(BODY + u64::from(ruby.lines) + LINES_COUNT, starts.len() as u64 | 0xbeef << 32);
        image.0.insert(BODY + u64::from(ruby.lines) + LINES_INDEX, INDEX);
        image
    }

    fn ruby() -> Ruby {
        Ruby { lines: 112, line_bytes: 12, ..Ruby::default() }
    }

    proptest! {
        #[test]
        fn lines_are_those_of_the_index(
            starts in prop::collection::btree_set(1u64..2000, 0..60), more in 1u64..100, line_bytes in 2u32..4,
        ) {
            let ruby = Ruby { line_bytes: line_bytes * 4, ..ruby() };
            let starts: Vec<u64> = std::iter::once(0).chain(starts).collect();
            let positions = starts.last().expect("one") + more;
            let image = image(&ruby, &starts, positions);
            for position in 0..positions {
                let entry = starts.iter().filter(|start| **start <= position).count() - 1;
                let entry = u32::try_from(entry).expect("few");
                prop_assert_eq!(line(&image, &ruby, BODY, position), Some(100 + entry), "{}", position);
            }
        }

        #[test]
        fn any_memory_is_read(words: Vec<u64>, flags: u32, position: u64) {
            struct Random(Vec<u64>);
            impl ReadMemory for Random {
                fn read_u64(&self, address: u64) -> Option<u64> {
                    self.0.get(usize::try_from(address % 64).expect("small")).copied()
                }
            }
            let memory = Random(words);
            let ruby = Ruby { flags, ..ruby() };
            let _ = line(&memory, &ruby, BODY, position);
            let _ = (text(&memory, flags, 8), path(&memory, 8), owner(&memory, 8), labelled(&memory, 8));
            let _ = method_name(&memory, 8, position);
        }
    }

    #[test]
    fn lines_may_be_missing() {
        let ruby = ruby();
        let mut image = image(&ruby, &[0], 10);
        image.0.remove(&(BODY + 112 + LINES_INDEX));
        assert_eq!(line(&image, &ruby, BODY, 5), Some(100), "one entry has no index");
        image.0.insert(BODY + 112 + LINES_COUNT, 0);
        assert_eq!(line(&image, &ruby, BODY, 5), None);
        image.0.insert(BODY + 112 + LINES_COUNT, 2);
        assert_eq!(line(&image, &ruby, BODY, 5), None);
    }

    #[test]
    fn texts_and_paths_are_found() {
        let mut image = Image::default();
        image.0.extend([(0x100, STRING | 3 << 14), (0x110, 9), (0x118, 0x500)]);
        assert_eq!(text(&image, LENGTH_IN_FLAGS, 0x100), Some((0x110, 3)));
        assert_eq!(text(&image, 0, 0x100), Some((0x118, 9)));
        image.0.insert(0x100, STRING | FLAG_1);
        assert_eq!([0, LENGTH_IN_FLAGS].map(|flags| text(&image, flags, 0x100)), [Some((0x500, 9)); 2]);
        image.0.insert(0x100, CLASS);
        assert_eq!(text(&image, 0, 0x100), None);
        // A path, or an array of the path and the absolute one, which can be `nil`.
        image.0.extend([(BODY + BODY_PATH, 0x200), (0x200, STRING)]);
        assert_eq!(path(&image, BODY), Some(0x200));
        image.0.extend([(0x200, ARRAY), (0x220, 0x300), (0x300, 0x400), (0x308, 0x408), (0x408, STRING)]);
        assert_eq!(path(&image, BODY), Some(0x408));
        image.0.extend([(0x200, ARRAY | FLAG_1), (0x210, 0x410), (0x218, 4)]);
        assert_eq!(path(&image, BODY), Some(0x410));
    }

    #[test]
    fn handlers_have_the_label_of_what_contains_them() {
        let mut image = Image::default();
        let mut body = |at: u64, kind: u32, parent: u64| {
            image.0.extend([
                (at, u64::from(kind) | 7 << 32),
                (at + BODY_PARENT, parent),
                (at - 0x100 + SEQUENCE_BODY, at),
            ]);
        };
        body(0x1000, TYPE_RESCUE, 0x1f00);
        body(0x2000, TYPE_ENSURE, 0x2f00);
        body(0x3000, 2, 0x3f00);
        body(0x4000, TYPE_EVAL, 0);
        body(0x5000, TYPE_EVAL, 0x4f00);
        assert_eq!(
            [0x1000, 0x3000, 0x4000].map(|body| labelled(&image, body)),
            [Some(0x3000), Some(0x3000), Some(0x4000)]
        );
        assert_eq!(labelled(&image, 0x5000), Some(0x5000), "a cycle");
    }

    #[test]
    fn methods_in_c_have_their_names() {
        const NAMES: u64 = 0x100;
        let mut image = Image::default();
        // An array of two parts, which have their elements elsewhere and here.
        image.0.extend([(NAMES, 0x200), (0x200, ARRAY), (0x210, 2), (0x220, 0x300), (0x300, 0x400), (0x308, 0x500)]);
        image.0.extend([(0x400, ARRAY), (0x410, 1024), (0x420, 0x10_0000), (0x10_0000 + 140 * 16, 0xaa)]);
        image.0.extend([(0x500, ARRAY | FLAG_1), (0x510, 0xbb), (0x520, 0xcc)]);
        image.0.insert(0x1000 + METHOD_DEFINITION, 0x2000);
        let mut check = |number, expected| {
            image.0.insert(0x2020, number);
            assert_eq!(method_name(&image, NAMES, 0x1000), expected, "{number}");
            assert_eq!(method_name(&image, 0, 0x1000), None);
        };
        check(140, Some(0xaa));
        check(512 << 4 | 1, Some(0xbb));
        check(513 << 4 | 1, Some(0xcc));
        for unknown in [1024 << 4 | 1, 0, u64::MAX] {
            check(unknown, None);
        }
    }

    #[test]
    fn owners_are_classes_and_modules_with_names() {
        let mut image = Image::default();
        let named = 1 << ((CLASS_IS_NAMED & 7) * 8);
        image.0.extend([(0x100 + METHOD_OWNER, 0x200), (0x200, CLASS), (0x200 + (CLASS_IS_NAMED & !7), named)]);
        image.0.extend([(0x200 + CLASS_NAME, 0xaa), (0x200 + CLASS_IS_NAMED / 8 * 8 - 8, 0)]);
        assert_eq!(owner(&image, 0x100), Some((0xaa, false)));
        image.0.extend([(0x200, CLASS | FLAG_1), (0x200 + CLASS_OBJECT, 0x400), (0x400, MODULE)]);
        image.0.extend([(0x400 + (CLASS_IS_NAMED & !7), named), (0x400 + CLASS_IS_NAMED / 8 * 8 - 8, 0)]);
        image.0.insert(0x400 + CLASS_NAME, 0xbb);
        assert_eq!(owner(&image, 0x100), Some((0xbb, true)));
        image.0.insert(0x400, ARRAY);
        assert_eq!(owner(&image, 0x100), None);
        image.0.extend([(0x400, CLASS), (0x400 + (CLASS_IS_NAMED & !7), 0)]);
        assert_eq!(owner(&image, 0x100), None, "without a final name");
    }

    #[test]
    fn details_differ_by_body_and_instructions() {
        let first = detail(0x7f00_0000_1000, 0x7f00_0000_2000);
        assert_ne!(first, detail(0x7f00_0000_1010, 0x7f00_0000_2000));
        assert_ne!(first, detail(0x7f00_0000_1000, 0x7f00_0000_2010));
        assert_ne!(first, detail(0x7f00_0000_2000, 0x7f00_0000_1000));
    }
}
