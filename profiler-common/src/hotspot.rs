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
    pub frozen: FrozenFrames,
}

/// Blobs have offsets of their code for deoptimization; without the flag, addresses.
pub const HAS_OFFSETS: u16 = 1;

/// Where the machine keeps frames of virtual threads that it has not copied back to the stack: in *stack chunks*, which are objects. The
/// continuation of a virtual thread refers to its chunk, which refers to another one with further frames
/// (`stackChunkOop.hpp` of JDK 21 to 25).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[repr(C)]
pub struct FrozenFrames {
    /// In the header of a chunk: its class, by [`Self::class_at`], [`Self::class_shift`] and this mask.
    pub class: u64,
    pub class_mask: u64,
    /// Address of compressed reference 0.
    pub reference_base: u64,
    pub class_at: u16,
    pub class_shift: u16,
    /// Binary logarithm of the unit of compressed references.
    pub reference_shift: u16,
    /// 1 if references have 4 bytes.
    pub is_compressed: u16,
    /// In a continuation: its chunk.
    pub tail: u16,
    /// In a chunk: the next one, the index of its first word that is used, and of the one behind the last, integers of 4 bytes.
    pub parent: u16,
    pub sp: u16,
    pub bottom: u16,
    /// In a chunk: its words; 0 if chunks are not known.
    pub stack: u16,
    /// Always 0.
    pub reserved: [u16; 3],
}

/// Names of blobs with stubs that are no methods begin like this.
pub const STUBS_NAME: u64 = u64::from_le_bytes(*b"StubRout");

/// The end of the name of the blob with stubs for continuations, behind `StubRoutines (`.
pub const CONTINUATION_STUBS: u64 = u64::from_le_bytes(*b"continua");
pub const CONTINUATION_STUBS_AT: u64 = 14;

/// Words between the caller's stack pointer of the outermost frame on the stack and [`ContinuationEntry::continuation`]: the frame's
/// arguments and what [`ContinuationEntry::is_at`] permits.
pub const ENTRY_SEARCH_WORDS: u64 = 16;

/// Words of the entry of a continuation, which is on the stack behind the frames of the virtual thread (`continuationEntry.hpp`). Before them
/// is the entry's parent, and on some processors a word of padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContinuationEntry {
    /// `_cont`.
    pub continuation: u64,
    /// `_chunk`, which is always 0.
    pub chunk: u64,
    /// `_flags`: 1 for a virtual thread; in the upper half `_argsize`, the words of the outermost frame's arguments.
    pub flags: u64,
}

impl ContinuationEntry {
    #[inline(always)]
    pub fn read(address: u64, memory: &impl ReadMemory) -> Option<Self> {
        let word = |index: u64| memory.read_u64(address.wrapping_add(index * 8));
        Some(Self { continuation: word(0)?, chunk: word(1)?, flags: word(2)? })
    }

    /// Whether these can be the words of an entry, so many words behind the outermost frame: behind its arguments are a word for alignment, if
    /// necessary, the padding, if there is any, and the parent.
    #[inline(always)]
    pub const fn is_at(&self, words: u64) -> bool {
        let arguments = self.flags >> 32;
        let between = words.wrapping_sub(arguments);
        self.continuation & 7 == 0
            && self.continuation != 0
            && self.chunk == 0
            && self.flags & 0xffff_ffff <= 1
            && between >= 1
            && between <= 3
    }
}

/// Words at the end of a chunk in which no frame begins (`metadata_words`), in bytes.
const CHUNK_END_BYTES: u64 = 16;

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

const _: () = assert!(size_of::<Hotspot>() == 32 + 32 * CODE_HEAPS_MAX + 24 + 48);

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

    /// The caller of a frame of the interpreter in a chunk, where addresses are distances in words; `None` if it cannot be read. And
    /// whether the frame is the last one of a chunk that ends there. The caller's frame pointer is that of [`Self::frozen_bp`].
    #[inline(always)]
    pub fn frozen_interpreted_caller(
        &self,
        registers: &Registers,
        end: u64,
        memory: &impl ReadMemory,
    ) -> Option<(Registers, bool)> {
        let bp = registers.bp;
        let at = |words: u64| bp.wrapping_add(words.wrapping_mul(8));
        let locals = at(memory.read_u64(bp.wrapping_sub(self.bytecode - 8))?);
        let caller = Registers {
            ip: memory.read_u64(bp.wrapping_add(8))? & self.code_address,
            sp: at(memory.read_u64(bp.wrapping_sub(CALLER_SP))?),
            bp: memory.read_u64(bp)?,
            link: 0,
            is_return_address: true,
        };
        Some((caller, locals.wrapping_add(8) >= end))
    }

    /// Whether a frame of fixed size with this caller is the last one of a chunk that ends there.
    #[inline(always)]
    pub const fn is_chunk_end(&self, caller: &Registers, end: u64) -> bool {
        caller.sp >= end.wrapping_sub(CHUNK_END_BYTES)
    }

    /// The frame pointer of a frame of the interpreter in a chunk, which is saved at this address as a distance in words.
    #[inline(always)]
    pub const fn frozen_bp(&self, at: u64, saved: u64) -> u64 {
        at.wrapping_add(saved.wrapping_mul(8))
    }

    /// The innermost frame of a chunk, whose words begin at this stack pointer. Its frame pointer is that of [`Self::frozen_bp`], saved
    /// 2 words below.
    #[inline(always)]
    pub fn frozen_first(&self, sp: u64, memory: &impl ReadMemory) -> Option<Registers> {
        self.saved_below(sp, memory)
    }

    /// Registers of a caller whose stack pointer this is: its return address and frame pointer are saved below.
    #[inline(always)]
    fn saved_below(&self, sp: u64, memory: &impl ReadMemory) -> Option<Registers> {
        Some(Registers {
            ip: memory.read_u64(sp.wrapping_sub(8))? & self.code_address,
            sp,
            bp: memory.read_u64(sp.wrapping_sub(16))?,
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
        self.saved_below(registers.sp.wrapping_add(frame_words as u64 * 8), memory)
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
    fn frames_of_the_interpreter_in_a_chunk_have_distances() {
        for (frames, locals) in [(x86_64::JAVA_FRAMES, 0x0fc8), (aarch64::JAVA_FRAMES, 0x0fc0)] {
            // The locals are 3 words above the frame pointer, the caller's stack pointer 5 words.
            let words = [(0x1000, 9), (0x1008, 0x77), (0x0ff8, 5), (locals, 3)];
            let memory = Memory(words.into());
            let frame = registers(0x0f00, 0x1000);
            let caller = Registers { ip: 0x77, sp: 0x1028, bp: 9, link: 0, is_return_address: true };
            assert_eq!(frames.frozen_interpreted_caller(&frame, 0x1021, &memory), Some((caller, false)));
            assert_eq!(frames.frozen_interpreted_caller(&frame, 0x1020, &memory), Some((caller, true)));
            assert_eq!(frames.frozen_bp(0x1000, caller.bp), 0x1048);
            assert_eq!(frames.frozen_interpreted_caller(&registers(0, 0), 0, &memory), None);
            assert!(!frames.is_chunk_end(&caller, 0x1039) && frames.is_chunk_end(&caller, 0x1038));
        }
    }

    #[test]
    fn an_entry_is_behind_the_arguments_of_the_outermost_frame() {
        let entry = |continuation, chunk, flags| ContinuationEntry { continuation, chunk, flags };
        let of_virtual_thread = entry(0x5000, 0, 1);
        assert_eq!([0, 1, 2, 3, 4].map(|words| of_virtual_thread.is_at(words)), [false, true, true, true, false]);
        let with_arguments = entry(0x5000, 0, 4 << 32 | 1);
        assert_eq!([1, 4, 5, 7, 8].map(|words| with_arguments.is_at(words)), [false, false, true, true, false]);
        for other in [entry(0, 0, 1), entry(0x5001, 0, 1), entry(0x5000, 8, 1), entry(0x5000, 0, 2)] {
            assert!(!other.is_at(1), "{other:?}");
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
