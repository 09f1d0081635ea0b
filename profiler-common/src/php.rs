//! Frames of PHP 8: where the kernel side finds them in a process.
//!
//! A frame is a `zend_execute_data` (`Zend/zend_compile.h`), linked to that of its caller. Its layout, and that of an instruction, are
//! the same in PHP 8.0 to 8.5; of functions, only the beginning is.

use crate::interpreter::AddressRange;
use crate::record::RecordHeader;

/// Where a process's PHP keeps its frames. Offsets are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[repr(C)]
pub struct Php {
    /// The interpreter loop, `execute_ex`: up to two ranges of addresses, of which the second holds what the compiler considered cold.
    pub loops: [AddressRange; 2],
    /// Address of the pointer to the innermost frame: `EG(current_execute_data)`.
    pub current: u64,
    /// `executor_globals`. It contains the instruction of frames that an exception leaves.
    pub globals: AddressRange,
    /// Address of the pointer to the functions that are called without a frame: `zend_flf_functions`. 0 before PHP 8.4.
    pub frameless: u64,
    /// In a function (`zend_op_array`): the name of its file.
    pub function_file: u16,
    /// In a function: its first line, an integer of 4 bytes.
    pub function_line: u16,
    /// Always 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Php>() == 72);

/// Words of a frame that are read.
pub const FRAME_WORDS: usize = 7;

// Indices of words in a frame (`zend_execute_data`).
pub const FRAME_INSTRUCTION: usize = 0;
pub const FRAME_FUNCTION: usize = 3;
/// The object of a method, or what else the frame belongs to: the first word of `This`.
pub const FRAME_OBJECT: usize = 4;
/// The type of the former, and flags of the call: the second word of `This`.
pub const FRAME_FLAGS: usize = 5;
pub const FRAME_CALLER: usize = 6;

/// Flag of the outermost frame that a call of the loop executes: `ZEND_CALL_TOP`.
pub const IS_TOP: u64 = 1 << 17;

/// Words of a function that are read: up to its first line. All functions in PHP have more.
pub const FUNCTION_WORDS: usize = 24;
/// Words at the beginning of a function that all kinds of functions have.
pub const FUNCTION_COMMON_WORDS: usize = 3;

// Indices of words in a function (`zend_function`).
/// The kind is its lowest byte.
pub const FUNCTION_KIND: usize = 0;
pub const FUNCTION_NAME: usize = 1;
pub const FUNCTION_CLASS: usize = 2;

/// Bit of the kind of functions that are in C (`ZEND_INTERNAL_FUNCTION` is 1, `ZEND_USER_FUNCTION` 2, `ZEND_EVAL_CODE` 4).
pub const IS_INTERNAL: u64 = 1;

/// In an instruction (`zend_op`): an integer of 4 bytes whose meaning depends on the kind.
pub const INSTRUCTION_EXTENDED: u64 = 20;
/// In an instruction: its line, an integer of 4 bytes, then its kind in a byte.
pub const INSTRUCTION_LINE: u64 = 24;

/// Kinds of instructions that call functions in C without a frame, since PHP 8.4: `ZEND_FRAMELESS_ICALL_0` to `_3`.
pub const FRAMELESS_FIRST: u8 = 204;
pub const FRAMELESS_LAST: u8 = 207;

/// In a class (`zend_class_entry`): its name.
pub const CLASS_NAME: u64 = 8;

// Offsets in a text (`zend_string`).
/// 0 if it has not been computed.
pub const TEXT_HASH: u64 = 8;
pub const TEXT_LENGTH: u64 = 16;
pub const TEXT_BYTES: u64 = 24;

// Offsets in a generator (`zend_generator` in `Zend/zend_generators.h`).
/// Its frame.
pub const GENERATOR_FRAME: u64 = 56;
/// The generator that this one delegates to (`yield from`).
pub const GENERATOR_DELEGATE: u64 = 152;
/// A frame without function that stands for the generators that delegate.
pub const GENERATOR_PLACEHOLDER: u64 = 184;
/// Generators that delegate to each other; the frames of more are missing.
pub const GENERATORS_MAX: usize = 64;

/// Maximum bytes of a text in a record.
pub const PHP_TEXT_BYTES: usize = 256;

/// A text of the target's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PhpText {
    /// Length in bytes.
    pub length: u64,
    /// Bytes that were copied: the last ones of a longer path, the first ones of another text.
    pub bytes: u32,
    /// 1 if there is a text.
    pub is_present: u32,
}

/// A function of a target's: sent before, or shortly after, the first stack that contains it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PhpCodeRecord {
    /// Kind `PhpCode`.
    pub header: RecordHeader,
    /// A [`CodeId`](crate::interpreter::CodeId).
    pub code_id: u64,
    /// Absent in code outside of functions.
    pub name: PhpText,
    /// Absent in functions outside of classes.
    pub class: PhpText,
    /// Absent in functions that are in C.
    pub file: PhpText,
    pub name_bytes: [u8; PHP_TEXT_BYTES],
    pub class_bytes: [u8; PHP_TEXT_BYTES],
    pub file_bytes: [u8; PHP_TEXT_BYTES],
}

const _: () = assert!(size_of::<PhpCodeRecord>() == 64 + 3 * PHP_TEXT_BYTES);
