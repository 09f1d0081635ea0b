//! Frames of V8, the JavaScript engine of Node.js: where the kernel side finds the functions of a process.
//!
//! Functions have frame pointers. Below it are the context, or a number for other kinds of frames, and the function
//! (`StandardFrameConstants` in `src/execution/frame-constants.h`); the interpreter's frames go on with the bytecode and the offset in it
//! (`UnoptimizedFrameConstants`). This has been the same from V8 10.2 to 13.6; offsets in objects are published by
//! the engine (`v8dbg_…`, `tools/gen-postmortem-metadata.py`).

use crate::interpreter::AddressRange;
use crate::step::{ReadMemory, Registers};

/// Words of an object that are read at once.
pub const OBJECT_WORDS: usize = 8;

/// Index of the bytecode or code in the shared part of functions.
pub const SHARED_DATA: usize = 1;

/// Where a process's engine keeps its functions. Offsets are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[repr(C)]
pub struct V8 {
    /// The range of generated code, in which may be the builtins.
    pub generated: AddressRange,
    /// Machine code of the engine's own functions, in the file's mapping, and where the engine has mapped it again.
    pub builtins: [AddressRange; 2],
    /// In a function: what it shares with other closures of the same source.
    pub function_shared: u16,
    /// In a function: its code object, or the number of it, which changes when it is compiled again.
    pub function_code: u16,
    /// In the shared part: name, or scope.
    pub shared_name: u16,
    /// In an object's map: the number of its type, an integer of 2 bytes.
    pub map_type: u16,
    /// The types of shared parts and of bytecode.
    pub shared_type: u16,
    pub bytecode_type: u16,
    /// Always 0.
    pub reserved: [u16; 2],
}

const _: () = assert!(size_of::<V8>() == 48 + 16);

/// Tag of pointers to objects, which the lowest bits of small integers lack.
pub const TAG: u64 = 1;
const TAG_MASK: u64 = 3;

/// Address of the object that a tagged word refers to; `None` for a small integer.
#[inline(always)]
pub const fn object(word: u64) -> Option<u64> {
    if word & TAG_MASK == TAG { Some(word - TAG) } else { None }
}

const CONTEXT: u64 = 8;
const FUNCTION: u64 = 2 * 8;
const BYTECODE: u64 = 4 * 8;
const BYTECODE_OFFSET: u64 = 5 * 8;

/// The function of a frame; `None` for frames of other kinds.
#[inline(always)]
pub fn function(registers: &Registers, memory: &impl ReadMemory) -> Option<u64> {
    object(memory.read_u64(registers.bp.wrapping_sub(CONTEXT))?)?;
    object(memory.read_u64(registers.bp.wrapping_sub(FUNCTION))?)
}

/// The bytecode of a frame of the interpreter, and the offset in the object.
#[inline(always)]
pub fn bytecode(registers: &Registers, memory: &impl ReadMemory) -> Option<(u64, u32)> {
    let bytecode = object(memory.read_u64(registers.bp.wrapping_sub(BYTECODE))?)?;
    let offset = memory.read_u64(registers.bp.wrapping_sub(BYTECODE_OFFSET))?;
    // A small integer is in the upper half of its word.
    if offset.trailing_zeros() >= 32 { Some((bytecode, (offset >> 32) as u32)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    struct Memory(HashMap<u64, u64>);

    impl ReadMemory for Memory {
        fn read_u64(&self, address: u64) -> Option<u64> {
            self.0.get(&address).copied()
        }
    }

    const REGISTERS: Registers = Registers { ip: 0x1234, sp: 0xf00, bp: 0x1000, link: 0, is_return_address: true };

    #[test]
    fn functions_are_in_frames_with_a_context() {
        let memory = |context: u64| Memory([(0xff8, context), (0xff0, 0x5001)].into());
        assert_eq!(function(&REGISTERS, &memory(0x6001)), Some(0x5000));
        assert_eq!(function(&REGISTERS, &memory(34)), None, "the number of another kind of frame");
        assert_eq!(function(&REGISTERS, &Memory(HashMap::new())), None);
        let wrong = Registers { bp: 0, ..REGISTERS };
        assert_eq!(function(&wrong, &memory(0x6001)), None);
    }

    #[test]
    fn frames_of_the_interpreter_have_an_offset() {
        let memory = |offset: u64| Memory([(0xfe0, 0x7001), (0xfd8, offset)].into());
        assert_eq!(bytecode(&REGISTERS, &memory(309 << 32)), Some((0x7000, 309)));
        assert_eq!(bytecode(&REGISTERS, &memory(0x8001)), None, "the feedback of compiled code");
    }
}
