//! Frames of interpreted functions: how they stand in a stack, and where the kernel side finds them in a process.
//!
//! A frame of an interpreted function is one word of a stack, as a return address is. Addresses of user space have 47 bits
//! (`TASK_SIZE_MAX` in `arch/x86/include/asm/page_64_types.h`; 56 with five levels of page tables, on request only), so the
//! highest bit distinguishes them.

use crate::limits::INTERPRETED_CODE_BYTES_MAX;
use crate::record::RecordHeader;

/// Set in the word of an interpreted function's frame.
pub const INTERPRETED: u64 = 1 << 63;

/// Bits of the word that number the instruction within its code.
pub const INSTRUCTION_BITS: u32 = 20;

/// Bits of the word with the [`CodeKind`], below [`INTERPRETED`].
pub const KIND_BITS: u32 = 3;
const KIND_SHIFT: u32 = 63 - KIND_BITS;
const CODE_MASK: u64 = (1 << (KIND_SHIFT - INSTRUCTION_BITS)) - 1;

/// The instruction is unknown, or beyond what the word can express.
pub const INSTRUCTION_UNKNOWN: u32 = (1 << INSTRUCTION_BITS) - 1;

/// What the code of a frame is. The highest value is never used: its words would be among the addresses of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CodeKind {
    /// A code object of CPython. The instruction is the number of a code unit of 2 bytes.
    Cpython = 0,
    /// A method that the interpreter of HotSpot executes. The instruction is its index in the bytecode.
    JavaInterpreted = 1,
    /// Code that a compiler of HotSpot generated. The instruction is the offset of the return address in its blob.
    JavaCompiled = 2,
    /// Other code that HotSpot generated.
    JavaStub = 3,
    /// A function of V8. The instruction is the offset in its bytecode.
    JavaScript = 4,
    /// A function of PHP. The instruction is the line.
    Php = 5,
    /// An instruction sequence of Ruby, or a method in C. The instruction is the line.
    Ruby = 6,
}

impl CodeKind {
    /// The kind for a wire value, or `None` if this version does not define it.
    pub const fn from_wire(value: u8) -> Option<Self> {
        Some(match value {
            0 => Self::Cpython,
            1 => Self::JavaInterpreted,
            2 => Self::JavaCompiled,
            3 => Self::JavaStub,
            4 => Self::JavaScript,
            5 => Self::Php,
            6 => Self::Ruby,
            _ => return None,
        })
    }

    /// The word behind those of the last kind.
    pub const END: u64 = INTERPRETED | 7 << KIND_SHIFT;

    /// The lowest word of a frame of this kind. Those of the next kind follow.
    pub const fn first_word(self) -> u64 {
        INTERPRETED | (self as u64) << KIND_SHIFT
    }
}

/// What executes functions. Each has a map with the places of its structures in processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Runtime {
    Cpython = 0,
    Hotspot = 1,
    V8 = 2,
    Ruby = 3,
    Php = 4,
}

const RUNTIME_SHIFT: u32 = 28;

impl Runtime {
    /// Number of a place in the runtime's map, which is never 0.
    pub const fn number(self, index: u32) -> u32 {
        (self as u32) << RUNTIME_SHIFT | (index + 1)
    }

    /// Whether the number is of this runtime.
    #[inline(always)]
    pub const fn has(self, number: u32) -> bool {
        number >> RUNTIME_SHIFT == self as u32
    }
}

/// Index in the map of a runtime, from the number of a place; beyond any map for 0.
#[inline(always)]
pub const fn runtime_index(number: u32) -> u32 {
    (number & ((1 << RUNTIME_SHIFT) - 1)).wrapping_sub(1)
}

/// Name of the frame that stands for native functions which are missing between those of an interpreter.
pub const NATIVE_MISSING: &str = "[native functions missing]";

/// A frame of an interpreted function, or of another whose code is identified by a [`CodeId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterpretedFrame {
    pub kind: CodeKind,
    /// Identifies the code: as of [`CodeId::in_frames`].
    pub code: u64,
    /// The instruction that is executed, as its kind counts them, or [`INSTRUCTION_UNKNOWN`].
    pub instruction: u32,
}

impl InterpretedFrame {
    /// `None` for a return address.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the masks leave 20 and 3 bits")]
    pub const fn from_word(word: u64) -> Option<Self> {
        if word & INTERPRETED == 0 {
            return None;
        }
        let Some(kind) = CodeKind::from_wire((word >> KIND_SHIFT) as u8 & ((1 << KIND_BITS) - 1)) else { return None };
        let instruction = word as u32 & INSTRUCTION_UNKNOWN;
        Some(Self { kind, code: word >> INSTRUCTION_BITS & CODE_MASK, instruction })
    }

    #[inline(always)]
    pub const fn to_word(self) -> u64 {
        let unit = if self.instruction > INSTRUCTION_UNKNOWN { INSTRUCTION_UNKNOWN } else { self.instruction };
        self.kind.first_word() | ((self.code & CODE_MASK) << INSTRUCTION_BITS) | unit as u64
    }
}

/// Hash of the process, the address of a code object and what it refers to, so that another object at the same address has
/// another id. 64 bits as a key of what has been sent; the highest 40 of them in frames: among 100,000 objects of a process,
/// two share these with a probability of 0.5 %.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeId(pub u64);

impl CodeId {
    /// As in [`InterpretedFrame::code`].
    #[inline(always)]
    pub const fn in_frames(self) -> u64 {
        self.0 >> (INSTRUCTION_BITS + KIND_BITS + 1)
    }
}

/// How the frames of one call of the interpreter loop end, from the innermost outwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameChain {
    /// A call of the loop executes one frame (CPython up to 3.10).
    One = 0,
    /// The outermost frame has its flag set (3.11: `is_entry`).
    Entry = 1,
    /// A frame without code follows the outermost one: its owner is [`Interpreter::entry_owner`] or higher (since 3.12).
    Shim = 2,
}

/// Format of the table with the lines of a code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum LineTable {
    /// `co_lnotab`, up to CPython 3.9.
    Deltas = 0,
    /// `co_linetable` of 3.10 (PEP 626).
    Ranges = 1,
    /// `co_linetable` since 3.11 (`InternalDocs/code_objects.md` of CPython 3.13).
    Locations = 2,
}

impl LineTable {
    /// The format for a wire value, or `None` if this version does not define it.
    pub const fn from_wire(value: u8) -> Option<Self> {
        Some(match value {
            0 => Self::Deltas,
            1 => Self::Ranges,
            2 => Self::Locations,
            _ => return None,
        })
    }
}

/// Words that are read of a frame at once.
pub const FRAME_WORDS: usize = 16;
/// Words that identify a code object: its file, name, qualified name and line table.
pub const CODE_WORDS: usize = 4;

/// Where a process's interpreter keeps its frames. Offsets are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[repr(C)]
pub struct Interpreter {
    /// The interpreter loop: up to two ranges of addresses, of which the second holds what the compiler considered cold.
    pub loops: [AddressRange; 2],
    /// Address of the pointer to the state of the thread that holds the interpreter's lock; 0 if there is none.
    pub holder: u64,
    /// Address of the key of the thread-specific data that refers to the thread's state: an integer of 4 bytes.
    pub key: u64,
    /// Distance of the thread pointer from the control block of its thread, which `pthread_self` returns: 0 on x86-64.
    pub control_block: u64,
    /// In the thread's state: the frame, or what refers to it.
    pub state_frame: u16,
    /// In the thread's state: the control block of its thread, which verifies it.
    pub state_thread: u16,
    /// In what the thread's state refers to: the frame plus 1, or 0 if the state refers to the frame itself (3.11 and 3.12
    /// have a `cframe` in between).
    pub indirect_frame: u16,
    /// Bytes of a frame to read: at most [`FRAME_WORDS`] words.
    pub frame_bytes: u16,
    pub frame_previous: u16,
    pub frame_code: u16,
    /// Of the pointer to the instruction, or of its number.
    pub frame_instruction: u16,
    /// Of the byte that ends a [`FrameChain`].
    pub frame_owner: u16,
    /// In a code object: the first of its [`Self::code_words`] identifying words.
    pub code_first: u16,
    /// In a code object: its bytecode; 0 if frames have the number of the instruction.
    pub code_bytecode: u16,
    pub code_line: u16,
    /// In a text object: the characters of one that is ASCII, and of one that is not.
    pub text_ascii: u16,
    pub text_wide: u16,
    /// A [`FrameChain`].
    pub chain: u8,
    /// Lowest owner of frames without code.
    pub entry_owner: u8,
    /// At most [`CODE_WORDS`]; the last refers to the line table, the first to the file.
    pub code_words: u8,
    /// Which of the words refers to the name.
    pub code_name: u8,
    /// [`COUNTS_BYTES`] and [`USES_MUSL`].
    pub flags: u8,
    /// A [`LineTable`], for the agent.
    pub line_table: u8,
}

const _: () = assert!(size_of::<Interpreter>() == 88);

/// The number of an instruction counts bytes; without the flag, code units of 2 bytes.
pub const COUNTS_BYTES: u8 = 1;
/// The C library, which keeps thread-specific data, is musl; without the flag, glibc.
pub const USES_MUSL: u8 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[repr(C)]
pub struct AddressRange {
    pub start: u64,
    pub bytes: u64,
}

impl AddressRange {
    #[inline(always)]
    pub const fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.bytes
    }
}

/// Offsets in CPython's objects that are the same in all supported versions.
pub const TEXT_LENGTH: usize = 16;
pub const TEXT_STATE: usize = 32;
pub const TABLE_LENGTH: usize = 16;
pub const TABLE_BYTES: usize = 32;

/// Maximum bytes of a name or path in a record.
pub const CODE_NAME_BYTES: usize = 256;
/// Maximum bytes of a line table in a short record; in a long one [`INTERPRETED_CODE_BYTES_MAX`].
pub const SHORT_TABLE_BYTES: usize = 512;

/// A text object of the target's: the bytes are copied as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CodeText {
    /// Length in characters.
    pub characters: u64,
    /// Word with the flags of the object: width of a character, ASCII.
    pub state: u32,
    /// Bytes that were copied: the last ones of a longer text.
    pub bytes: u32,
}

/// A code object of a target: sent before, or shortly after, the first stack that contains it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CodeRecord<const TABLE: usize> {
    /// Kind `Code`.
    pub header: RecordHeader,
    /// A [`CodeId`].
    pub code_id: u64,
    pub first_line: u32,
    /// Bytes of the line table that were copied.
    pub table_bytes: u16,
    /// A [`LineTable`].
    pub line_table: u8,
    /// Always 0.
    pub reserved: u8,
    /// Address of the line table's bytes, and their number.
    pub table_address: u64,
    pub table_length: u64,
    pub name: CodeText,
    pub file: CodeText,
    pub name_bytes: [u8; CODE_NAME_BYTES],
    pub file_bytes: [u8; CODE_NAME_BYTES],
    pub table: [u8; TABLE],
}

/// Code whose names the agent reads from the target's memory: sent before, or shortly after, the first stack that contains it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CodePlaceRecord {
    /// Kind `CodePlace`.
    pub header: RecordHeader,
    /// A [`CodeId`].
    pub code_id: u64,
    pub place: CodePlace,
    /// A [`CodeKind`].
    pub kind: u32,
    /// Always 0.
    pub reserved: u32,
}

/// Where code is. What the words mean depends on the [`CodeKind`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct CodePlace {
    /// Of the method of HotSpot's interpreter; of the blob with compiled code; of the function.
    pub address: u64,
    /// A word of it, to verify that the code has not been replaced: the constant part of a method, the method of compiled code, the
    /// name of a stub, name or scope of a function of V8.
    pub refers_to: u64,
    /// Number of the compilation of a compiled method; address in the compiled code of a function of V8; else 0.
    pub detail: u64,
}

pub type ShortCodeRecord = CodeRecord<SHORT_TABLE_BYTES>;
pub type LongCodeRecord = CodeRecord<INTERPRETED_CODE_BYTES_MAX>;

const _: () = assert!(size_of::<ShortCodeRecord>() == 72 + 2 * CODE_NAME_BYTES + SHORT_TABLE_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_survive_their_word(id: u64, kind in 0u8..7, instruction in 0u32..=INSTRUCTION_UNKNOWN) {
            let kind = CodeKind::from_wire(kind).expect("there are seven");
            let frame = InterpretedFrame { kind, code: CodeId(id).in_frames(), instruction };
            prop_assert_eq!(InterpretedFrame::from_word(frame.to_word()), Some(frame));
        }

        #[test]
        fn user_addresses_are_not_interpreted(address in 0u64..1 << 56) {
            prop_assert_eq!(InterpretedFrame::from_word(address), None);
        }
    }

    #[test]
    fn instructions_that_do_not_fit_are_unknown() {
        let frame = InterpretedFrame { kind: CodeKind::Cpython, code: 5, instruction: 1 << 20 };
        let expected = InterpretedFrame { instruction: INSTRUCTION_UNKNOWN, ..frame };
        assert_eq!(InterpretedFrame::from_word(frame.to_word()), Some(expected));
    }

    #[test]
    fn numbers_have_their_runtime_and_index() {
        for runtime in [Runtime::Cpython, Runtime::Hotspot, Runtime::V8, Runtime::Php] {
            let number = runtime.number(7);
            assert!(runtime.has(number) && runtime_index(number) == 7);
        }
        assert!(!Runtime::Cpython.has(Runtime::Hotspot.number(0)));
        assert_eq!(runtime_index(0), u32::MAX);
    }

    #[test]
    fn ranges_end_before_their_end() {
        let range = AddressRange { start: 0x1000, bytes: 0x10 };
        assert_eq!([0xfff, 0x1000, 0x100f, 0x1010].map(|at| range.contains(at)), [false, true, true, false]);
        assert!(!AddressRange::default().contains(0));
    }
}
