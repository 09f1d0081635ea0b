//! Frames of HotSpot, OpenJDK's virtual machine: methods that its interpreter executes, methods that it has compiled, and its stubs.
//!
//! Code blobs have the sizes of their frames, so no tables are needed. The names are read by the agent when the first stack with
//! the code arrives ([`code`]).
//!
//! The target controls all of this memory. Reads of wrong addresses fail, and the limit of a stack's frames bounds the walk.

use profiler_common::arch::JAVA_FRAMES;
use profiler_common::hotspot::{
    BLOB_WORDS, CONTINUATION_STUBS, CONTINUATION_STUBS_AT, CodeHeap, ContinuationEntry, ENTRY_SEARCH_WORDS,
    FREE_SEGMENT, FrozenFrames, HAS_OFFSETS, Hotspot, METHOD_NAME, NATIVE_METHOD_NAME, STUBS_NAME,
};
use profiler_common::interpreter::{CodeKind, CodePlace, INSTRUCTION_UNKNOWN, runtime_index};
use profiler_common::stack::StackEnd;
use profiler_common::step::{Registers, Step};

use crate::asm::masked;
use crate::helpers::{bpf_probe_read_user, read_user};
use crate::layout::{MachineWalk, Scratch, Walk};
use crate::maps::{JAVA_MACHINES, SCRATCH};
use crate::window::{Window, user_word};
use crate::{code, frames};

/// Adds the current frame, which is in the machine's code, and steps to its caller. Returns 0 if there is one, else a [`StackEnd`]
/// plus 1.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn hotspot_frame(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return StackEnd::NoScratch as u32 + 1;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let walk = unsafe { &mut (*scratch).walk };
    let registers = walk.registers();
    let Some(machine) = JAVA_MACHINES.get(runtime_index(walk.machine.number)) else {
        return StackEnd::MissingModule as u32 + 1;
    };
    let caller = if machine.interpreter.contains(registers.lookup_address()) {
        interpreted(area, scratch, machine, &registers)
    } else {
        generated(area, scratch, machine, &registers)
    };
    walk.machine.frozen.generated_depth = walk.depth;
    let end = match caller {
        // Thread entry code pushes 0 as its own return address.
        Some(caller) if caller.ip == 0 => StackEnd::Complete,
        Some(caller) if caller.ip == BARRIER => return IS_FROZEN,
        Some(caller) if caller.sp == registers.sp => StackEnd::BrokenChain,
        Some(caller) => {
            walk.set_registers(&caller);
            return 0;
        }
        None => StackEnd::Unreadable,
    };
    end as u32 + 1
}

/// Result of [`hotspot_frame`] if the caller's frame is in the continuation of a virtual thread: [`hotspot_chunk`] continues there.
pub(crate) const IS_FROZEN: u32 = 1 << 11;

/// In place of the address of a caller: it is in a chunk ([`IS_FROZEN`]).
const BARRIER: u64 = 1;

/// Whether generated code returns to the stub that copies further frames of a virtual thread from its continuation
/// (`cont_returnBarrier`). The stub that native code returns to, while it copies, is in the same blob.
#[inline(always)]
fn is_barrier(walk: &Walk, name: u64, name_text: u64) -> bool {
    name_text == STUBS_NAME
        && walk.machine.frozen.generated_depth == walk.depth
        && user_word(name.wrapping_add(CONTINUATION_STUBS_AT)) == Some(CONTINUATION_STUBS)
}

/// Continues with the frames of the next chunk. The stack of the virtual thread is complete after the last one: what the thread that
/// carries it executes outside of the continuation is no caller. Returns 0, or a [`StackEnd`] plus 1.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn hotspot_chunk(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return StackEnd::NoScratch as u32 + 1;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let walk = unsafe { &mut (*scratch).walk };
    let Some(machine) = JAVA_MACHINES.get(runtime_index(walk.machine.number)) else {
        return StackEnd::Frozen as u32 + 1;
    };
    let state = &mut walk.machine.frozen;
    let Some(chunk) = next_chunk(&machine.frozen, &Window::of(scratch, area), state.chunk, walk.sp) else {
        return StackEnd::Frozen as u32 + 1;
    };
    if chunk.address == 0 {
        // The stub is in place of the caller only if there are frames.
        return if state.chunk == 0 { StackEnd::Frozen } else { StackEnd::Complete } as u32 + 1;
    }
    state.chunk = chunk.address;
    state.end = chunk.end;
    state.is_inside = 1;
    let Some(first) = JAVA_FRAMES.frozen_first(chunk.sp, &Window::of(scratch, area)) else {
        return StackEnd::Unreadable as u32 + 1;
    };
    walk.set_registers(&with_frame_pointer(machine, first, first.sp.wrapping_sub(16)));
    0
}

/// A chunk with frames.
struct Chunk {
    /// 0 if there is none.
    address: u64,
    sp: u64,
    end: u64,
}

/// Chunks without frames before one with them.
const CHUNKS_MAX: usize = 4;
/// Words of a chunk: a stack of 512 MiB has more.
const CHUNK_WORDS_MAX: u64 = 1 << 26;

/// The chunk after another one; the first one if that is 0, of the continuation whose entry follows a frame with this stack pointer.
/// `None` if it cannot be read.
#[inline(always)]
fn next_chunk(places: &FrozenFrames, window: &Window, chunk: u64, sp: u64) -> Option<Chunk> {
    if places.stack == 0 {
        return None;
    }
    let mut chunk =
        if chunk == 0 { first_chunk(places, window, sp)? } else { reference(places, chunk, places.parent)? };
    for _ in 0..CHUNKS_MAX {
        if chunk == 0 {
            return Some(Chunk { address: 0, sp: 0, end: 0 });
        }
        let (first, bottom) = (integer_at(chunk, places.sp)?, integer_at(chunk, places.bottom)?);
        if !is_chunk(places, chunk) || first > CHUNK_WORDS_MAX || bottom > CHUNK_WORDS_MAX {
            return None;
        }
        if first < bottom {
            let start = chunk.wrapping_add(u64::from(places.stack));
            return Some(Chunk {
                address: chunk,
                sp: start.wrapping_add(first * 8),
                end: start.wrapping_add(bottom * 8),
            });
        }
        chunk = reference(places, chunk, places.parent)?;
    }
    None
}

/// The chunk of the continuation whose entry is on the stack behind the arguments of the last frame.
#[inline(always)]
fn first_chunk(places: &FrozenFrames, window: &Window, sp: u64) -> Option<u64> {
    for words in 1..ENTRY_SEARCH_WORDS {
        let entry = ContinuationEntry::read(sp.wrapping_add(words * 8), window)?;
        if entry.is_at(words) {
            return reference(places, entry.continuation, places.tail);
        }
    }
    None
}

/// A reference in an object.
#[inline(always)]
fn reference(places: &FrozenFrames, object: u64, at: u16) -> Option<u64> {
    let at = object.wrapping_add(u64::from(at));
    if places.is_compressed == 0 {
        return user_word(at);
    }
    // SAFETY: the helper checks the address.
    let compressed = u64::from(unsafe { bpf_probe_read_user(at as *const u32) }.ok()?);
    let shift = masked::<31>(u64::from(places.reference_shift));
    Some(if compressed == 0 { 0 } else { places.reference_base.wrapping_add(compressed << shift) })
}

#[inline(always)]
fn is_chunk(places: &FrozenFrames, object: u64) -> bool {
    let shift = masked::<63>(u64::from(places.class_shift));
    match user_word(object.wrapping_add(u64::from(places.class_at))) {
        Some(word) => (word >> shift) & places.class_mask == places.class,
        None => false,
    }
}

#[inline(always)]
fn integer_at(object: u64, at: u16) -> Option<u64> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_user(object.wrapping_add(u64::from(at)) as *const u32) }.ok().map(u64::from)
}

/// The frame pointer of a frame of the interpreter in a chunk is saved as a distance.
#[inline(always)]
fn with_frame_pointer(machine: &Hotspot, frame: Registers, saved_at: u64) -> Registers {
    if machine.interpreter.contains(frame.lookup_address()) {
        Registers { bp: JAVA_FRAMES.frozen_bp(saved_at, frame.bp), ..frame }
    } else {
        frame
    }
}

/// The caller of a frame in a chunk.
#[inline(always)]
fn frozen_caller(
    scratch: *mut Scratch,
    machine: &Hotspot,
    caller: Registers,
    saved_at: u64,
    is_last: bool,
) -> Registers {
    if !is_last {
        return with_frame_pointer(machine, caller, saved_at);
    }
    // SAFETY: this program has claimed the area.
    unsafe { (*scratch).walk.machine.frozen.is_inside = 0 };
    Registers { ip: BARRIER, ..caller }
}

#[inline(always)]
fn interpreted(area: u32, scratch: *mut Scratch, machine: &Hotspot, registers: &Registers) -> Option<Registers> {
    let window = Window::of(scratch, area);
    let frame = JAVA_FRAMES.interpreted_method(registers, &window)?;
    let constant = user_word(frame.method.wrapping_add(u64::from(machine.method_constant))).unwrap_or(0);
    let bytecode = frame.bytecode.wrapping_sub(constant).wrapping_sub(u64::from(machine.constant_bytecode));
    let place = CodePlace { address: frame.method, refers_to: constant, detail: 0 };
    // Methods have less than 64 KiB.
    let instruction = if bytecode >> 16 == 0 { bytecode as u32 } else { INSTRUCTION_UNKNOWN };
    code::add(area, scratch, CodeKind::JavaInterpreted, place, 0, instruction);
    // SAFETY: this program has claimed the area.
    let frozen = unsafe { &(*scratch).walk.machine.frozen };
    if frozen.is_inside == 0 {
        return JAVA_FRAMES.interpreted_caller(registers, &window);
    }
    let (caller, is_last) = JAVA_FRAMES.frozen_interpreted_caller(registers, frozen.end, &window)?;
    Some(frozen_caller(scratch, machine, caller, registers.bp, is_last))
}

#[inline(always)]
fn generated(area: u32, scratch: *mut Scratch, machine: &Hotspot, registers: &Registers) -> Option<Registers> {
    let window = Window::of(scratch, area);
    let Some(blob) = find_blob(machine, registers.lookup_address()).filter(|&blob| read_blob(scratch, machine, blob))
    else {
        frames::add(scratch, registers.ip);
        return by_frame_pointer(registers, &window);
    };
    // SAFETY: this program has claimed the area.
    let state = unsafe { &(*scratch).walk.machine };
    let frame_words = integer(state, machine.blob_frame_words);
    let name = word(state, machine.blob_name);
    let name_text = user_word(name).unwrap_or(0);
    let is_method = name_text == METHOD_NAME || name_text == NATIVE_METHOD_NAME;
    // SAFETY: as above.
    if is_barrier(unsafe { &(*scratch).walk }, name, name_text) {
        // SAFETY: as above.
        unsafe { (*scratch).walk.machine.frozen.chunk = 0 };
        return Some(Registers { ip: BARRIER, ..*registers });
    }
    let mut ip = registers.ip;
    let mut place = CodePlace { address: blob, refers_to: name, detail: 0 };
    if is_method {
        place.refers_to = word(state, machine.blob_method);
        place.detail = u64::from(integer(state, machine.blob_compilation));
        if is_deoptimizer(state, machine, blob, ip) {
            let original = registers.sp.wrapping_add(u64::from(integer(state, machine.blob_original)));
            ip = window.read(original).unwrap_or(ip);
        }
    }
    let offset = ip.wrapping_sub(blob);
    let instruction = if offset < u64::from(INSTRUCTION_UNKNOWN) { offset as u32 } else { INSTRUCTION_UNKNOWN };
    let kind = if is_method { CodeKind::JavaCompiled } else { CodeKind::JavaStub };
    code::add(area, scratch, kind, place, 0, instruction);
    // SAFETY: this program has claimed the area.
    let frozen = unsafe { &(*scratch).walk.machine.frozen };
    if frame_words == 0 {
        return by_frame_pointer(registers, &window);
    }
    let caller = JAVA_FRAMES.compiled_caller(registers, frame_words, &window)?;
    if frozen.is_inside == 0 {
        return Some(caller);
    }
    let is_last = JAVA_FRAMES.is_chunk_end(&caller, frozen.end);
    Some(frozen_caller(scratch, machine, caller, caller.sp.wrapping_sub(16), is_last))
}

#[inline(always)]
fn by_frame_pointer(registers: &Registers, window: &Window) -> Option<Registers> {
    match JAVA_FRAMES.stub_caller(registers, window) {
        Step::Caller(caller) => Some(caller),
        Step::End(_) => None,
    }
}

/// Whether deoptimization has replaced a return address by this one.
#[inline(always)]
fn is_deoptimizer(state: &MachineWalk, machine: &Hotspot, blob: u64, ip: u64) -> bool {
    let is_at = |field: u16| {
        let at = if machine.flags & HAS_OFFSETS == 0 {
            word(state, field)
        } else {
            blob.wrapping_add(u64::from(integer(state, field)))
        };
        field != 0 && at == ip
    };
    is_at(machine.blob_deoptimizers[0]) || is_at(machine.blob_deoptimizers[1])
}

/// Distances between segments to follow: a method of 1 MiB has 33.
const SEGMENT_STEPS: usize = 40;

/// The blob that contains an address.
#[inline(always)]
fn find_blob(machine: &Hotspot, address: u64) -> Option<u64> {
    let heap = find_heap(machine, address)?;
    let shift = masked::<31>(u64::from(heap.segment_shift));
    let mut segment = (address - heap.range.start) >> shift;
    for _ in 0..SEGMENT_STEPS {
        // SAFETY: the helper checks the address.
        let distance = unsafe { bpf_probe_read_user(heap.segments.wrapping_add(segment) as *const u8) }.ok()?;
        if distance == 0 {
            let block = heap.range.start.wrapping_add(segment << shift);
            return Some(block.wrapping_add(u64::from(machine.block_header)));
        }
        if distance == FREE_SEGMENT || u64::from(distance) > segment {
            return None;
        }
        segment -= u64::from(distance);
    }
    None
}

#[inline(always)]
fn find_heap(machine: &Hotspot, address: u64) -> Option<CodeHeap> {
    let [first, second, third] = machine.heaps;
    if first.range.contains(address) {
        Some(first)
    } else if second.range.contains(address) {
        Some(second)
    } else if third.range.contains(address) {
        Some(third)
    } else {
        None
    }
}

const BLOB_BYTES_MAX: u64 = BLOB_WORDS as u64 * 8;

#[inline(always)]
fn read_blob(scratch: *mut Scratch, machine: &Hotspot, blob: u64) -> bool {
    let bytes = masked::<{ 2 * BLOB_BYTES_MAX - 1 }>(u64::from(machine.blob_bytes));
    if bytes > BLOB_BYTES_MAX {
        return false;
    }
    // SAFETY: at most the array's length, in an area that this program has claimed; the helper checks the source.
    unsafe { read_user((&raw mut (*scratch).walk.machine.blob).cast(), bytes as u32, blob as *const _) == 0 }
}

/// A word of the current blob's header.
#[inline(always)]
fn word(state: &MachineWalk, offset: u16) -> u64 {
    let index = masked::<{ BLOB_WORDS as u64 - 1 }>(u64::from(offset) / 8);
    // SAFETY: within the array, whose length is a power of two.
    unsafe { *state.blob.as_ptr().add(index as usize) }
}

/// An integer of 4 bytes.
#[inline(always)]
fn integer(state: &MachineWalk, offset: u16) -> u32 {
    (word(state, offset) >> (u64::from(offset & 4) * 8)) as u32
}
