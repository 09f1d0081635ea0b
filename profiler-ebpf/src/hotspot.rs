//! Frames of HotSpot, OpenJDK's virtual machine: methods that its interpreter executes, methods that it has compiled, and its stubs.
//!
//! Code blobs have the sizes of their frames, so no tables are needed. The names are read by the agent when the first stack with
//! the code arrives ([`hotspot_code`]).
//!
//! The target controls all of this memory. Reads of wrong addresses fail, and the limit of a stack's frames bounds the walk.

use aya_ebpf::bindings::BPF_RB_NO_WAKEUP;
use aya_ebpf::helpers::generated::bpf_probe_read_user as read_user;
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_user};
use profiler_common::counter::Counter;
use profiler_common::hotspot::{
    BLOB_WORDS, CodeHeap, FREE_SEGMENT, HAS_OFFSETS, Hotspot, JavaCodeRecord, METHOD_NAME, NATIVE_METHOD_NAME,
    compiled_caller, interpreted_caller, interpreted_method,
};
use profiler_common::interpreter::{CodeId, CodeKind, INSTRUCTION_UNKNOWN, InterpretedFrame};
use profiler_common::record::{RecordHeader, RecordKind};
use profiler_common::stack::{StackEnd, StackHasher};
use profiler_common::step::{Registers, Step, step_by_frame_pointer};

use crate::asm::masked;
use crate::interpreter::user_word;
use crate::layout::{HotspotWalk, Scratch};
use crate::maps::{EVENTS, JAVA_MACHINES, SCRATCH, count};
use crate::seen::{forget, is_new};
use crate::window::Window;
use crate::{config, frames};

/// Initialises the state for a process whose virtual machine has this number.
#[inline(always)]
pub(crate) fn start(state: &mut HotspotWalk, number: u32) {
    if number != 0
        && let Some(machine) = JAVA_MACHINES.get(number.wrapping_sub(1))
    {
        state.number = number;
        state.code = machine.code;
    }
}

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
    let Some(machine) = JAVA_MACHINES.get(walk.hotspot.number.wrapping_sub(1)) else {
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
    let window = Window(scratch);
    let frame = interpreted_method(registers, &window)?;
    let constant = user_word(frame.method.wrapping_add(u64::from(machine.method_constant))).unwrap_or(0);
    let bytecode = frame.bytecode.wrapping_sub(constant).wrapping_sub(u64::from(machine.constant_bytecode));
    // SAFETY: this program has claimed the area.
    let state = unsafe { &mut (*scratch).walk.hotspot };
    state.address = frame.method;
    state.refers_to = constant;
    state.compilation = 0;
    // Methods have less than 64 KiB.
    let instruction = if bytecode >> 16 == 0 { bytecode as u32 } else { INSTRUCTION_UNKNOWN };
    add(area, scratch, CodeKind::JavaInterpreted, instruction);
    interpreted_caller(registers, &window)
}

#[inline(always)]
fn generated(area: u32, scratch: *mut Scratch, machine: &Hotspot, registers: &Registers) -> Option<Registers> {
    let window = Window(scratch);
    let Some(blob) = find_blob(machine, registers.lookup_address()).filter(|&blob| read_blob(scratch, machine, blob))
    else {
        frames::add(scratch, registers.ip);
        return by_frame_pointer(registers, &window);
    };
    // SAFETY: this program has claimed the area.
    let state = unsafe { &mut (*scratch).walk.hotspot };
    let frame_words = integer(state, machine.blob_frame_words);
    let name = word(state, machine.blob_name);
    let name_text = user_word(name).unwrap_or(0);
    let is_method = name_text == METHOD_NAME || name_text == NATIVE_METHOD_NAME;
    let mut ip = registers.ip;
    state.address = blob;
    state.refers_to = name;
    state.compilation = 0;
    if is_method {
        state.refers_to = word(state, machine.blob_method);
        state.compilation = u64::from(integer(state, machine.blob_compilation));
        if is_deoptimizer(state, machine, blob, ip) {
            let original = registers.sp.wrapping_add(u64::from(integer(state, machine.blob_original)));
            ip = window.read(original).unwrap_or(ip);
        }
    }
    let offset = ip.wrapping_sub(blob);
    let instruction = if offset < u64::from(INSTRUCTION_UNKNOWN) { offset as u32 } else { INSTRUCTION_UNKNOWN };
    add(area, scratch, if is_method { CodeKind::JavaCompiled } else { CodeKind::JavaStub }, instruction);
    if frame_words == 0 {
        return by_frame_pointer(registers, &window);
    }
    compiled_caller(registers, frame_words, &window)
}

#[inline(always)]
fn by_frame_pointer(registers: &Registers, window: &Window) -> Option<Registers> {
    match step_by_frame_pointer(registers, window) {
        Step::Caller(caller) => Some(caller),
        Step::End(_) => None,
    }
}

/// Whether deoptimization has replaced a return address by this one.
#[inline(always)]
fn is_deoptimizer(state: &HotspotWalk, machine: &Hotspot, blob: u64, ip: u64) -> bool {
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
    unsafe { read_user((&raw mut (*scratch).walk.hotspot.blob).cast(), bytes as u32, blob as *const _) == 0 }
}

/// A word of the current blob's header.
#[inline(always)]
fn word(state: &HotspotWalk, offset: u16) -> u64 {
    let index = masked::<{ BLOB_WORDS as u64 - 1 }>(u64::from(offset) / 8);
    // SAFETY: within the array, whose length is a power of two.
    unsafe { *state.blob.as_ptr().add(index as usize) }
}

/// An integer of 4 bytes.
#[inline(always)]
fn integer(state: &HotspotWalk, offset: u16) -> u32 {
    (word(state, offset) >> (u64::from(offset & 4) * 8)) as u32
}

/// Adds a frame of the code that the state describes.
#[inline(always)]
fn add(area: u32, scratch: *mut Scratch, kind: CodeKind, instruction: u32) {
    // SAFETY: this program has claimed the area.
    let state = unsafe { &mut (*scratch).walk.hotspot };
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let mut hasher = StackHasher::new(config::stack_seed(), tgid);
    hasher.add(state.address);
    hasher.add(state.refers_to);
    hasher.add(state.compilation);
    let id = hasher.finish();
    state.code_id = id;
    state.kind = kind as u32;
    if is_new(id) && hotspot_code(area) == 0 {
        forget(id);
    }
    frames::add(scratch, InterpretedFrame { kind, code: CodeId(id).in_frames(), instruction }.to_word());
}

/// Sends the code of the current frame. Returns 0 if the ring buffer is full.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn hotspot_code(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return 1;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let state = unsafe { &(*scratch).walk.hotspot };
    let Some(mut entry) = EVENTS.reserve::<JavaCodeRecord>(0) else {
        count(Counter::RingFull);
        return 0;
    };
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    entry.write(JavaCodeRecord {
        header: RecordHeader::new(RecordKind::JavaCode, tgid),
        code_id: state.code_id,
        address: state.address,
        refers_to: state.refers_to,
        compilation: state.compilation as u32,
        kind: state.kind,
    });
    entry.submit(u64::from(BPF_RB_NO_WAKEUP));
    count(Counter::Events);
    1
}
