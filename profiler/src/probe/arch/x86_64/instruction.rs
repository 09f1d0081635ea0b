//! Instructions of x86-64, and what they do to registers.

use iced_x86::{Code, FlowControl, Formatter, GasFormatter, InstructionInfoFactory, OpAccess, OpKind};
use profiler_common::arch::x86_64::{R12, R13, R14, R15, RBP, RBX, REGISTERS, RSP};
use profiler_common::hook::Register;

use crate::probe::arch::instruction_set::{self, Class, Emulation};
use crate::probe::arch::origins::Origins;

/// Registers that a called function preserves (System V psABI for x86-64, 3.2.1).
const PRESERVED: [Register; 7] = [RSP, RBP, RBX, R12, R13, R14, R15];

pub(in crate::probe) struct Instruction<'a> {
    pub(super) decoded: iced_x86::Instruction,
    pub(super) offset: u64,
    pub(super) bytes: &'a [u8],
}

impl instruction_set::Instruction for Instruction<'_> {
    fn offset(&self) -> u64 {
        self.offset
    }

    fn end(&self) -> u64 {
        self.offset.wrapping_add(self.bytes.len() as u64)
    }

    /// The kernel refuses instructions with some prefixes, which compilers do not emit.
    fn class(&self, emulation: Emulation) -> Option<Class> {
        Some(if covers(emulation, self.bytes) { Class::Emulated } else { Class::SingleStepped })
    }

    fn keeps_return_probe(&self) -> bool {
        true
    }

    fn falls_through(&self) -> bool {
        self.decoded.flow_control() == FlowControl::Next
    }

    fn text(&self) -> String {
        let mut formatter = GasFormatter::new();
        let options = formatter.options_mut();
        options.set_uppercase_hex(false);
        options.set_branch_leading_zeros(false);
        options.set_small_hex_numbers_in_decimal(false);
        options.set_space_after_operand_separator(false);
        let mut text = String::new();
        formatter.format(&self.decoded, &mut text);
        text
    }

    fn step(&self, origins: &mut Origins) {
        step_over(&self.decoded, origins);
    }

    /// Excludes jumps through a fixed memory location (`jmp *slot(%rip)`), which call another function: compilers index tables of
    /// labels by a register.
    fn may_jump_into(&self, address: u64, end: u64) -> bool {
        match self.decoded.flow_control() {
            FlowControl::IndirectBranch => !self.decoded.is_ip_rel_memory_operand(),
            // Branches, calls, and `xbegin`, whose target is where an aborted transaction continues.
            _ => is_near(&self.decoded) && (1..=end).contains(&self.decoded.near_branch_target().wrapping_sub(address)),
        }
    }
}

/// Whether a probe on this instruction needs no single step. Compares encodings, as `branch_setup_xol_ops` and
/// `push_setup_xol_ops` do in <https://github.com/torvalds/linux/blob/v6.12/arch/x86/kernel/uprobes.c>. The kernel
/// also accepts some prefixes, which compilers do not emit there.
fn covers(emulation: Emulation, instruction: &[u8]) -> bool {
    match instruction {
        // nop
        [0x90]
        // push, of the first eight and the last eight registers
        | [0x50..=0x57]
        | [0x41, 0x50..=0x57]
        // jmp and conditional jumps of 8 bits
        | [0xeb | 0x70..=0x7f, _]
        // jmp and call of 32 bits
        | [0xe9 | 0xe8, _, _, _, _]
        // conditional jumps of 32 bits
        | [0x0f, 0x80..=0x8f, _, _, _, _] => true,
        [0x0f, 0x1f, modrm, ..] | [0x66, 0x0f, 0x1f, modrm, ..] => emulation.nops && modrm & 0x38 == 0,
        _ => false,
    }
}

/// Applies what the instruction does to registers; a call returns with the registers that the calling convention preserves.
pub(super) fn step_over(instruction: &iced_x86::Instruction, origins: &mut Origins) {
    match register_pair(instruction) {
        Some((Copy::Move, to, from)) => origins.copy(to, from),
        Some((Copy::Exchange, one, other)) => origins.exchange(one, other),
        None => forget_written(instruction, origins),
    }
    if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
        let all = (0..REGISTERS).map(Register::from_number);
        all.filter(|register| !PRESERVED.contains(register)).for_each(|register| origins.forget(register));
    }
}

/// Forgets registers that the instruction writes. A partial or conditional write invalidates a register too.
fn forget_written(instruction: &iced_x86::Instruction, origins: &mut Origins) {
    for used in InstructionInfoFactory::new().info(instruction).used_registers() {
        let untouched =
            matches!(used.access(), OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
        if !untouched && let Some(register) = register(used.register()) {
            origins.forget(register);
        }
    }
}

pub(super) fn is_near(instruction: &iced_x86::Instruction) -> bool {
    matches!(instruction.op0_kind(), OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
}

enum Copy {
    Move,
    Exchange,
}

/// The registers of a 64-bit move or exchange between registers. Narrower instructions change the value.
fn register_pair(instruction: &iced_x86::Instruction) -> Option<(Copy, Register, Register)> {
    let copy = match instruction.code() {
        Code::Mov_r64_rm64 | Code::Mov_rm64_r64 => Copy::Move,
        Code::Xchg_rm64_r64 | Code::Xchg_r64_RAX => Copy::Exchange,
        _ => return None,
    };
    let registers = instruction.op0_kind() == OpKind::Register && instruction.op1_kind() == OpKind::Register;
    let pair = registers.then(|| Some((register(instruction.op0_register())?, register(instruction.op1_register())?)));
    pair.flatten().map(|(to, from)| (copy, to, from))
}

/// The general-purpose register that contains this one.
pub(super) fn register(register: iced_x86::Register) -> Option<Register> {
    let full = register.full_register();
    let number = full.is_gpr64().then(|| full.number()).filter(|&number| number < usize::from(REGISTERS));
    number.and_then(|number| u8::try_from(number).ok()).map(Register::from_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expected: bool) {
        assert_eq!(covers(Emulation::default(), bytes), expected, "{bytes:02x?}");
    }

    #[test]
    fn emulated_instructions() {
        check(&[0x90], true);
        check(&[0x55], true);
        check(&[0x41, 0x54], true);
        check(&[0x74, 0x10], true);
        check(&[0xeb, 0xfe], true);
        check(&[0xe9, 0, 0, 0, 0], true);
        check(&[0xe8, 0, 0, 0, 0], true);
        check(&[0x0f, 0x84, 0, 0, 0, 0], true);
    }

    #[test]
    fn single_stepped_instructions() {
        // endbr64; test %rdi,%rdi; mov %rdi,%rax; ret; sub $8,%rsp; push $1; push (%rax)
        check(&[0xf3, 0x0f, 0x1e, 0xfa], false);
        check(&[0x48, 0x85, 0xff], false);
        check(&[0x48, 0x89, 0xf8], false);
        check(&[0xc3], false);
        check(&[0x48, 0x83, 0xec, 0x08], false);
        check(&[0x6a, 0x01], false);
        check(&[0xff, 0x30], false);
        // loop, jrcxz, indirect jmp and call, setcc
        check(&[0xe2, 0x00], false);
        check(&[0xe3, 0x00], false);
        check(&[0xff, 0xe0], false);
        check(&[0xff, 0xd0], false);
        check(&[0x0f, 0x94, 0xc0], false);
    }

    #[test]
    fn prefixed_instructions_are_not_accepted() {
        // bnd jmp; data16 jmp; notrack; rex.w push; rex.wb push; pause; xchg %r8,%rax; xchg %ax,%ax
        check(&[0xf2, 0xe9, 0, 0, 0, 0], false);
        check(&[0x66, 0xe9, 0, 0], false);
        check(&[0x3e, 0xff, 0xe0], false);
        check(&[0x48, 0x55], false);
        check(&[0x49, 0x55], false);
        check(&[0xf3, 0x90], false);
        check(&[0x49, 0x90], false);
        check(&[0x66, 0x90], false);
    }

    #[test]
    fn nops_are_emulated_by_some_kernels() {
        let with_nops = Emulation { nops: true };
        let nop5: &[u8] = &[0x0f, 0x1f, 0x44, 0, 0];
        assert!(!covers(Emulation::default(), nop5));
        assert!(covers(with_nops, nop5));
        assert!(covers(with_nops, &[0x66, 0x0f, 0x1f, 0x44, 0, 0]));
        // With a segment prefix, the kernel refuses the probe.
        assert!(!covers(with_nops, &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]));
    }
}
