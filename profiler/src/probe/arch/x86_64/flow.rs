//! Control flow of x86-64.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};
use profiler_common::arch::x86_64::REGISTERS;
use profiler_common::hook::Register;

use super::instruction::{is_near, register, step_over};
use crate::probe::arch::origins::Origins;
use crate::probe::arch::transfer::{Argument, Known, Step, Transfer};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::probe) struct State {
    origins: Origins,
    /// Whether the instruction before has compared the argument with null.
    is_tested: bool,
}

impl Known for State {
    fn at_entry() -> Self {
        Self { origins: Origins::at_entry(REGISTERS), is_tested: false }
    }

    fn common(&self, other: &Self) -> Self {
        Self { origins: self.origins.common(&other.origins), is_tested: self.is_tested && other.is_tested }
    }
}

pub(super) fn step(code: &[u8], address: u64, known: &mut State, argument: Option<Register>) -> Option<Step> {
    let instruction = Decoder::with_ip(64, code, address, DecoderOptions::NONE).decode();
    if instruction.is_invalid() {
        return None;
    }
    let was_tested = known.is_tested;
    known.is_tested = argument.is_some_and(|argument| tests(&instruction, &known.origins, argument));
    step_over(&instruction, &mut known.origins);
    let target = is_near(&instruction).then(|| instruction.near_branch_target());
    let transfer = match instruction.flow_control() {
        FlowControl::Next | FlowControl::Interrupt => Transfer::Next,
        FlowControl::Return => Transfer::Return,
        FlowControl::Exception => Transfer::Stop,
        FlowControl::UnconditionalBranch => Transfer::Jump(instruction.near_branch_target()),
        FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {
            let taken_if = match instruction.mnemonic() {
                Mnemonic::Je if was_tested => Some(Argument::Null),
                Mnemonic::Jne if was_tested => Some(Argument::NotNull),
                _ => None,
            };
            Transfer::Branch { target, taken_if }
        }
        // `syscall` has no target.
        FlowControl::Call => target.map_or(Transfer::Next, Transfer::Call),
        FlowControl::IndirectCall => Transfer::CallThrough(slot(&instruction)),
        FlowControl::IndirectBranch => Transfer::JumpThrough(slot(&instruction)),
    };
    Some(Step { next: instruction.next_ip(), transfer })
}

/// Whether the instruction compares the argument with null.
fn tests(instruction: &Instruction, origins: &Origins, argument: Register) -> bool {
    let is_test = instruction.code() == Code::Test_rm64_r64
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register() == instruction.op1_register();
    is_test && register(instruction.op0_register()).is_some_and(|holder| origins.is_copy(holder, argument))
}

fn slot(instruction: &Instruction) -> Option<u64> {
    instruction.is_ip_rel_memory_operand().then(|| instruction.ip_rel_memory_address())
}
