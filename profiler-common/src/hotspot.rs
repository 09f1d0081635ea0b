//! Frames of HotSpot, OpenJDK's virtual machine: where the kernel side finds the code of a process, and the steps to callers.
//!
//! HotSpot generates its interpreter, its stubs and compiled methods into heaps of code blobs. Each blob has a header with the
//! size of its frame; methods of the interpreter have a frame of a fixed layout. The layouts are those of `codeBlob.hpp`, `heap.cpp`,
//! `frame_x86.hpp` and `frame_aarch64.hpp` in `src/hotspot` of JDK 11 to 25; offsets in objects are published by the machine
//! (`vmStructs.hpp`).

use crate::interpreter::AddressRange;
use crate::step::{ReadMemory, Registers, Step, step_by_frame_pointer};

/// Heaps of code: for stubs, profiled and other methods.
pub const CODE_HEAPS_MAX: usize = 3;

/// Words of a blob's header that are read at once.
pub const BLOB_WORDS: usize = 64;

/// Where a process's virtual machine keeps its code. Offsets are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[repr(C)]
pub struct Hotspot {
    /// From the lowest heap to the highest.
    pub code: AddressRange,
    /// The code of the interpreter, which is in one of the heaps.
    pub interpreter: AddressRange,
    pub heaps: [CodeHeap; CODE_HEAPS_MAX],
    /// Bytes of a heap's block before its blob.
    pub block_header: u16,
    /// Bytes of a blob's header to read: at most [`BLOB_WORDS`] words.
    pub blob_bytes: u16,
    /// In a blob: the address of its kind's name.
    pub blob_name: u16,
    /// In a blob: the words of its frame, an integer of 4 bytes; 0 if it has no frame of a fixed size.
    pub blob_frame_words: u16,
    /// In the blob of a method: the method.
    pub blob_method: u16,
    /// In the blob of a method: the number of its compilation, an integer of 4 bytes.
    pub blob_compilation: u16,
    /// In the blob of a method: its code for deoptimization, which replaces return addresses, for ordinary calls and those of
    /// method handles; 0 if there is none. Addresses, or with [`HAS_OFFSETS`] offsets in the blob, integers of 4 bytes.
    pub blob_deoptimizers: [u16; 2],
    /// In the blob of a method: where its frames keep the return address that deoptimization has replaced: an offset from the
    /// stack pointer, an integer of 4 bytes.
    pub blob_original: u16,
    /// In a method: its constant part.
    pub method_constant: u16,
    /// In the constant part of a method: its bytecode.
    pub constant_bytecode: u16,
    /// [`HAS_OFFSETS`].
    pub flags: u16,
}

/// Blobs have offsets of their code for deoptimization; without the flag, addresses.
pub const HAS_OFFSETS: u16 = 1;

/// A heap of code blobs. It is divided into segments; a byte for each is the distance to the beginning of its block, in segments,
/// or, beyond 254, to a segment nearer to the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[repr(C)]
pub struct CodeHeap {
    pub range: AddressRange,
    /// Address of the bytes.
    pub segments: u64,
    /// Binary logarithm of a segment's size in bytes.
    pub segment_shift: u32,
    /// Always 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<Hotspot>() == 32 + 32 * CODE_HEAPS_MAX + 24);

/// A segment without a block.
pub const FREE_SEGMENT: u8 = 0xff;

/// Names of blobs that are methods begin like this: compiled ones, and wrappers of native methods.
pub const METHOD_NAME: u64 = u64::from_le_bytes(*b"nmethod\0");
pub const NATIVE_METHOD_NAME: u64 = u64::from_le_bytes(*b"native n");

/// In frames of the interpreter, from the frame pointer downwards (`interpreter_frame_sender_sp_offset` and others).
const CALLER_SP: u64 = 8;
const METHOD: u64 = 3 * 8;

/// What a frame of the interpreter executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterpretedMethod {
    /// Address of the method.
    pub method: u64,
    /// Address in its bytecode; anything in a native method.
    pub bytecode: u64,
}

/// What differs between processors in the machine's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JavaFrames {
    /// In frames of the interpreter, from the frame pointer downwards: the address in the bytecode
    /// (`interpreter_frame_bcp_offset`).
    pub bytecode: u64,
    /// Bits of a return address that are the address.
    pub code_address: u64,
    /// In [`Registers::sp`]: the stack pointer is not known exactly.
    pub sp_inexact: u64,
}

impl JavaFrames {
    /// The method of a frame of the interpreter; `None` if it cannot be read.
    #[inline(always)]
    pub fn interpreted_method(&self, registers: &Registers, memory: &impl ReadMemory) -> Option<InterpretedMethod> {
        let method = memory.read_u64(registers.bp.wrapping_sub(METHOD))?;
        let bytecode = memory.read_u64(registers.bp.wrapping_sub(self.bytecode))?;
        Some(InterpretedMethod { method, bytecode })
    }

    /// The caller of a frame of the interpreter. Its stack pointer is the one before the call: the frame's locals extend the
    /// caller's frame.
    #[inline(always)]
    pub fn interpreted_caller(&self, registers: &Registers, memory: &impl ReadMemory) -> Option<Registers> {
        Some(Registers {
            ip: memory.read_u64(registers.bp.wrapping_add(8))? & self.code_address,
            sp: memory.read_u64(registers.bp.wrapping_sub(CALLER_SP))?,
            bp: memory.read_u64(registers.bp)?,
            link: 0,
            is_return_address: true,
        })
    }

    /// The caller of a frame of this fixed size, which ends with the caller's frame pointer and the return address.
    #[inline(always)]
    pub fn compiled_caller(
        &self,
        registers: &Registers,
        frame_words: u32,
        memory: &impl ReadMemory,
    ) -> Option<Registers> {
        if registers.sp & self.sp_inexact != 0 {
            return None;
        }
        let sp = registers.sp.wrapping_add(frame_words as u64 * 8);
        Some(Registers {
            ip: memory.read_u64(sp.wrapping_sub(8))? & self.code_address,
            sp,
            bp: memory.read_u64(sp.wrapping_sub(16))?,
            link: 0,
            is_return_address: true,
        })
    }

    /// The caller of a frame that begins with the caller's frame pointer and the return address, at the frame pointer: one of the
    /// machine's stubs. Other than that of other code with frame pointers, its stack pointer is known.
    #[inline(always)]
    pub fn stub_caller(&self, registers: &Registers, memory: &impl ReadMemory) -> Step {
        match step_by_frame_pointer(registers, memory) {
            Step::Caller(caller) => Step::Caller(Registers { sp: caller.sp & !self.sp_inexact, ..caller }),
            end => end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::{JAVA_FRAMES, aarch64, x86_64};
    use std::collections::HashMap;

    struct Memory(HashMap<u64, u64>);

    impl ReadMemory for Memory {
        fn read_u64(&self, address: u64) -> Option<u64> {
            self.0.get(&address).copied()
        }
    }

    fn registers(sp: u64, bp: u64) -> Registers {
        Registers { ip: 0x1234, sp, bp, link: 0, is_return_address: true }
    }

    #[test]
    fn the_caller_of_an_interpreted_method_has_the_stack_pointer_before_its_locals() {
        for (frames, bytecode) in [(x86_64::JAVA_FRAMES, 0x0fc0), (aarch64::JAVA_FRAMES, 0x0fb8)] {
            let words = [(0x1000, 0x1100), (0x1008, 0x77), (0x0ff8, 0x1030), (0x0fe8, 0xaa), (bytecode, 0xbb)];
            let memory = Memory(words.into());
            let frame = registers(0x0f00, 0x1000);
            let caller = Registers { ip: 0x77, sp: 0x1030, bp: 0x1100, link: 0, is_return_address: true };
            assert_eq!(frames.interpreted_caller(&frame, &memory), Some(caller));
            let method = InterpretedMethod { method: 0xaa, bytecode: 0xbb };
            assert_eq!(frames.interpreted_method(&frame, &memory), Some(method));
            assert_eq!(frames.interpreted_caller(&registers(0x0f00, 0x2000), &memory), None);
            // Wrong registers of a target wrap.
            assert_eq!(frames.interpreted_method(&registers(0, 0), &memory), None);
        }
    }

    #[test]
    fn the_caller_of_a_compiled_method_is_above_its_frame() {
        let memory = Memory([(0x1010, 0x1100), (0x1018, 0x77)].into());
        let caller = Registers { ip: 0x77, sp: 0x1020, bp: 0x1100, link: 0, is_return_address: true };
        for frames in [x86_64::JAVA_FRAMES, aarch64::JAVA_FRAMES] {
            assert_eq!(frames.compiled_caller(&registers(0x1000, 5), 4, &memory), Some(caller));
            assert_eq!(frames.compiled_caller(&registers(0x1000, 5), u32::MAX, &memory), None);
        }
    }

    #[test]
    fn signed_return_addresses_lose_their_signature() {
        let signed = 0x002f_ffff_8000_0077;
        let memory = Memory([(0x1000, 0x1100), (0x1008, signed), (0x0ff8, 0x1030)].into());
        let frames = aarch64::JAVA_FRAMES;
        let interpreted = frames.interpreted_caller(&registers(0x0f00, 0x1000), &memory);
        let compiled = frames.compiled_caller(&registers(0x0ff0, 5), 4, &memory);
        assert_eq!([interpreted, compiled].map(|caller| caller.map(|it| it.ip)), [Some(0xffff_8000_0077); 2]);
    }

    #[test]
    fn compiled_methods_need_the_stack_pointer_and_stubs_have_it() {
        let memory = Memory([(0x1000, 0x1100), (0x1008, 0x77), (0x1010, 0x1200), (0x1018, 0x99)].into());
        let caller = |sp: u64| Registers { ip: 0x77, sp, bp: 0x1100, link: 0, is_return_address: true };
        assert_eq!(JAVA_FRAMES.stub_caller(&registers(0x0f00, 0x1000), &memory), Step::Caller(caller(0x1010)));
        let inexact = aarch64::step_by_frame_pointer(&registers(0x0f00, 0x1000), &memory);
        assert_eq!(inexact, Step::Caller(caller(0x1011)));
        assert_eq!(aarch64::JAVA_FRAMES.compiled_caller(&caller(0x1011), 2, &memory), None);
        assert!(aarch64::JAVA_FRAMES.compiled_caller(&caller(0x1010), 2, &memory).is_some());
    }
}
