//! x86-64 instructions: decoding, which of them the kernel emulates at a probe, and the values that registers hold.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter, InstructionInfoFactory, OpAccess, OpKind,
};
use profiler_common::arch::x86_64::{FRAME_POINTER, R12, R13, R14, R15, RBX, REGISTERS, STACK_POINTER};
use profiler_common::hook::Register;

/// Registers that must have their entry values if a stack is captured: stack and frame pointer.
pub(crate) const FRAME_REGISTERS: [Register; 2] = [STACK_POINTER, FRAME_POINTER];

/// Registers that a called function preserves (System V psABI for x86-64, 3.2.1).
const PRESERVED: [Register; 7] = [STACK_POINTER, FRAME_POINTER, RBX, R12, R13, R14, R15];

pub(crate) struct Instruction<'a> {
    decoded: iced_x86::Instruction,
    /// In bytes from the function's entry.
    pub offset: u64,
    bytes: &'a [u8],
}

/// Decodes a function that is linked to `address`, up to the first invalid instruction.
pub(crate) fn decode(bytes: &[u8], address: u64) -> impl Iterator<Item = Instruction<'_>> {
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    let decoded = std::iter::from_fn(move || decoder.can_decode().then(|| decoder.decode()));
    decoded.take_while(|decoded| !decoded.is_invalid()).map(move |decoded| {
        let offset = decoded.ip().wrapping_sub(address);
        let tail = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..));
        Instruction { decoded, offset, bytes: tail.and_then(|tail| tail.get(..decoded.len())).unwrap_or_default() }
    })
}

impl Instruction<'_> {
    /// Offset of the next instruction.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    pub(crate) fn is_emulated(&self, emulation: Emulation) -> bool {
        emulation.covers(self.bytes)
    }

    pub(crate) fn falls_through(&self) -> bool {
        self.decoded.flow_control() == FlowControl::Next
    }

    /// As printed by `objdump -d`, except for blanks.
    pub(crate) fn text(&self) -> String {
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

    /// Whether the instruction may continue at an offset in `1..=end` of the function that is linked to `address`.
    fn may_jump_into(&self, address: u64, end: u64) -> bool {
        match self.decoded.flow_control() {
            FlowControl::IndirectBranch => !self.decoded.is_ip_rel_memory_operand(),
            // Branches, calls, and `xbegin`, whose target is where an aborted transaction continues.
            _ => {
                let kind = self.decoded.op0_kind();
                matches!(kind, OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64)
                    && (1..=end).contains(&self.decoded.near_branch_target().wrapping_sub(address))
            }
        }
    }
}

/// Whether a jump or call of the function may lead to an offset in `1..=end`. True also if unknown: at invalid
/// instructions, and at a jump through a register or a table. A jump through a fixed memory location
/// (`jmp *slot(%rip)`) calls another function: compilers index tables of labels by a register.
pub(crate) fn jumps_into(bytes: &[u8], address: u64, end: u64) -> bool {
    let mut decoded_bytes = 0;
    for instruction in decode(bytes, address) {
        if instruction.may_jump_into(address, end) {
            return true;
        }
        decoded_bytes = instruction.offset.wrapping_add(instruction.bytes.len() as u64);
    }
    decoded_bytes != bytes.len() as u64
}

/// Target of the function's first instruction, if that is a jump. `endbr64` is skipped.
pub(crate) fn initial_jump(bytes: &[u8], address: u64) -> Option<u64> {
    let first = decode(bytes, address).find(|instruction| instruction.decoded.code() != Code::Endbr64)?.decoded;
    first.is_jmp_short_or_near().then(|| first.near_branch_target())
}

/// Instructions that this kernel emulates at a probe, beyond those of all kernels with attach cookies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Emulation {
    /// `nop` with operands (`0f 1f /0`, also prefixed by `66`). Kernels differ, so this must be measured.
    pub long_nops: bool,
}

impl Emulation {
    /// Whether a probe on this instruction needs no single step. Compares encodings, as `branch_setup_xol_ops` and
    /// `push_setup_xol_ops` do in <https://github.com/torvalds/linux/blob/v6.12/arch/x86/kernel/uprobes.c>. The kernel
    /// also accepts some prefixes, which compilers do not emit there.
    pub fn covers(self, instruction: &[u8]) -> bool {
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
            [0x0f, 0x1f, modrm, ..] | [0x66, 0x0f, 0x1f, modrm, ..] => self.long_nops && modrm & 0x38 == 0,
            _ => false,
        }
    }
}

fn registers() -> impl Iterator<Item = Register> {
    (0..REGISTERS).map(Register::from_number)
}

/// For each register, by number, the register whose value at the function's entry it holds. Tracks whole copies only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origins([Option<Register>; REGISTERS as usize]);

impl Origins {
    pub(crate) fn at_entry() -> Self {
        Self(std::array::from_fn(|number| registers().nth(number)))
    }

    pub(crate) fn keeps(&self, register: Register) -> bool {
        self.0[usize::from(register.number())] == Some(register)
    }

    /// A register that holds the entry value of this one: preferably itself.
    pub(crate) fn find(&self, register: Register) -> Option<Register> {
        if self.keeps(register) {
            return Some(register);
        }
        registers().find(|&holder| self.0[usize::from(holder.number())] == Some(register))
    }

    pub(crate) fn step(&mut self, instruction: &Instruction<'_>) {
        self.step_over(&instruction.decoded);
    }

    /// As [`step`](Self::step); a call returns with the registers that the calling convention preserves.
    pub(super) fn step_over(&mut self, instruction: &iced_x86::Instruction) {
        match register_pair(instruction) {
            Some((Copy::Move, to, from)) => self.0[to] = self.0[from],
            Some((Copy::Exchange, one, other)) => self.0.swap(one, other),
            None => self.forget_written(instruction),
        }
        if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
            for register in registers().filter(|register| !PRESERVED.contains(register)) {
                self.0[usize::from(register.number())] = None;
            }
        }
    }

    /// Whether a register has the entry value of `argument`.
    pub(super) fn is_copy(&self, register: iced_x86::Register, argument: Register) -> bool {
        number(register).is_some_and(|number| self.0[number] == Some(argument))
    }

    /// What both know.
    pub(super) fn common(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|register| self.0[register].filter(|_| self.0[register] == other.0[register])))
    }

    /// A partial or conditional write invalidates a register too.
    fn forget_written(&mut self, instruction: &iced_x86::Instruction) {
        for used in InstructionInfoFactory::new().info(instruction).used_registers() {
            let untouched =
                matches!(used.access(), OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
            if !untouched && let Some(number) = number(used.register()) {
                self.0[number] = None;
            }
        }
    }
}

enum Copy {
    Move,
    Exchange,
}

/// The registers of a 64-bit move or exchange between registers. Narrower ones change the value.
fn register_pair(instruction: &iced_x86::Instruction) -> Option<(Copy, usize, usize)> {
    let copy = match instruction.code() {
        Code::Mov_r64_rm64 | Code::Mov_rm64_r64 => Copy::Move,
        Code::Xchg_rm64_r64 | Code::Xchg_r64_RAX => Copy::Exchange,
        _ => return None,
    };
    let registers = instruction.op0_kind() == OpKind::Register && instruction.op1_kind() == OpKind::Register;
    let pair = registers.then(|| Some((number(instruction.op0_register())?, number(instruction.op1_register())?)));
    pair.flatten().map(|(to, from)| (copy, to, from))
}

/// The number of the general-purpose register that contains this one.
fn number(register: iced_x86::Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number()).filter(|&number| number < usize::from(REGISTERS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expected: bool) {
        assert_eq!(Emulation::default().covers(bytes), expected, "{bytes:02x?}");
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
    fn long_nops_are_emulated_by_some_kernels() {
        let with_nops = Emulation { long_nops: true };
        let nop5: &[u8] = &[0x0f, 0x1f, 0x44, 0, 0];
        assert!(!Emulation::default().covers(nop5));
        assert!(with_nops.covers(nop5));
        assert!(with_nops.covers(&[0x66, 0x0f, 0x1f, 0x44, 0, 0]));
        // With a segment prefix, the kernel refuses the probe.
        assert!(!with_nops.covers(&[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]));
    }
}
