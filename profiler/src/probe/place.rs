//! Selects the instruction of a function to probe, and locates the arguments there. Pure: uses only bytes.
//!
//! A probe costs a trap, and on an instruction that the kernel does not emulate also a single step, which is ten times as expensive
//! on some machines (`heapbpf doctor` measures it). So the probe is placed on the first emulated instruction, provided that every
//! call still reaches it exactly once and with all arguments:
//!
//! - All instructions before it always continue with the next one: no branch, no call.
//! - The arguments are in registers: their original ones or copies.
//! - If a stack is captured and the return probed (every shape but [`CallShape::Free`]), the stack and frame pointers have their
//!   entry values. The return address, which a return probe replaces, is the word at the stack pointer (x86-64), or in the link
//!   register and nowhere else (aarch64).
//! - No jump of the function leads to an address after its entry up to the instruction; otherwise one call could be counted twice.
//!
//! If there is no such instruction, the probe is placed at the entry, and also if the conditions cannot be checked: functions of
//! unknown size, invalid instructions, and jumps through a table. If the kernel refuses probes on the entry, the next instruction
//! that it accepts is probed, under the same conditions.

use profiler_common::hook::{CallShape, Register};

pub(crate) use super::arch::Class;
pub use super::arch::Emulation;
use super::arch::{Instruction, InstructionSet, Native, Origins};
use super::code::{Code, DISTANCE_BYTES_MAX, PlaceError};
use crate::allocator::spec::HookSpec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementMode {
    /// Place the probe on the first suitable instruction on which it is cheap, else at the entry if that can be probed.
    Auto,
    Entry,
}

/// Registers of a hook's arguments at the probed instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// Register of the size; meaningless for [`CallShape::Free`].
    pub size: Register,
    pub count: Option<Register>,
    pub pointer: Option<Register>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub offset_in_function: u64,
    /// Text of the instruction as printed by GNU tools, with link addresses.
    pub instruction: String,
    pub class: Class,
    pub arguments: Arguments,
}

/// Places a probe. Fails if the entry is not a valid instruction, the kernel refuses probes in the code before a jump, or the
/// hook needs an argument that is passed on the stack.
pub fn place(code: &Code, spec: &HookSpec, mode: PlacementMode, emulation: Emulation) -> Result<Placement, PlaceError> {
    place_on::<Native>(code, spec, mode, emulation)
}

fn place_on<I: InstructionSet>(
    code: &Code,
    spec: &HookSpec,
    mode: PlacementMode,
    emulation: Emulation,
) -> Result<Placement, PlaceError> {
    let wanted = Wanted::of::<I>(spec)?;
    let entry = I::decode(&code.bytes, code.address.0).next().ok_or_else(|| undecodable(&code.bytes))?;
    let refused = || PlaceError::Refused(entry.text());
    let at_entry = entry.class(emulation).map(|class| placement(&entry, class, wanted.arguments));
    let is_settled =
        at_entry.as_ref().is_some_and(|at_entry| mode == PlacementMode::Entry || at_entry.class == Class::Emulated);
    if is_settled || mode == PlacementMode::Entry || !code.whole {
        return at_entry.ok_or_else(refused);
    }
    let is_reached_once = |found: &Placement| !I::jumps_into(&code.bytes, code.address.0, found.offset_in_function);
    let find = |class| first_suitable::<I>(code, &wanted, emulation, class).filter(is_reached_once);
    find(Class::Emulated).or(at_entry).or_else(|| find(Class::SingleStepped)).ok_or_else(refused)
}

fn first_suitable<I: InstructionSet>(
    code: &Code,
    wanted: &Wanted,
    emulation: Emulation,
    class: Class,
) -> Option<Placement> {
    let mut origins = I::at_entry();
    for instruction in I::decode(&code.bytes, code.address.0) {
        if instruction.offset() >= DISTANCE_BYTES_MAX as u64 {
            return None;
        }
        if instruction.class(emulation) == Some(class)
            && (wanted.frees || instruction.keeps_return_probe())
            && let Some(arguments) = wanted.found_in::<I>(&origins)
        {
            return Some(placement(&instruction, class, arguments));
        }
        if !instruction.falls_through() {
            return None;
        }
        instruction.step(&mut origins);
    }
    None
}

struct Wanted {
    /// Registers of the arguments at the entry.
    arguments: Arguments,
    frees: bool,
}

impl Wanted {
    fn of<I: InstructionSet>(spec: &HookSpec) -> Result<Self, PlaceError> {
        let register = |argument: usize| I::ARGUMENTS.get(argument).copied().ok_or(PlaceError::Argument(argument + 1));
        let arguments = Arguments {
            size: register(spec.size)?,
            count: spec.count.map(register).transpose()?,
            pointer: spec.pointer.map(register).transpose()?,
        };
        Ok(Self { arguments, frees: spec.shape == CallShape::Free })
    }

    /// The present registers of all arguments, or `None` if one is lost. A free needs no size and captures no stack.
    fn found_in<I: InstructionSet>(&self, origins: &Origins) -> Option<Arguments> {
        if !self.frees && !I::FRAME_REGISTERS.iter().all(|&register| origins.keeps(register)) {
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

fn placement(instruction: &impl Instruction, class: Class, arguments: Arguments) -> Placement {
    let (offset_in_function, instruction) = (instruction.offset(), instruction.text());
    Placement { offset_in_function, instruction, class, arguments }
}

fn undecodable(bytes: &[u8]) -> PlaceError {
    let shown: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    PlaceError::Undecodable(shown.join(" "))
}

#[cfg(test)]
mod tests;
