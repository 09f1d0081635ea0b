//! Frames of V8: functions that its interpreter executes, and those that it has compiled. Its own functions have symbols.
//!
//! The agent reads the names when the first stack with the function arrives ([`code`]).
//!
//! The target controls all of this memory. Reads of wrong addresses fail, and the limit of a stack's frames bounds the walk.

use profiler_common::interpreter::{CodeKind, CodePlace, INSTRUCTION_UNKNOWN, runtime_index};
use profiler_common::stack::StackEnd;
use profiler_common::step::{Registers, Step, step_by_frame_pointer};
use profiler_common::v8::{OBJECT_WORDS, SHARED_DATA, V8, bytecode, function, object};

use crate::asm::masked;
use crate::helpers::{bpf_probe_read_user, read_user};
use crate::layout::{MachineWalk, Scratch};
use crate::maps::{JAVASCRIPT_ENGINES, SCRATCH};
use crate::window::{Window, user_word};
use crate::{code, frames};

/// Adds the current frame, which is in the engine's code, and steps to its caller. Returns 0 if there is one, else a [`StackEnd`]
/// plus 1.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn v8_frame(area: u32) -> u32 {
    let Some(scratch) = SCRATCH.get_ptr_mut(area) else {
        return StackEnd::NoScratch as u32 + 1;
    };
    // SAFETY: the pointer comes from a successful lookup, and this program has claimed the area.
    let walk = unsafe { &mut (*scratch).walk };
    let registers = walk.registers();
    let Some(engine) = JAVASCRIPT_ENGINES.get(runtime_index(walk.machine.number)) else {
        return StackEnd::MissingModule as u32 + 1;
    };
    if add_function(area, scratch, engine, &registers).is_none() {
        frames::add(scratch, registers.ip);
    }
    match step_by_frame_pointer(&registers, &Window::of(scratch, area)) {
        Step::Caller(caller) => {
            walk.set_registers(&caller);
            0
        }
        Step::End(end) => end as u32 + 1,
    }
}

/// `None` if the frame is not of a function, or of one of the engine's own.
#[inline(always)]
fn add_function(area: u32, scratch: *mut Scratch, engine: &V8, registers: &Registers) -> Option<()> {
    let window = Window::of(scratch, area);
    let function = function(registers, &window)?;
    let address = registers.lookup_address();
    let is_generated = !engine.builtins[0].contains(address) && !engine.builtins[1].contains(address);
    let interpreted = if is_generated { None } else { bytecode(registers, &window) };
    // SAFETY: this program has claimed the area.
    let state = unsafe { &mut (*scratch).walk.machine };
    let (mut detail, mut version, mut instruction) = (0, 0, INSTRUCTION_UNKNOWN);
    if let Some((bytecode, offset)) = interpreted {
        if !has_type(user_word(bytecode)?, engine, engine.bytecode_type, &mut state.maps[1]) {
            return None;
        }
        if offset < INSTRUCTION_UNKNOWN {
            instruction = offset;
        }
    } else if !is_generated {
        return None;
    }
    let shared = object(user_word(function.wrapping_add(u64::from(engine.function_shared)))?)?;
    // SAFETY: the array's length; the helper checks the source.
    let read = unsafe { read_user((&raw mut state.object).cast(), OBJECT_WORDS as u32 * 8, shared as *const _) };
    if read != 0 || !has_type(state.object[0], engine, engine.shared_type, &mut state.maps[0]) {
        return None;
    }
    // The engine's own functions have a number instead of bytecode or code, and symbols.
    object(state.object[SHARED_DATA])?;
    let name = word(state, engine.shared_name);
    if is_generated {
        detail = address;
        version = user_word(function.wrapping_add(u64::from(engine.function_code))).unwrap_or(0);
    }
    let place = CodePlace { address: shared, refers_to: name, detail };
    code::add(area, scratch, CodeKind::JavaScript, place, version, instruction);
    Some(())
}

/// Whether an object with this map has the type. Objects of a type mostly have the same map, which `known` has.
#[inline(always)]
fn has_type(map: u64, engine: &V8, expected: u16, known: &mut u64) -> bool {
    if map != 0 && map == *known {
        return true;
    }
    let Some(at) = object(map) else { return false };
    let at = at.wrapping_add(u64::from(engine.map_type));
    // SAFETY: the helper checks the address.
    let is_expected = unsafe { bpf_probe_read_user(at as *const u16) } == Ok(expected);
    if is_expected {
        *known = map;
    }
    is_expected
}

/// A word of the object that was read.
#[inline(always)]
fn word(state: &MachineWalk, offset: u16) -> u64 {
    let index = masked::<{ OBJECT_WORDS as u64 - 1 }>(u64::from(offset) / 8);
    // SAFETY: within the array, whose length is a power of two.
    unsafe { *state.object.as_ptr().add(index as usize) }
}
