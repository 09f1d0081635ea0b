//! Execution of a function's beginning at another address.

use dynasmrt::{DynasmApi as _, DynasmLabelApi as _, dynasm};
use gimli::write::CallFrameInstruction;

use super::routine::{Stub, usize_of};
use crate::arch::aarch64::{Control, INSTRUCTION_BYTES, Word};
use crate::probe::arch::stub::{StubError, StubFunction};

/// Executes the function from its entry. Instructions that depend on their own address are replaced.
pub(super) fn continue_in(stub: &mut Stub, function: &StubFunction<'_>) -> Result<(), StubError> {
    let mut frame = Frame::default();
    let end = function.address + function.prefix.len() as u64;
    for (at, word) in Word::all(function.prefix, function.address) {
        if !word.is_valid() {
            return Err(StubError::Prefix("an instruction before the probe is invalid"));
        }
        match word.control(at) {
            Control::Next => move_instruction(stub, word, at)?,
            Control::Branch(target) => {
                if (function.address..end).contains(&target) {
                    return Err(StubError::Prefix("it has a loop before the probe"));
                }
                let inverted = word.inverted_branch(2 * INSTRUCTION_BYTES);
                let inverted = inverted.ok_or(StubError::Prefix("an instruction before the probe is not known"))?;
                dynasm!(stub.asm ; .arch aarch64 ; .u32 inverted.0 ; b extern usize_of(target));
            }
            Control::Jump(target) => {
                frame.jump(stub, target);
                return Ok(());
            }
            _ => return Err(StubError::Prefix("it calls a function or returns before the probe")),
        }
        frame.step(stub, word);
    }
    frame.jump(stub, end);
    Ok(())
}

fn move_instruction(stub: &mut Stub, word: Word, at: u64) -> Result<(), StubError> {
    if let Some(address) = word.address(at) {
        let register = word.register(0).number();
        // `adrp` computes the address of a page.
        stub.load_address(register, address);
    } else if word.is_literal_load() {
        return Err(StubError::Prefix("it loads a literal before the probe"));
    } else {
        dynasm!(stub.asm ; .arch aarch64 ; .u32 word.0);
    }
    Ok(())
}

/// Changes of the frame by the moved instructions.
#[derive(Default)]
struct Frame {
    size_bytes: i32,
    is_signed: bool,
}

impl Frame {
    fn step(&mut self, stub: &mut Stub, word: Word) {
        if let Some(bytes) = word.stack_growth() {
            self.size_bytes += bytes;
            stub.frame([CallFrameInstruction::CfaOffset(self.size_bytes)]);
        }
        if word.signs_link() {
            self.is_signed = !self.is_signed;
            stub.frame([CallFrameInstruction::NegateRaState]);
        }
    }

    /// Jumps to an address of the function. Behind the jump, the frame is as at the entry.
    fn jump(self, stub: &mut Stub, target: u64) {
        dynasm!(stub.asm ; .arch aarch64 ; b extern usize_of(target));
        if self.size_bytes != 0 {
            stub.frame([CallFrameInstruction::CfaOffset(0)]);
        }
        if self.is_signed {
            stub.frame([CallFrameInstruction::NegateRaState]);
        }
    }
}
