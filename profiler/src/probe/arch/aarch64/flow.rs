//! Control flow of aarch64.

use profiler_common::arch::aarch64::REGISTERS;
use profiler_common::hook::Register;

use super::registers::step_over;
use super::values::{Value, Values};
use crate::arch::aarch64::{Control, INSTRUCTION_BYTES, Word};
use crate::probe::arch::origins::Origins;
use crate::probe::arch::transfer::{Argument, Known, Step, Transfer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::probe) struct State {
    origins: Origins,
    values: Values,
    /// Whether the flags are of a comparison of the argument with null.
    is_tested: bool,
}

impl Known for State {
    fn at_entry() -> Self {
        Self { origins: Origins::at_entry(REGISTERS), values: Values::UNKNOWN, is_tested: false }
    }

    fn common(&self, other: &Self) -> Self {
        Self {
            origins: self.origins.common(&other.origins),
            values: self.values.common(&other.values),
            is_tested: self.is_tested && other.is_tested,
        }
    }
}

pub(super) fn step(code: &[u8], address: u64, known: &mut State, argument: Option<Register>) -> Option<Step> {
    let word = Word::read(code).filter(|word| word.is_valid())?;
    let control = word.control(address);
    let transfer = match control {
        Control::Next | Control::SystemCall => Transfer::Next,
        Control::Jump(target) => Transfer::Jump(target),
        Control::Branch(target) => Transfer::Branch { target: Some(target), taken_if: taken_if(word, known, argument) },
        Control::Call(target) => Transfer::Call(target),
        Control::CallThrough(register) if known.values.call_of_descriptor(register) => Transfer::Next,
        Control::CallThrough(register) => Transfer::CallThrough(slot(known, register)),
        Control::JumpThrough(register) => Transfer::JumpThrough(slot(known, register)),
        Control::Return => Transfer::Return,
        Control::Trap => Transfer::Stop,
    };
    let is_argument = |register| argument.is_some_and(|argument| known.origins.is_copy(register, argument));
    known.is_tested = word.as_null_test().is_some_and(is_argument);
    if matches!(control, Control::Call(_) | Control::CallThrough(_)) && !matches!(transfer, Transfer::Next) {
        known.values.call();
    }
    known.values.step(word, address);
    step_over(word, control, &mut known.origins);
    Some(Step { next: address.wrapping_add(INSTRUCTION_BYTES), transfer })
}

/// The argument for which a branch is taken: `cbz`, `cbnz`, and `b.eq` and `b.ne` after a comparison.
fn taken_if(word: Word, known: &State, argument: Option<Register>) -> Option<Argument> {
    const EQUAL: u32 = 0x5400_0000;
    const NOT_EQUAL: u32 = 0x5400_0001;
    let compares = || argument.is_some_and(|argument| known.origins.is_copy(word.register(0), argument));
    match () {
        () if word.is(0xff00_001f, EQUAL) && known.is_tested => Some(Argument::Null),
        () if word.is(0xff00_001f, NOT_EQUAL) && known.is_tested => Some(Argument::NotNull),
        () if word.is(0xff00_0000, 0xb400_0000) && compares() => Some(Argument::Null),
        () if word.is(0xff00_0000, 0xb500_0000) && compares() => Some(Argument::NotNull),
        () => None,
    }
}

/// Address of the word that a register was loaded from.
fn slot(known: &State, register: Register) -> Option<u64> {
    match known.values.get(register)? {
        Value::Loaded(slot) => Some(slot),
        Value::Address(_) => None,
    }
}
