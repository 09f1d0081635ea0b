//! Chooses the instruction of a function that a probe goes on, and says where the arguments are when it is reached. Pure:
//! sees bytes, reads no file and asks no kernel.
//!
//! A probe costs a trap; on an instruction that the kernel does not emulate it costs a single step besides, ten times
//! as much on some machines (`heapbpf doctor` measures it). So the probe goes to the first instruction that is emulated, as long as every call
//! still reaches it exactly once and with all that the hook needs:
//!
//! - All instructions before it always continue with the next one: no branch, no call.
//! - The arguments are in registers, where they were or where they were copied to.
//! - Where a stack is taken and the return is probed (every shape but [`CallShape::Free`]), the stack pointer and the frame
//!   pointer are as at the entry: the return address, which a return probe replaces, is the word at the stack pointer.
//! - No jump of the function leads behind its entry and up to the instruction, or one call would be seen twice.
//!
//! Where there is no such instruction, the probe goes to the entry. What cannot be seen is decided against moving: a
//! function of unknown size, bytes that are no instructions, and a jump through a table.

mod emulation;
mod jumps;
mod origins;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter, Instruction};
use profiler_common::hook::{CallShape, Register};
use thiserror::Error;

pub use self::emulation::Emulation;
use self::origins::Origins;
use crate::address::LinkAddr;
use crate::allocator::spec::HookSpec;
use crate::object::ObjectError;

/// How far behind the entry a probe is placed at most, in bytes. The instructions before it run unprobed anyway, so this
/// only bounds the search.
pub(crate) const DISTANCE_BYTES_MAX: usize = 128;

/// Where probes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementMode {
    /// On the first instruction that serves, for cheap probes.
    Auto,
    /// On functions' first instructions.
    Entry,
}

/// A function's code.
#[derive(Clone, Copy, Debug)]
pub struct Function<'a> {
    /// Its bytes from the entry, as many as are known.
    pub bytes: &'a [u8],
    /// The bytes are all of the function.
    pub whole: bool,
    /// Where the entry is linked to.
    pub address: LinkAddr,
}

/// Whether the kernel needs a single step for a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The kernel emulates the instruction: a probe costs one trap.
    Emulated,
    /// The kernel executes the instruction out of line, which costs a second trap.
    SingleStepped,
}

/// Where a hook's arguments are when the probed instruction is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// Of the size; of no meaning for [`CallShape::Free`].
    pub size: Register,
    /// Of the factor that the size is multiplied with, where the hook has one.
    pub count: Option<Register>,
    /// Of the block or the place to store it at, where the hook has one.
    pub pointer: Option<Register>,
}

/// Where a probe goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The probed instruction, in bytes from the function's entry.
    pub offset_in_function: u64,
    /// The instruction as GNU tools print it, with link addresses.
    pub instruction: String,
    /// What probing it takes.
    pub class: Class,
    /// Where the arguments are there.
    pub arguments: Arguments,
}

/// Why a function cannot be probed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PlaceError {
    /// `STT_GNU_IFUNC`: what the symbol names is called once, by the dynamic linker.
    #[error("`{0}` is an indirect function, whose code only chooses the real one; it cannot be probed by its name")]
    Indirect(String),
    /// A symbol in a procedure linkage table.
    #[error(
        "the code at {0:#x} only jumps to another module (it is in `{1}`); that module's function is the one to probe"
    )]
    Linkage(u64, String),
    /// The first bytes are no instruction.
    #[error(
        "the function does not begin with an instruction but with the bytes `{0}`; `objdump -d` shows what its module has there"
    )]
    Undecodable(String),
    /// The System V calling convention passes six integer arguments in registers.
    #[error("argument {0} is not passed in a register: only the first six are")]
    Argument(usize),
    /// The module's file cannot be read.
    #[error("its code cannot be read: {0}")]
    Unreadable(#[from] ObjectError),
}

/// Chooses the instruction for a hook.
///
/// # Errors
///
/// If the entry is no instruction, or the hook needs an argument that is passed on the stack.
pub fn place(
    function: &Function<'_>,
    spec: &HookSpec,
    mode: PlacementMode,
    emulation: Emulation,
) -> Result<Placement, PlaceError> {
    let wanted = Wanted::of(spec)?;
    let entry = decode(function).next().ok_or_else(|| undecodable(function.bytes))?;
    let at_entry = placement(function, &entry, wanted.arguments, emulation);
    if mode == PlacementMode::Entry || at_entry.class == Class::Emulated {
        return Ok(at_entry);
    }
    let found = first_serving(function, &wanted, emulation);
    let found = found.filter(|found| function.whole && !jumps::lead_into(function, found.offset_in_function));
    Ok(found.unwrap_or(at_entry))
}

/// The first instruction of the entry's straight line that is emulated and at which all that is wanted is at hand.
fn first_serving(function: &Function<'_>, wanted: &Wanted, emulation: Emulation) -> Option<Placement> {
    let mut origins = Origins::at_entry();
    for instruction in decode(function) {
        if offset(function, &instruction) >= DISTANCE_BYTES_MAX as u64 {
            return None;
        }
        if emulation.covers(bytes(function, &instruction))
            && let Some(arguments) = wanted.found_in(&origins)
        {
            return Some(placement(function, &instruction, arguments, emulation));
        }
        if instruction.flow_control() != FlowControl::Next {
            return None;
        }
        origins.step(&instruction);
    }
    None
}

/// What a hook needs of the registers.
struct Wanted {
    /// The registers that hold the arguments at the entry.
    arguments: Arguments,
    /// Of no meaning to the hook, so it need not be found.
    size_unused: bool,
    /// The stack and frame pointers must be as at the entry.
    frame: bool,
}

impl Wanted {
    fn of(spec: &HookSpec) -> Result<Self, PlaceError> {
        let register =
            |argument: usize| Register::ARGUMENTS.get(argument).copied().ok_or(PlaceError::Argument(argument + 1));
        let frees = spec.shape == CallShape::Free;
        Ok(Self {
            arguments: Arguments {
                size: register(spec.size)?,
                count: spec.count.map(register).transpose()?,
                pointer: spec.pointer.map(register).transpose()?,
            },
            size_unused: frees,
            frame: !frees,
        })
    }

    /// Where everything is now, if all of it still is somewhere.
    fn found_in(&self, origins: &Origins) -> Option<Arguments> {
        if self.frame && !(origins.keeps(Register::Rsp) && origins.keeps(Register::Rbp)) {
            return None;
        }
        let optional = |register: Option<Register>| match register {
            Some(register) => origins.find(register).map(Some),
            None => Some(None),
        };
        let size = self.arguments.size;
        Some(Arguments {
            size: if self.size_unused { size } else { origins.find(size)? },
            count: optional(self.arguments.count)?,
            pointer: optional(self.arguments.pointer)?,
        })
    }
}

fn placement(
    function: &Function<'_>,
    instruction: &Instruction,
    arguments: Arguments,
    emulation: Emulation,
) -> Placement {
    let emulated = emulation.covers(bytes(function, instruction));
    Placement {
        offset_in_function: offset(function, instruction),
        instruction: text(instruction),
        class: if emulated { Class::Emulated } else { Class::SingleStepped },
        arguments,
    }
}

/// The function's instructions, up to the first bytes that are none.
pub(super) fn decode<'a>(function: &Function<'a>) -> impl Iterator<Item = Instruction> + use<'a> {
    let mut decoder = Decoder::with_ip(64, function.bytes, function.address.0, DecoderOptions::NONE);
    std::iter::from_fn(move || decoder.can_decode().then(|| decoder.decode()).filter(|found| !found.is_invalid()))
}

/// Where an instruction is, in bytes from the entry.
fn offset(function: &Function<'_>, instruction: &Instruction) -> u64 {
    instruction.ip().wrapping_sub(function.address.0)
}

fn bytes<'a>(function: &Function<'a>, instruction: &Instruction) -> &'a [u8] {
    let tail = usize::try_from(offset(function, instruction)).ok().and_then(|offset| function.bytes.get(offset..));
    tail.and_then(|tail| tail.get(..instruction.len())).unwrap_or_default()
}

/// As `objdump -d` prints it, but for the blanks.
fn text(instruction: &Instruction) -> String {
    let mut formatter = GasFormatter::new();
    let options = formatter.options_mut();
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_small_hex_numbers_in_decimal(false);
    options.set_space_after_operand_separator(false);
    let mut text = String::new();
    formatter.format(instruction, &mut text);
    text
}

fn undecodable(bytes: &[u8]) -> PlaceError {
    let shown: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    PlaceError::Undecodable(shown.join(" "))
}

#[cfg(test)]
mod tests;
