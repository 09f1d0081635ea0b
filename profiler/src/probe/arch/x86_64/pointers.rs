//! Pointers to functions that code reads from memory.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, OpAccess, OpKind, Register};
use rustc_hash::FxHashMap;

use crate::probe::arch::instruction_set::PointerPlace;

/// Implements [`InstructionSet::pointers_read`](crate::probe::arch::instruction_set::InstructionSet::pointers_read).
pub(super) fn read(code: &[u8], address: u64, instructions_max: usize) -> Vec<PointerPlace> {
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut factory = InstructionInfoFactory::new();
    // Registers that hold a word read from a link address.
    let mut loaded: FxHashMap<Register, u64> = FxHashMap::default();
    let mut read = Vec::new();
    for instruction in decoder.iter().take(instructions_max) {
        let place = place(&instruction, &loaded);
        for used in factory.info(&instruction).used_registers() {
            if !matches!(used.access(), OpAccess::Read | OpAccess::CondRead) {
                loaded.remove(&used.register().full_register());
            }
        }
        if let (Some(PointerPlace::At(slot)), Code::Mov_r64_rm64) = (place, instruction.code()) {
            loaded.insert(instruction.op0_register(), slot);
        }
        read.extend(place);
    }
    read
}

/// Place of the word that the instruction loads, calls or jumps through.
fn place(instruction: &Instruction, loaded: &FxHashMap<Register, u64>) -> Option<PointerPlace> {
    let operand = match instruction.code() {
        Code::Mov_r64_rm64 => instruction.op1_kind(),
        Code::Call_rm64 | Code::Jmp_rm64 => instruction.op0_kind(),
        _ => return None,
    };
    let has_segment = instruction.segment_prefix() != Register::None;
    if operand != OpKind::Memory || has_segment || instruction.memory_index() != Register::None {
        return None;
    }
    if instruction.is_ip_rel_memory_operand() {
        return Some(PointerPlace::At(instruction.ip_rel_memory_address()));
    }
    let bytes = instruction.memory_displacement64();
    match instruction.memory_base() {
        Register::None => Some(PointerPlace::At(bytes)),
        base => loaded.get(&base).map(|&slot| PointerPlace::Behind { slot, bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_at_addresses_and_behind_them_are_found() {
        #[rustfmt::skip]
        let code = [
            0x48, 0x8b, 0x05, 0x10, 0x00, 0x00, 0x00, // mov rax, [rip + 0x10]
            0x48, 0x8b, 0x14, 0x25, 0x00, 0x20, 0x00, 0x00, // mov rdx, [0x2000]
            0x48, 0x8b, 0x78, 0x08, // mov rdi, [rax + 8]
            0x48, 0x8b, 0x4b, 0x08, // mov rcx, [rbx + 8]
            0x48, 0x8b, 0x4c, 0x88, 0x08, // mov rcx, [rax + rcx*4 + 8]
            0x89, 0x05, 0x00, 0x00, 0x00, 0x00, // mov [rip], eax
            0x31, 0xc0, // xor eax, eax
            0xff, 0x60, 0x18, // jmp [rax + 0x18]
            0xff, 0x62, 0x18, // jmp [rdx + 0x18]
        ];
        let (slot, other) = (0x1017, 0x2000);
        let expected = [
            PointerPlace::At(slot),
            PointerPlace::At(other),
            PointerPlace::Behind { slot, bytes: 8 },
            PointerPlace::Behind { slot: other, bytes: 0x18 },
        ];
        assert_eq!(read(&code, 0x1000, 99), expected);
        assert_eq!(read(&code, 0x1000, 2), expected[..2]);
    }

    #[test]
    fn the_thread_s_own_memory_is_no_place() {
        let canary = [0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0x00, 0x00, 0x00]; // mov rax, fs:[0x28]
        assert_eq!(read(&canary, 0x1000, 9), []);
    }
}
