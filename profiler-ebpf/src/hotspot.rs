//! Frames of HotSpot, OpenJDK's virtual machine: methods that its interpreter executes, methods that it has compiled, and its stubs.
//!
//! Code blobs have the sizes of their frames, so no tables are needed. The names are read by the agent when the first stack with
//! the code arrives ([`code`]).
//!
//! The target controls all of this memory. Reads of wrong addresses fail, and the limit of a stack's frames bounds the walk.

use profiler_common::arch::JAVA_FRAMES;
use profiler_common::hotspot::{
    BLOB_WORDS, CodeHeap, FREE_SEGMENT, HAS_OFFSETS, Hotspot, METHOD_NAME, NATIVE_METHOD_NAME,
};
use profiler_common::interpreter::{CodeKind, CodePlace, INSTRUCTION_UNKNOWN, runtime_index};
use profiler_common::stack::StackEnd;
use profiler_common::step::{Registers, Step};

use crate::asm::masked;
use crate::helpers::{bpf_probe_read_user, read_user};
use crate::layout::{MachineWalk, Scratch};
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
    let end = match caller {
        // Thread entry code pushes 0 as its own return address.
        Some(caller) if caller.ip == 0 => StackEnd::Complete,
        Some(caller) if caller.sp == registers.sp => StackEnd::BrokenChain,
        Some(caller) => {
            walk.set_registers(&caller);
            return 0;
        }
        None => StackEnd::Unreadable,
    };
    end as u32 + 1
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
    JAVA_FRAMES.interpreted_caller(registers, &window)
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
    if frame_words == 0 {
        return by_frame_pointer(registers, &window);
    }
    JAVA_FRAMES.compiled_caller(registers, frame_words, &window)
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
