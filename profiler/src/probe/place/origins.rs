//! Follows where the values that registers had at a function's entry are, from one instruction to the next. Knows only
//! whole copies; a value that was touched in any other way is lost.

use iced_x86::{Code, Instruction, InstructionInfoFactory, OpAccess, OpKind};
use profiler_common::hook::Register;

/// For each register, by number, whose entry value it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origins([Option<Register>; 16]);

impl Origins {
    /// Every register holds its own.
    pub(super) fn at_entry() -> Self {
        Self(Register::ALL.map(Some))
    }

    /// Whether the register holds what it held at the entry.
    pub(super) fn keeps(&self, register: Register) -> bool {
        self.0[register as usize] == Some(register)
    }

    /// A register that holds what this one held at the entry: itself, if it still does.
    pub(super) fn find(&self, register: Register) -> Option<Register> {
        if self.keeps(register) {
            return Some(register);
        }
        Register::ALL.into_iter().find(|&holder| self.0[holder as usize] == Some(register))
    }

    /// Takes an instruction into account that has been executed.
    pub(super) fn step(&mut self, instruction: &Instruction) {
        match register_pair(instruction) {
            Some((Copy::Move, to, from)) => self.0[to] = self.0[from],
            Some((Copy::Exchange, one, other)) => self.0.swap(one, other),
            None => self.forget_written(instruction),
        }
    }

    /// Writing a part of a register, and maybe writing one, spoils it as well.
    fn forget_written(&mut self, instruction: &Instruction) {
        for used in InstructionInfoFactory::new().info(instruction).used_registers() {
            let untouched =
                matches!(used.access(), OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
            if !untouched && let Some(number) = number(used.register()) {
                self.0[number] = None;
            }
        }
    }
}

/// What moves whole values.
enum Copy {
    Move,
    Exchange,
}

/// The registers of a 64-bit move or exchange between registers. Narrower ones change the value or a part of it.
fn register_pair(instruction: &Instruction) -> Option<(Copy, usize, usize)> {
    let copy = match instruction.code() {
        Code::Mov_r64_rm64 | Code::Mov_rm64_r64 => Copy::Move,
        Code::Xchg_rm64_r64 | Code::Xchg_r64_RAX => Copy::Exchange,
        _ => return None,
    };
    let registers = instruction.op0_kind() == OpKind::Register && instruction.op1_kind() == OpKind::Register;
    let pair = registers.then(|| Some((number(instruction.op0_register())?, number(instruction.op1_register())?)));
    pair.flatten().map(|(to, from)| (copy, to, from))
}

/// The number of the general-purpose register that this is, or is a part of.
fn number(register: iced_x86::Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number()).filter(|&number| number < Register::ALL.len())
}
