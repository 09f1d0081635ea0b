//! Selects the instruction of a function to probe, and locates the arguments there. Pure: uses only bytes.
//!
//! A probe costs a trap, and on an instruction that the kernel does not emulate also a single step, which is ten times as expensive
//! on some machines (`heapbpf doctor` measures it). So the probe is placed on the first emulated instruction, provided that every
//! call still reaches it exactly once and with all arguments:
//!
//! - All instructions before it always continue with the next one: no branch, no call.
//! - The arguments are in registers: their original ones or copies.
//! - If a stack is captured and the return probed (every shape but [`CallShape::Free`]), the stack and frame pointers have their
//!   entry values: the return address, which a return probe replaces, is the word at the stack pointer.
//! - No jump of the function leads to an address after its entry up to the instruction; otherwise one call could be counted twice.
//!
//! If there is no such instruction, the probe is placed at the entry, and also if the conditions cannot be checked: functions of
//! unknown size, invalid instructions, and jumps through a table.

use profiler_common::arch::ARGUMENTS;
use profiler_common::hook::{CallShape, Register};

pub use super::arch::Emulation;
use super::arch::{FRAME_REGISTERS, Instruction, Origins, decode, jumps_into};
use super::code::{Code, DISTANCE_BYTES_MAX, PlaceError};
use crate::allocator::spec::HookSpec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementMode {
    /// On the first suitable instruction, for cheap probes.
    Auto,
    Entry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The kernel emulates the instruction: a probe costs one trap.
    Emulated,
    /// The kernel executes the instruction out of line, which costs a second trap.
    SingleStepped,
}

/// Registers of a hook's arguments at the probed instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// Meaningless for [`CallShape::Free`].
    pub size: Register,
    pub count: Option<Register>,
    pub pointer: Option<Register>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub offset_in_function: u64,
    /// The instruction as printed by GNU tools, with link addresses.
    pub instruction: String,
    pub class: Class,
    pub arguments: Arguments,
}

/// Fails if the entry is not a valid instruction, or the hook needs an argument that is passed on the stack.
pub fn place(code: &Code, spec: &HookSpec, mode: PlacementMode, emulation: Emulation) -> Result<Placement, PlaceError> {
    let wanted = Wanted::of(spec)?;
    let entry = decode(&code.bytes, code.address.0).next().ok_or_else(|| undecodable(&code.bytes))?;
    let at_entry = placement(&entry, wanted.arguments, emulation);
    if mode == PlacementMode::Entry || at_entry.class == Class::Emulated || !code.whole {
        return Ok(at_entry);
    }
    let found = first_suitable(code, &wanted, emulation);
    let found = found.filter(|found| !jumps_into(&code.bytes, code.address.0, found.offset_in_function));
    Ok(found.unwrap_or(at_entry))
}

fn first_suitable(code: &Code, wanted: &Wanted, emulation: Emulation) -> Option<Placement> {
    let mut origins = Origins::at_entry();
    for instruction in decode(&code.bytes, code.address.0) {
        if instruction.offset >= DISTANCE_BYTES_MAX as u64 {
            return None;
        }
        if instruction.is_emulated(emulation)
            && let Some(arguments) = wanted.found_in(&origins)
        {
            return Some(placement(&instruction, arguments, emulation));
        }
        if !instruction.falls_through() {
            return None;
        }
        origins.step(&instruction);
    }
    None
}

struct Wanted {
    /// At the entry.
    arguments: Arguments,
    frees: bool,
}

impl Wanted {
    fn of(spec: &HookSpec) -> Result<Self, PlaceError> {
        let register = |argument: usize| ARGUMENTS.get(argument).copied().ok_or(PlaceError::Argument(argument + 1));
        let arguments = Arguments {
            size: register(spec.size)?,
            count: spec.count.map(register).transpose()?,
            pointer: spec.pointer.map(register).transpose()?,
        };
        Ok(Self { arguments, frees: spec.shape == CallShape::Free })
    }

    /// The registers of all arguments now, or `None` if one is lost. A free needs no size and captures no stack.
    fn found_in(&self, origins: &Origins) -> Option<Arguments> {
        if !self.frees && !FRAME_REGISTERS.iter().all(|&register| origins.keeps(register)) {
            return None;
        }
        let optional = |register: Option<Register>| match register {
            Some(register) => origins.find(register).map(Some),
            None => Some(None),
        };
        let size = self.arguments.size;
        Some(Arguments {
            size: if self.frees { size } else { origins.find(size)? },
            count: optional(self.arguments.count)?,
            pointer: optional(self.arguments.pointer)?,
        })
    }
}

fn placement(instruction: &Instruction<'_>, arguments: Arguments, emulation: Emulation) -> Placement {
    Placement {
        offset_in_function: instruction.offset,
        instruction: instruction.text(),
        class: if instruction.is_emulated(emulation) { Class::Emulated } else { Class::SingleStepped },
        arguments,
    }
}

fn undecodable(bytes: &[u8]) -> PlaceError {
    let shown: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    PlaceError::Undecodable(shown.join(" "))
}

#[cfg(test)]
mod tests;
