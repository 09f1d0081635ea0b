//! What both processors have in common: instructions and their properties.

use profiler_common::hook::Register;

use super::origins::Origins;
use super::transfer::{Known, Step};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The kernel emulates the instruction: a probe costs one trap.
    Emulated,
    /// The kernel executes the instruction out of line, which costs a second trap.
    SingleStepped,
}

/// Instructions that this kernel emulates at a probe, beyond those of all kernels with attach cookies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emulation {
    /// Whether `nop` is emulated: on x86-64 with operands (`0f 1f /0`, also prefixed by `66`), on aarch64 all (Linux 6.13).
    /// Kernels differ, so this must be measured.
    pub nops: bool,
}

/// Place of a pointer in memory, as far as the code shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::probe) enum PointerPlace {
    /// The pointer is at this link address.
    At(u64),
    /// The pointer is so many bytes behind the object whose address is at this link address, as in position-independent code.
    Behind { slot: u64, bytes: u64 },
}

pub(in crate::probe) trait InstructionSet {
    /// Registers of integer arguments of a call, first to last.
    const ARGUMENTS: [Register; 6];
    /// Registers that must have their entry values if a stack is captured, or the return probed.
    const FRAME_REGISTERS: &'static [Register];
    /// Maximum length of an instruction.
    const INSTRUCTION_BYTES_MAX: u64;
    /// The instruction that a probe writes over another (`UPROBE_SWBP_INSN`).
    const BREAKPOINT: &'static [u8];

    type Instruction<'a>: Instruction;
    type Known: Known;

    /// Decodes a function that is linked to `address`, up to the first invalid instruction.
    fn decode(bytes: &[u8], address: u64) -> impl Iterator<Item = Self::Instruction<'_>>;

    /// Target of the function's first instruction, if that is a jump. Marks for indirect calls (`endbr64`, `bti`) are skipped.
    fn initial_jump(bytes: &[u8], address: u64) -> Option<u64>;

    /// Registers at a function's entry.
    fn at_entry() -> Origins;

    /// Executes the instruction at the beginning of `code`. Follows comparisons of the entry value of the register `argument`
    /// with null. Returns `None` if the instruction is invalid.
    fn step(code: &[u8], address: u64, known: &mut Self::Known, argument: Option<Register>) -> Option<Step>;

    /// Places from which the first instructions of this code read a word into a register, or which they call or jump through.
    /// Decodes from start to end, without following jumps.
    fn pointers_read(code: &[u8], address: u64, instructions_max: usize) -> Vec<PointerPlace>;

    /// Whether a jump or call of the function may lead to an offset in `1..=end`. True also if unknown: at invalid
    /// instructions, and at a jump through a register or a table.
    fn jumps_into(bytes: &[u8], address: u64, end: u64) -> bool {
        let mut decoded_bytes = 0;
        for instruction in Self::decode(bytes, address) {
            if instruction.may_jump_into(address, end) {
                return true;
            }
            decoded_bytes = instruction.end();
        }
        decoded_bytes != bytes.len() as u64
    }
}

pub(in crate::probe) trait Instruction {
    /// Offset of the instruction from the function's entry, in bytes.
    fn offset(&self) -> u64;

    /// Offset of the next instruction.
    fn end(&self) -> u64;

    /// Cost of a probe on the instruction; `None` if the kernel refuses one, or would execute the instruction wrongly.
    fn class(&self, emulation: Emulation) -> Option<Class>;

    /// Whether the return address that a return probe has replaced before this instruction is still replaced after it.
    fn keeps_return_probe(&self) -> bool;

    /// Whether the next instruction always follows, with or without a probe on the next one.
    fn falls_through(&self) -> bool;

    /// Text of the instruction as printed by `objdump -d`, except for blanks and bases of numbers.
    fn text(&self) -> String;

    fn step(&self, origins: &mut Origins);

    /// Whether the instruction may continue at an offset in `1..=end` of the function that is linked to `address`.
    fn may_jump_into(&self, address: u64, end: u64) -> bool;
}
