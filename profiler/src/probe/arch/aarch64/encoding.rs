//! Encodings of A64 instructions (Arm Architecture Reference Manual, C4.1 "A64 instruction set encoding").
//!
//! What is not known in detail counts as writing all registers that its fields may name: then a register is not trusted,
//! although it may still have its value.

use profiler_common::arch::aarch64::{SP, X16, X17, X30};
use profiler_common::hook::Register;

pub(super) const INSTRUCTION_BYTES: u64 = 4;

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub u32);

/// Where execution continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    Next,
    /// `b`
    Jump(u64),
    /// `b.cond`, `cbz`, `cbnz`, `tbz`, `tbnz`, and newer ones that no kernel emulates (`bc.cond`, `cb`).
    Branch(u64),
    /// `bl`
    Call(u64),
    /// `br`, `blr`, or one that authenticates its address.
    JumpThrough(Register),
    CallThrough(Register),
    /// `ret`, `retaa`, `retab`, `retaasppc`, `retabsppc`
    Return,
    /// `svc`
    SystemCall,
    /// `brk`, `udf` and others that end the program or need privileges.
    Trap,
}

/// A copy of a whole register.
pub(super) struct Move {
    pub to: Register,
    pub from: Register,
}

/// A set of registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Registers(u32);

impl Registers {
    pub(super) const ALL: Self = Self(u32::MAX);

    pub(super) fn contains(self, register: Register) -> bool {
        self.0 >> register.number() & 1 != 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Register> {
        (0..32).map(Register::from_number).filter(move |&register| self.contains(register))
    }

    fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn only(register: Register) -> Self {
        Self(1 << register.number())
    }
}

impl Word {
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self(u32::from_le_bytes(*bytes.first_chunk()?)))
    }

    /// Whether these bits, and no others of the mask, are set.
    pub(super) fn is(self, mask: u32, bits: u32) -> bool {
        self.0 & mask == bits
    }

    fn bits(self, from: u32, count: u32) -> u32 {
        self.0 >> from & ((1 << count) - 1)
    }

    fn bit(self, number: u32) -> bool {
        self.bits(number, 1) != 0
    }

    /// A register whose number begins at this bit; 31 is the stack pointer or zero, as the instruction decides.
    #[expect(clippy::cast_possible_truncation, reason = "five bits")]
    pub(super) fn register(self, from: u32) -> Register {
        Register::from_number(self.bits(from, 5) as u8)
    }

    /// The same, where 31 is the zero register.
    fn or_zero(self, from: u32) -> Registers {
        if self.bits(from, 5) == 31 { Registers(0) } else { Registers(1 << self.bits(from, 5)) }
    }

    /// The same, where 31 is the stack pointer.
    fn or_sp(self, from: u32) -> Registers {
        Registers(1 << self.bits(from, 5))
    }

    /// The register at this bit and the following ones, `count` in all.
    fn row(self, from: u32, count: u32) -> Registers {
        let all = ((1_u64 << count) - 1) << self.bits(from, 5);
        #[expect(clippy::cast_possible_truncation, reason = "registers up to 30 are meant")]
        Registers(all as u32 & !(1 << 31))
    }

    /// `op0` of the manual's first table.
    fn group(self) -> u32 {
        self.bits(25, 4)
    }

    /// Unallocated groups, and `udf` with neither name nor use.
    pub(super) fn is_valid(self) -> bool {
        match self.group() {
            0b0000 => self.bit(31) || self.is(0xffff_0000, 0),
            0b0001 | 0b0011 => false,
            _ => true,
        }
    }

    pub(super) fn is_branch_or_system(self) -> bool {
        matches!(self.group(), 0b1010 | 0b1011)
    }

    pub(super) fn is_hint(self) -> bool {
        self.is(0xffff_f01f, 0xd503_201f)
    }

    /// Of a hint: `CRm` and `op2`.
    pub(super) fn hint(self) -> u32 {
        self.bits(5, 7)
    }

    /// `bti`, `bti c`, `bti j`, `bti jc`
    pub(super) fn is_landing_pad(self) -> bool {
        self.is_hint() && matches!(self.hint(), 32 | 34 | 36 | 38)
    }

    pub(super) fn control(self, address: u64) -> Control {
        let relative = |from: u32, count: u32| {
            let distance = i64::from(self.0 << (32 - from - count)) << 32 >> (64 - count);
            address.wrapping_add_signed(4 * distance)
        };
        match self.0 {
            _ if self.group() == 0 && !self.bit(31) => Control::Trap,
            _ if !self.is_branch_or_system() => Control::Next,
            _ if self.is(0xfc00_0000, 0x1400_0000) => Control::Jump(relative(0, 26)),
            _ if self.is(0xfc00_0000, 0x9400_0000) => Control::Call(relative(0, 26)),
            _ if self.is(0xff00_0000, 0x5400_0000) || self.is(0x7e00_0000, 0x3400_0000) => {
                Control::Branch(relative(5, 19))
            }
            // retaasppc and retabsppc return; the label is that of the signing instruction.
            _ if self.is(0xff00_0000, 0x5500_0000) => Control::Return,
            _ if self.is(0x7e00_0000, 0x3600_0000) => Control::Branch(relative(5, 14)),
            _ if self.is(0x7e00_0000, 0x7400_0000) => Control::Branch(relative(5, 9)),
            _ if self.is(0xfee0_0000, 0xd620_0000) => Control::CallThrough(self.register(5)),
            _ if self.is(0xfee0_0000, 0xd600_0000) => Control::JumpThrough(self.register(5)),
            _ if self.is(0xffe0_0000, 0xd640_0000) => Control::Return,
            // eret, drps and unallocated ones.
            _ if self.is(0xfe00_0000, 0xd600_0000) => Control::Trap,
            _ if self.is(0xffe0_001f, 0xd400_0001) => Control::SystemCall,
            _ if self.is(0xff00_0000, 0xd400_0000) => Control::Trap,
            _ => Control::Next,
        }
    }

    /// `mov` between registers, of 64 bits: `orr` with zero, or `add` of 0.
    pub(super) fn as_move(self) -> Option<Move> {
        if self.is(0xffe0_ffe0, 0xaa00_03e0) {
            let [to, from] = [self.register(0), self.register(16)];
            return (to != SP && from != SP).then_some(Move { to, from });
        }
        self.is(0xffff_fc00, 0x9100_0000).then(|| Move { to: self.register(0), from: self.register(5) })
    }

    /// `adrp` and `adr`: the address that they compute.
    pub(super) fn address(self, at: u64) -> Option<u64> {
        if !self.is(0x1f00_0000, 0x1000_0000) {
            return None;
        }
        let distance = i64::from(self.bits(5, 19) << 2 | self.bits(29, 2)) << 43 >> 43;
        Some(if self.bit(31) {
            (at & !0xfff).wrapping_add_signed(distance << 12)
        } else {
            at.wrapping_add_signed(distance)
        })
    }

    /// The address that a literal is loaded from.
    pub(super) fn literal(self, at: u64) -> Option<u64> {
        let distance = i64::from(self.bits(5, 19) << 13) << 32 >> 45;
        self.is_literal_load().then(|| at.wrapping_add_signed(4 * distance))
    }

    /// `add` of 64 bits and a constant: target, source and constant.
    pub(super) fn as_addition(self) -> Option<(Register, Register, u64)> {
        let shift = if self.bit(22) { 12 } else { 0 };
        self.is(0xff80_0000, 0x9100_0000)
            .then(|| (self.register(0), self.register(5), u64::from(self.bits(10, 12)) << shift))
    }

    /// Loads of words of 64 bits at a constant distance from a register: targets, and that register and distance for the first.
    /// Without those that change the base register.
    pub(super) fn as_load(self) -> Option<([Option<Register>; 2], Register, u64)> {
        let (base, first) = (self.register(5), self.register(0));
        // ldr, ldur, ldp
        if self.is(0xffc0_0000, 0xf940_0000) {
            return Some(([Some(first), None], base, u64::from(self.bits(10, 12)) * 8));
        }
        if self.is(0xffe0_0c00, 0xf840_0000) {
            let distance = i64::from(self.bits(12, 9)) << 55 >> 55;
            return Some(([Some(first), None], base, distance.cast_unsigned()));
        }
        let distance = i64::from(self.bits(15, 7)) << 57 >> 57;
        self.is(0xffc0_0000, 0xa940_0000)
            .then(|| ([Some(first), Some(self.register(10))], base, (distance * 8).cast_unsigned()))
    }

    /// A conditional branch with the opposite condition, over this distance. `None` for those that no kernel emulates.
    pub(super) fn inverted_branch(self, distance_bytes: u64) -> Option<Self> {
        let distance = u32::try_from(distance_bytes / INSTRUCTION_BYTES).ok()?;
        if self.is(0xff00_0010, 0x5400_0000) {
            // The last two conditions are always true.
            return (self.bits(1, 3) != 0b111).then_some(Self((self.0 ^ 1) & !(0x7_ffff << 5) | distance << 5));
        }
        if self.is(0x7e00_0000, 0x3400_0000) {
            return Some(Self((self.0 ^ 1 << 24) & !(0x7_ffff << 5) | distance << 5));
        }
        self.is(0x7e00_0000, 0x3600_0000).then_some(Self((self.0 ^ 1 << 24) & !(0x3fff << 5) | distance << 5))
    }

    /// Bytes by which an instruction of a function's prologue lowers the stack pointer.
    pub(super) fn stack_growth(self) -> Option<i32> {
        // sub sp, sp, #N
        if self.is(0xff80_03ff, 0xd100_03ff) {
            let bytes = self.bits(10, 12) << if self.bit(22) { 12 } else { 0 };
            return i32::try_from(bytes).ok();
        }
        if self.register(5) != SP {
            return None;
        }
        // stp of general or vector registers, whose size determines the scale; str of one register of 64 bits
        let scale = match self.0 & 0xffc0_0000 {
            0x2980_0000 | 0x2d80_0000 => 4,
            0xa980_0000 | 0x6d80_0000 => 8,
            0xad80_0000 => 16,
            _ if self.is(0xffe0_0c00, 0xf800_0c00) || self.is(0xffe0_0c00, 0xfc00_0c00) => {
                return Some(-(self.bits(12, 9).cast_signed() << 23 >> 23));
            }
            _ => return None,
        };
        Some(-(self.bits(15, 7).cast_signed() << 25 >> 25) * scale)
    }

    /// `paciasp`, `pacibsp`
    pub(super) fn signs_link(self) -> bool {
        self.is_hint() && matches!(self.hint(), 25 | 27)
    }

    /// Comparison of a register of 64 bits with 0 that sets the flags: `cmp xN, #0`, `tst xN, xN`.
    pub(super) fn as_null_test(self) -> Option<Register> {
        let is_compare = self.is(0xffff_fc1f, 0xf100_001f);
        let is_test = self.is(0xffe0_fc1f, 0xea00_001f) && self.bits(5, 5) == self.bits(16, 5);
        (is_compare || is_test).then(|| self.register(5))
    }

    /// Loads with a literal: their address is relative to the instruction. Those of vector registers too.
    pub(super) fn is_literal_load(self) -> bool {
        self.is(0x3b00_0000, 0x1800_0000)
    }

    /// Loads and stores between which a probe would end the exclusive access, and pairs that are compared and swapped.
    pub(super) fn is_exclusive(self) -> bool {
        self.is(0x3f80_0000, 0x0800_0000)
    }

    /// Memory copies and sets: three instructions that belong together.
    pub(super) fn is_memory_operation(self) -> bool {
        self.is(0x3b20_0c00, 0x1900_0400)
    }

    /// General registers that the instruction may change, without those that a called function or the kernel changes.
    pub(super) fn writes(self) -> Registers {
        match self.group() {
            0b1000 | 0b1001 => self.written_by_constants(),
            0b1010 | 0b1011 => self.written_by_branches(),
            0b0100 | 0b0110 | 0b1100 | 0b1110 => self.written_by_memory(),
            0b0101 | 0b1101 => self.written_by_registers(),
            // Vector instructions that write a general register have its number there.
            0b0111 | 0b1111 => self.or_zero(0),
            0b0010 => self.or_sp(0),
            _ if self.bit(31) => Registers::ALL,
            _ => Registers(0),
        }
    }

    /// Data processing with an immediate.
    fn written_by_constants(self) -> Registers {
        match self.bits(23, 3) {
            // add and sub; those that set flags cannot write sp.
            0b010 | 0b011 if self.bit(29) && !self.bit(23) => self.or_zero(0),
            0b010 | 0b011 => self.or_sp(0),
            // and, orr, eor; ands
            0b100 if self.bits(29, 2) != 0b11 => self.or_sp(0),
            // autiasppc
            0b111 if self.bits(29, 2) == 0b11 => self.or_zero(0).with(Registers::only(X30)),
            _ => self.or_zero(0),
        }
    }

    fn written_by_branches(self) -> Registers {
        if self.is_hint() {
            return match self.hint() {
                // nop, yield and the like; csdb and the like; bti
                0..=6 | 16..=23 | 32..=38 => Registers(0),
                // pacia1716 and others
                8 | 10 | 12 | 14 => Registers::only(X17),
                // xpaclri, paciasp, autiasp and others
                7 | 24..=31 => Registers::only(X30),
                _ => Registers::only(X16).with(Registers::only(X17)).with(Registers::only(X30)),
            };
        }
        // bl, blr
        if self.is(0xfc00_0000, 0x9400_0000) || self.is(0xfee0_0000, 0xd620_0000) {
            return Registers::only(X30);
        }
        // mrs, sysl, mrrs
        if self.is(0xff20_0000, 0xd520_0000) {
            return if self.bit(22) { self.row(0, 2) } else { self.or_zero(0) };
        }
        Registers(0)
    }

    fn written_by_memory(self) -> Registers {
        let (is_vector, base, targets) = (self.bit(26), self.or_sp(5), self.or_zero(0));
        match self.bits(27, 3) {
            // Vector structures; with a base that changes, bit 23.
            0b001 if is_vector => {
                if self.bit(23) {
                    base
                } else {
                    Registers(0)
                }
            }
            // Exclusive and ordered ones, compare and swap: a status, one or two targets, and the compared ones.
            0b001 => self.row(0, 2).with(self.row(16, 2)).with(self.or_zero(10)),
            0b011 if self.is_literal_load() => {
                if is_vector || self.bits(30, 2) == 3 {
                    Registers(0)
                } else {
                    targets
                }
            }
            // Memory tags, memory operations, and newer ones.
            0b011 => targets.with(base).with(self.or_zero(10)).with(self.or_zero(16)),
            // Pairs; with a base that changes, bit 23.
            0b101 => {
                let loaded = if self.bit(22) && !is_vector { targets.with(self.or_zero(10)) } else { Registers(0) };
                if self.bit(23) { loaded.with(base) } else { loaded }
            }
            _ => self.written_by_single_access(),
        }
    }

    /// Accesses of one register.
    fn written_by_single_access(self) -> Registers {
        let (is_vector, base, targets) = (self.bit(26), self.or_sp(5), self.or_zero(0));
        let is_prefetch = self.bits(30, 2) == 0b11 && self.bits(22, 2) == 0b10;
        let loaded = if is_vector || self.bits(22, 2) == 0 || is_prefetch { Registers(0) } else { targets };
        if self.bit(24) {
            return loaded;
        }
        match (self.bit(21), self.bits(10, 2)) {
            // Before or behind the access, the base changes.
            (false, 0b01 | 0b11) => loaded.with(base),
            (false, _) | (true, 0b10) => loaded,
            // Atomic ones, some of 64 bytes with a status.
            (true, 0b00) if is_vector => Registers(0),
            (true, 0b00) if self.bits(30, 2) == 0b11 && self.bit(15) => self.row(0, 8).with(self.or_zero(16)),
            (true, 0b00) => targets,
            // Authenticating ones.
            _ => targets.with(base),
        }
    }

    /// Data processing of registers.
    fn written_by_registers(self) -> Registers {
        match self.bits(21, 8) {
            // Extended addends: those that set flags cannot write sp.
            0b0101_1001 if !self.bit(29) => self.or_sp(0),
            // ccmp, ccmn
            0b1101_0010 => Registers(0),
            // Two sources: irg writes sp.
            0b1101_0110 if !self.bit(30) => self.or_sp(0),
            _ => self.or_zero(0),
        }
    }

    /// Whether the return address may be elsewhere than in the link register behind this instruction: it stores, copies or uses it.
    pub(super) fn reads_link(self) -> bool {
        let names = |from: u32| self.bits(from, 5) == 30;
        let (first, second, third, fourth) = (0, 5, 10, 16);
        match self.group() {
            // Signatures are of it, or of others that have its value.
            0b1010 | 0b1011 => !self.is_hint() && (names(first) || names(second)),
            0b1000 | 0b1001 => match self.bits(23, 3) {
                // adr and adrp, movz and movn read none; extr two.
                0b000 | 0b001 | 0b101 => false,
                0b111 => names(second) || names(fourth),
                _ => names(second),
            },
            0b0100 | 0b0110 | 0b1100 | 0b1110 => {
                let is_single = self.bits(27, 3) == 0b111 && (self.bit(24) || !self.bit(21));
                let is_pair = self.bits(27, 3) == 0b101;
                let stored = match () {
                    () if self.bit(26) => false,
                    () if self.is_literal_load() => false,
                    () if is_single => self.bits(22, 2) == 0 && names(first),
                    () if is_pair => !self.bit(22) && (names(first) || names(third)),
                    () => names(first) || names(third),
                };
                let is_address = !self.is_literal_load() && (names(second) || !is_single && !is_pair && names(fourth));
                stored || is_address
            }
            0b0101 | 0b1101 => {
                let is_third_read = self.bits(24, 5) == 0b11011;
                names(second) || names(fourth) || is_third_read && names(third)
            }
            _ => names(second) || names(fourth),
        }
    }
}

#[cfg(test)]
mod tests;
