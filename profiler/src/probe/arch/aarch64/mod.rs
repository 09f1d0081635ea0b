//! aarch64.

mod encoding;
mod flow;
mod instruction;
mod kernel;
mod pointers;
mod registers;
mod stub;
mod text;
mod values;

use profiler_common::arch::aarch64::{ARGUMENTS, FRAME_POINTER, REGISTERS, STACK_POINTER};
use profiler_common::hook::Register;

use self::instruction::{Instruction, TailCalls};
#[cfg(test)]
pub(in crate::probe) use self::kernel::tests::disagreement;
use self::registers::LINK;
use super::instruction_set::{InstructionSet, PointerPlace};
use super::origins::Origins;
use super::transfer::Step;
use crate::arch::aarch64::{Control, INSTRUCTION_BYTES, Word};

pub(crate) struct Aarch64;

impl InstructionSet for Aarch64 {
    const ARGUMENTS: [Register; 6] = ARGUMENTS;
    const FRAME_REGISTERS: &'static [Register] = &[STACK_POINTER, FRAME_POINTER, LINK];
    const INSTRUCTION_BYTES_MAX: u64 = INSTRUCTION_BYTES;
    /// The instruction `brk #5` (`BRK64_OPCODE_UPROBES`).
    const BREAKPOINT: &'static [u8] = &[0xa0, 0x00, 0x20, 0xd4];

    type Instruction<'a> = Instruction;
    type Known = flow::State;

    fn decode(bytes: &[u8], address: u64) -> impl Iterator<Item = Instruction> {
        let mut calls = TailCalls::default();
        Word::all(bytes, 0).take_while(|(_, word)| word.is_valid()).map(move |(offset, word)| {
            let address = address.wrapping_add(offset);
            let is_tail_call = calls.step(word, word.control(address));
            Instruction { word, offset, address, is_tail_call }
        })
    }

    fn initial_jump(bytes: &[u8], address: u64) -> Option<u64> {
        let first = Self::decode(bytes, address).find(|instruction| !instruction.word.is_landing_pad())?;
        match first.control() {
            Control::Jump(target) => Some(target),
            _ => None,
        }
    }

    fn at_entry() -> Origins {
        Origins::at_entry(REGISTERS)
    }

    fn step(code: &[u8], address: u64, known: &mut flow::State, argument: Option<Register>) -> Option<Step> {
        flow::step(code, address, known, argument)
    }

    fn pointers_read(code: &[u8], address: u64, instructions_max: usize) -> Vec<PointerPlace> {
        pointers::read(code, address, instructions_max)
    }
}

#[cfg(test)]
mod tests;
