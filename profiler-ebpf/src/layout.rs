//! Types of map values that only the kernel side reads and writes.

use core::mem::MaybeUninit;

use profiler_common::arch::HAS_LINK;
use profiler_common::hotspot::BLOB_WORDS;
use profiler_common::interpreter::{AddressRange, CODE_WORDS, CodePlace, FRAME_WORDS};
use profiler_common::limits::{INFLIGHT_WAYS, PAGE_BYTES, RAW_STACK_PAGES_MAX, STACK_FRAMES_MAX};
use profiler_common::live::LiveBlock;
use profiler_common::mapped::CodeRange;
use profiler_common::php;
use profiler_common::record::{RawStackHeader, StackHeader};
use profiler_common::step::Registers;
use profiler_common::v8::OBJECT_WORDS;

/// A hooked call between entry and return.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Inflight {
    /// Stack pointer at entry; at the return it is 8 higher.
    pub(crate) sp: u64,
    /// Requested size in bytes.
    pub(crate) size_bytes: u64,
    /// Address that the result is stored at (`posix_memalign`), or the old block (`realloc`); else 0.
    pub(crate) pointer: u64,
    /// The stack, if sampled.
    pub(crate) stack_id: u64,
    /// The old block as it was in the live set, if `old_tracked`; else not initialised. Mapping calls store other words here.
    pub(crate) old: MaybeUninit<LiveBlock>,
    /// Code of the sampling interval, or 0 if the call was not sampled.
    pub(crate) interval_code: u32,
    pub(crate) hook: u16,
    /// A [`CallShape`](profiler_common::hook::CallShape).
    pub(crate) shape: u8,
    /// 1 if `old` was live and sampled.
    pub(crate) old_tracked: u8,
}

impl Inflight {
    /// The words of `old`.
    #[inline(always)]
    pub(crate) fn old(&self) -> LiveBlock {
        // SAFETY: integers in a map value, which the kernel has initialised.
        unsafe { self.old.assume_init() }
    }
}

/// A call in the hash map of calls.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct InflightCall {
    /// The hook's cookie, for a return that has none.
    pub(crate) cookie: u64,
    pub(crate) call: Inflight,
}

/// The calls of threads whose ids have the same low bits.
#[repr(C)]
pub(crate) struct InflightBucket {
    /// `bpf_get_current_pid_tgid` of the thread that each call belongs to, or 0.
    pub(crate) threads: [u64; INFLIGHT_WAYS],
    pub(crate) calls: [Inflight; INFLIGHT_WAYS],
}

/// A call at its function's entry, as far as its stack depends on it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Origin {
    pub(crate) ip: u64,
    pub(crate) sp: u64,
    pub(crate) bp: u64,
    /// Where its return address is, which depends on the processor: its address, or itself.
    pub(crate) return_place: u64,
    /// Of the probe: a [`RawCookie`](profiler_common::hook::RawCookie).
    pub(crate) cookie: u64,
}

/// State of the unwinder between frames.
#[repr(C)]
pub(crate) struct Walk {
    pub(crate) ip: u64,
    pub(crate) sp: u64,
    pub(crate) bp: u64,
    /// As in [`Registers`].
    pub(crate) link: u64,
    /// Frames written so far.
    pub(crate) depth: u64,
    /// The process's executable mappings.
    pub(crate) mapping_first: u32,
    pub(crate) mapping_count: u32,
    pub(crate) mapping_serial: u32,
    /// Number of changes of the process's mappings; 0 if there were none.
    pub(crate) mapping_changes: u32,
    pub(crate) reserved: u32,
    /// Where code has replaced other code.
    pub(crate) reused: CodeRange,
    /// Where the rows may be those of code that is not there any more.
    pub(crate) unknown: CodeRange,
    /// 1 if `ip` is a return address.
    pub(crate) is_return_address: u32,
    /// Whether the agent may continue the walk: not 0.
    pub(crate) mapping_copies: u64,
    /// Hash of the frames so far.
    pub(crate) hash: u64,
    /// Hash of the frames before the last one.
    pub(crate) hash_before: u64,
    /// Hash of no frames: of the session's seed and the process. Ids of code begin with it.
    pub(crate) seed: u64,
    pub(crate) interpreter: InterpreterWalk,
    pub(crate) machine: MachineWalk,
    pub(crate) code: CodeWalk,
    pub(crate) php: PhpWalk,
}

impl Walk {
    #[inline(always)]
    pub(crate) fn registers(&self) -> Registers {
        let link = if HAS_LINK { self.link } else { 0 };
        Registers { ip: self.ip, sp: self.sp, bp: self.bp, link, is_return_address: self.is_return_address != 0 }
    }

    #[inline(always)]
    pub(crate) fn set_registers(&mut self, registers: &Registers) {
        self.ip = registers.ip;
        self.sp = registers.sp;
        self.bp = registers.bp;
        if HAS_LINK {
            self.link = registers.link;
        }
        self.is_return_address = registers.is_return_address as u32;
    }
}

/// Words of an interpreter's frames that are buffered at once: 1 KiB, which has 3 to 8 frames.
pub(crate) const FRAME_WINDOW_WORDS: usize = 128;

/// Room for the beginning of a body of CRuby.
pub(crate) const BODY_ROOM: usize = 32;

/// A stack up to a frame of an interpreter.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct InnerFrames {
    /// The interpreter's next frame, or 0.
    pub(crate) frame: u64,
    /// Frames of the stack, and their hash.
    pub(crate) depth: u64,
    pub(crate) hash: u64,
}

/// State of the walk along the frames of an interpreter.
#[repr(C)]
pub(crate) struct InterpreterWalk {
    /// As in [`ProcessMappings`](profiler_common::unwind::ProcessMappings).
    pub(crate) number: u32,
    /// 1 once `frame` is that of the thread; other values are in `interpreter.rs`.
    pub(crate) has_begun: u32,
    /// The next frame, or 0.
    pub(crate) frame: u64,
    pub(crate) loops: [AddressRange; 2],
    /// Address of the copied memory, of which so many bytes are valid.
    pub(crate) window_start: u64,
    pub(crate) window_bytes: u64,
    pub(crate) window: [u64; FRAME_WINDOW_WORDS],
    /// Index of the current frame's first word.
    pub(crate) at: u64,
    /// The current frame's code object, its id, and the words that identify it.
    pub(crate) code: u64,
    pub(crate) code_id: u64,
    pub(crate) code_words: [u64; CODE_WORDS],
    /// CPython: the state before an inner frame was added.
    pub(crate) inner: InnerFrames,
    /// CRuby: behind the outermost frame.
    pub(crate) end: u64,
    /// CRuby: the method of the current frame.
    pub(crate) method: u64,
    /// CRuby: 1 if the next frame is not added, because the current one stands for it.
    pub(crate) skip: u64,
    /// CRuby: the beginning of the current frame's body.
    pub(crate) body: [u64; BODY_ROOM],
}

/// State of the walk through frames of a virtual machine.
#[repr(C)]
pub(crate) struct MachineWalk {
    /// As in [`ProcessMappings`](profiler_common::unwind::ProcessMappings).
    pub(crate) number: u32,
    /// Always 0.
    pub(crate) reserved: u32,
    /// Its code.
    pub(crate) code: [AddressRange; 3],
    /// HotSpot: the header of the current frame's blob.
    pub(crate) blob: [u64; BLOB_WORDS],
    /// HotSpot: the frames of a virtual thread that are not on the stack.
    pub(crate) frozen: FrozenWalk,
    /// V8: maps of shared parts of functions, and of bytecode, once their types are known.
    pub(crate) maps: [u64; 2],
    /// The first words of an object.
    pub(crate) object: [u64; OBJECT_WORDS],
}

/// State of the walk through frames of a continuation.
#[repr(C)]
pub(crate) struct FrozenWalk {
    /// The chunk whose frames the walk is in, or was in last; 0 before the first one.
    pub(crate) chunk: u64,
    /// 1 if the current frame is in the chunk.
    pub(crate) is_inside: u64,
    /// The end of the chunk's words.
    pub(crate) end: u64,
    /// Frames of the stack after the last one of generated code was added.
    pub(crate) generated_depth: u64,
}

/// Room for a function of PHP.
pub(crate) const FUNCTION_ROOM: usize = 32;
/// Texts that a function of PHP has: its name, class and file.
pub(crate) const TEXTS: usize = 3;

/// State of the walk along the frames of PHP.
#[repr(C)]
pub(crate) struct PhpWalk {
    /// 1 once `frame` is the innermost one.
    pub(crate) has_begun: u64,
    /// The next frame, or 0.
    pub(crate) frame: u64,
    /// The outermost of generators that delegate to each other, whose frames are next, or 0.
    pub(crate) generator: u64,
    /// The generator whose frame is next: the others delegate to it.
    pub(crate) delegate: u64,
    /// The frame that follows those of the generators.
    pub(crate) outside: u64,
    /// The current frame.
    pub(crate) words: [u64; php::FRAME_WORDS],
    /// Its function, the addresses of the texts, and the id.
    pub(crate) function: [u64; FUNCTION_ROOM],
    pub(crate) texts: [u64; TEXTS],
    pub(crate) code_id: u64,
}

/// The current frame's code, of which the agent reads the names.
#[repr(C)]
pub(crate) struct CodeWalk {
    pub(crate) id: u64,
    pub(crate) place: CodePlace,
    /// A [`CodeKind`](profiler_common::interpreter::CodeKind).
    pub(crate) kind: u32,
    /// Always 0.
    pub(crate) reserved: u32,
}

/// A stack record under construction.
#[repr(C)]
pub(crate) struct StackRecord {
    pub(crate) header: StackHeader,
    pub(crate) frames: [u64; STACK_FRAMES_MAX],
}

/// Words of the target's stack that are buffered at once: two pages.
pub(crate) const WINDOW_WORDS: usize = 1024;

/// A scratch area: memory that is too large for the 512-byte BPF stack.
#[repr(C)]
pub(crate) struct Scratch {
    /// 0 if free.
    pub(crate) claimed: u64,
    /// The call whose stack is captured.
    pub(crate) origin: Origin,
    pub(crate) walk: Walk,
    /// Address of the window's first word.
    pub(crate) window_start: u64,
    /// Valid words of the window.
    pub(crate) window_words: u64,
    pub(crate) window: [u64; WINDOW_WORDS],
    pub(crate) record: StackRecord,
}

/// A raw stack record under construction.
#[repr(C)]
pub(crate) struct RawRecord {
    pub(crate) header: RawStackHeader,
    pub(crate) pages: [[u8; PAGE_BYTES as usize]; RAW_STACK_PAGES_MAX],
}

const _: () = assert!(FRAME_WINDOW_WORDS.is_power_of_two() && FRAME_WINDOW_WORDS > FRAME_WORDS);
const _: () = assert!(OBJECT_WORDS.is_power_of_two() && BODY_ROOM.is_power_of_two());
const _: () = assert!(CODE_WORDS.is_power_of_two() && BLOB_WORDS.is_power_of_two());
const _: () = assert!(STACK_FRAMES_MAX.is_power_of_two() && WINDOW_WORDS.is_power_of_two());
