//! x86-64.

mod flow;
mod instruction;
mod pointers;
mod stub;

use iced_x86::{Code, Decoder, DecoderOptions};
use profiler_common::arch::x86_64::{ARGUMENTS, FRAME_POINTER, REGISTERS, STACK_POINTER};
use profiler_common::hook::Register;

use self::instruction::Instruction;
use super::instruction_set::{InstructionSet, PointerPlace};
use super::origins::Origins;
use super::transfer::Step;

pub(crate) struct X86_64;

impl InstructionSet for X86_64 {
    const ARGUMENTS: [Register; 6] = ARGUMENTS;
    /// The stack pointer is included, because it points to the return address.
    const FRAME_REGISTERS: &'static [Register] = &[STACK_POINTER, FRAME_POINTER];
    const INSTRUCTION_BYTES_MAX: u64 = 15;
    const BREAKPOINT: &'static [u8] = &[0xcc];

    type Instruction<'a> = Instruction<'a>;
    type Known = flow::State;

    fn decode(bytes: &[u8], address: u64) -> impl Iterator<Item = Instruction<'_>> {
        let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
        let decoded = std::iter::from_fn(move || decoder.can_decode().then(|| decoder.decode()));
        decoded.take_while(|decoded| !decoded.is_invalid()).map(move |decoded| {
            let offset = decoded.ip().wrapping_sub(address);
            let tail = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..));
            Instruction { decoded, offset, bytes: tail.and_then(|tail| tail.get(..decoded.len())).unwrap_or_default() }
        })
    }

    fn initial_jump(bytes: &[u8], address: u64) -> Option<u64> {
        let first =
            Self::decode(bytes, address).find(|instruction| instruction.decoded.code() != Code::Endbr64)?.decoded;
        first.is_jmp_short_or_near().then(|| first.near_branch_target())
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
