//! Instructions of a function.

use profiler_common::arch::aarch64::{X16, X17};
use profiler_common::hook::Register;

use super::registers::step_over;
use super::{kernel, text};
use crate::arch::aarch64::{Control, INSTRUCTION_BYTES, Move, Word};
use crate::probe::arch::instruction_set::{self, Class, Emulation};
use crate::probe::arch::origins::Origins;

pub(in crate::probe) struct Instruction {
    pub(super) word: Word,
    pub(super) offset: u64,
    pub(super) address: u64,
    /// Whether the instruction jumps to a function through a register, as far as the code before it shows.
    pub(super) is_tail_call: bool,
}

impl Instruction {
    pub(super) fn control(&self) -> Control {
        self.word.control(self.address)
    }
}

impl instruction_set::Instruction for Instruction {
    fn offset(&self) -> u64 {
        self.offset
    }

    fn end(&self) -> u64 {
        self.offset + INSTRUCTION_BYTES
    }

    fn class(&self, emulation: Emulation) -> Option<Class> {
        kernel::class(self.word, emulation)
    }

    /// Calls overwrite the link register with a return address of their own.
    fn keeps_return_probe(&self) -> bool {
        !matches!(self.control(), Control::Call(_) | Control::CallThrough(_))
    }

    /// False for an exclusive access, which fails if a probe is between its load and its store.
    fn falls_through(&self) -> bool {
        self.control() == Control::Next && !self.word.is_exclusive()
    }

    fn text(&self) -> String {
        text::of(self.word, self.address)
    }

    fn step(&self, origins: &mut Origins) {
        step_over(self.word, self.control(), origins);
    }

    fn may_jump_into(&self, address: u64, end: u64) -> bool {
        match self.control() {
            Control::Jump(target) | Control::Branch(target) | Control::Call(target) => {
                (1..=end).contains(&target.wrapping_sub(address))
            }
            Control::JumpThrough(_) => !self.is_tail_call,
            _ => false,
        }
    }
}

/// Finds jumps to functions: to an address that was moved into one of the registers for addresses of calls (AAPCS64, 6.1.1), as by
/// glibc's calls of `__malloc_hook`. Jumps into tables of labels compute or load their address.
#[derive(Default)]
pub(super) struct TailCalls {
    /// Whether the last instruction that wrote the register was a move.
    is_moved: [bool; 2],
}

impl TailCalls {
    const REGISTERS: [Register; 2] = [X16, X17];

    pub(super) fn step(&mut self, word: Word, control: Control) -> bool {
        for (register, is_moved) in Self::REGISTERS.into_iter().zip(&mut self.is_moved) {
            match word.as_move() {
                Some(Move { to, .. }) if to == register => *is_moved = true,
                _ if word.writes().contains(register) => *is_moved = false,
                _ => {}
            }
        }
        Self::REGISTERS
            .into_iter()
            .zip(self.is_moved)
            .any(|(register, is_moved)| is_moved && control == Control::JumpThrough(register))
    }
}
