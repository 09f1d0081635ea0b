//! Encodings of A64 instructions (Arm Architecture Reference Manual, C4.1 "A64 instruction set encoding").
//!
//! Instructions that are not known in detail count as writing all registers that their fields may name: then a register is not
//! trusted, although it may still have its value.

use profiler_common::arch::aarch64::{SP, X16, X17, X30};
use profiler_common::hook::Register;

pub(crate) const INSTRUCTION_BYTES: u64 = 4;

/// One instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(pub u32);

/// The next place of execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Next,
    /// The instruction is `b`.
    Jump(u64),
    /// The instruction is `b.cond`, `cbz`, `cbnz`, `tbz`, `tbnz`, or a newer one that no kernel emulates (`bc.cond`, `cb`).
    Branch(u64),
    /// The instruction is `bl`.
    Call(u64),
    /// The instruction is `br`, or one that authenticates its address.
    JumpThrough(Register),
    CallThrough(Register),
    /// The instruction is `ret`, `retaa`, `retab`, `retaasppc` or `retabsppc`.
    Return,
    /// The instruction is `svc`.
    SystemCall,
    /// The instruction is `brk`, `udf` or another that ends the program or needs privileges.
    Trap,
}

/// A copy of a whole register.
pub(crate) struct Move {
    pub to: Register,
    pub from: Register,
}

/// A load or store of one or two words of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    registers: [Option<Register>; 2],
    pub base: Register,
    /// Number of bytes from the base to the first word.
    pub distance: i64,
}

impl Access {
    /// Registers, and the distances of their words from the base.
    pub(crate) fn words(self) -> impl Iterator<Item = (Register, i64)> {
        self.registers.into_iter().flatten().zip([self.distance, self.distance + 8])
    }
}

/// A set of registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Registers(u32);

impl Registers {
    pub(crate) const ALL: Self = Self(u32::MAX);

    pub(crate) fn contains(self, register: Register) -> bool {
        self.0 >> register.number() & 1 != 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Register> {
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
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        Some(Self(u32::from_le_bytes(*bytes.first_chunk()?)))
    }

    /// All instructions of this code, with their addresses.
    pub(crate) fn all(code: &[u8], start: u64) -> impl Iterator<Item = (u64, Self)> {
        let words = code.as_chunks().0.iter().map(|bytes| Self(u32::from_le_bytes(*bytes)));
        (0..).map(move |index: u64| start.wrapping_add(index * INSTRUCTION_BYTES)).zip(words)
    }

    /// Whether these bits, and no others of the mask, are set.
    pub(crate) fn is(self, mask: u32, bits: u32) -> bool {
        self.0 & mask == bits
    }

    pub(crate) fn bits(self, from: u32, count: u32) -> u32 {
        self.0 >> from & ((1 << count) - 1)
    }

    pub(crate) fn bit(self, number: u32) -> bool {
        self.bits(number, 1) != 0
    }

    /// Register whose number begins at this bit; 31 is the stack pointer or zero, as the instruction decides.
    #[expect(clippy::cast_possible_truncation, reason = "five bits")]
    pub(crate) fn register(self, from: u32) -> Register {
        Register::from_number(self.bits(from, 5) as u8)
    }

    /// Register whose number begins at this bit, where 31 is the zero register.
    fn or_zero(self, from: u32) -> Registers {
        if self.bits(from, 5) == 31 { Registers(0) } else { Registers(1 << self.bits(from, 5)) }
    }

    /// Register whose number begins at this bit, where 31 is the stack pointer.
    fn or_sp(self, from: u32) -> Registers {
        Registers(1 << self.bits(from, 5))
    }

    /// The register whose number begins at this bit and the following registers, `count` in all.
    fn row(self, from: u32, count: u32) -> Registers {
        let all = ((1_u64 << count) - 1) << self.bits(from, 5);
        #[expect(clippy::cast_possible_truncation, reason = "registers up to 30 are meant")]
        Registers(all as u32 & !(1 << 31))
    }

    /// The field `op0` of the manual's first table.
    pub(crate) fn group(self) -> u32 {
        self.bits(25, 4)
    }

    pub(crate) fn is_branch_or_system(self) -> bool {
        matches!(self.group(), 0b1010 | 0b1011)
    }

    pub(crate) fn is_hint(self) -> bool {
        self.is(0xffff_f01f, 0xd503_201f)
    }

    /// The fields `CRm` and `op2` of a hint.
    pub(crate) fn hint(self) -> u32 {
        self.bits(5, 7)
    }

    pub(crate) fn control(self, address: u64) -> Control {
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
            // The instructions are retaasppc and retabsppc, which return; the label is that of the signing instruction.
            _ if self.is(0xff00_0000, 0x5500_0000) => Control::Return,
            _ if self.is(0x7e00_0000, 0x3600_0000) => Control::Branch(relative(5, 14)),
            _ if self.is(0x7e00_0000, 0x7400_0000) => Control::Branch(relative(5, 9)),
            _ if self.is(0xfee0_0000, 0xd620_0000) => Control::CallThrough(self.register(5)),
            _ if self.is(0xfee0_0000, 0xd600_0000) => Control::JumpThrough(self.register(5)),
            _ if self.is(0xffe0_0000, 0xd640_0000) => Control::Return,
            // The instructions are eret, drps and unallocated ones.
            _ if self.is(0xfe00_0000, 0xd600_0000) => Control::Trap,
            _ if self.is(0xffe0_001f, 0xd400_0001) => Control::SystemCall,
            _ if self.is(0xff00_0000, 0xd400_0000) => Control::Trap,
            _ => Control::Next,
        }
    }

    /// Registers of a `mov` between registers of 64 bits: `orr` with zero, or `add` of 0.
    pub(crate) fn as_move(self) -> Option<Move> {
        if self.is(0xffe0_ffe0, 0xaa00_03e0) {
            let [to, from] = [self.register(0), self.register(16)];
            return (to != SP && from != SP).then_some(Move { to, from });
        }
        self.is(0xffff_fc00, 0x9100_0000).then(|| Move { to: self.register(0), from: self.register(5) })
    }

    /// Address that an `adrp` or `adr` computes.
    pub(crate) fn address(self, at: u64) -> Option<u64> {
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

    /// Address from which a literal is loaded.
    pub(crate) fn literal(self, at: u64) -> Option<u64> {
        let distance = i64::from(self.bits(5, 19) << 13) << 32 >> 45;
        self.is_literal_load().then(|| at.wrapping_add_signed(4 * distance))
    }

    /// Target and constant of a `movz` or `movn` of 64 bits.
    pub(crate) fn as_constant(self) -> Option<(Register, u64)> {
        let value = || u64::from(self.bits(5, 16)) << (16 * self.bits(21, 2));
        if self.is(0xff80_0000, 0xd280_0000) {
            return Some((self.register(0), value()));
        }
        self.is(0xff80_0000, 0x9280_0000).then(|| (self.register(0), !value()))
    }

    /// Register of a `movk` of 64 bits, the bits that it keeps, and the bits that it sets.
    pub(crate) fn as_insertion(self) -> Option<(Register, u64, u64)> {
        let shift = 16 * self.bits(21, 2);
        self.is(0xff80_0000, 0xf280_0000)
            .then(|| (self.register(0), !(0xffff << shift), u64::from(self.bits(5, 16)) << shift))
    }

    /// Target of an `mrs` of the thread pointer.
    pub(crate) fn as_thread_pointer(self) -> Option<Register> {
        self.is(0xffff_ffe0, 0xd53b_d040).then(|| self.register(0))
    }

    /// Target, source and addend, modulo 2⁶⁴, of an `add` or `sub` of 64 bits and a constant.
    pub(crate) fn as_addition(self) -> Option<(Register, Register, u64)> {
        if !self.is(0xbf80_0000, 0x9100_0000) {
            return None;
        }
        let value = u64::from(self.bits(10, 12)) << if self.bit(22) { 12 } else { 0 };
        Some((self.register(0), self.register(5), if self.bit(30) { value.wrapping_neg() } else { value }))
    }

    /// Target and sources of an `add` of two registers of 64 bits, without a shift.
    pub(crate) fn as_sum(self) -> Option<(Register, [Register; 2])> {
        self.is(0xffe0_fc00, 0x8b00_0000).then(|| (self.register(0), [5, 16].map(|from| self.register(from))))
    }

    /// Load of words of 64 bits at a constant distance from a register. Loads that change the base register are left out.
    pub(crate) fn as_load(self) -> Option<Access> {
        // ldr, ldur, ldp
        match () {
            () if self.is(0xffc0_0000, 0xf940_0000) => Some(self.access(self.unsigned_distance())),
            () if self.is(0xffe0_0c00, 0xf840_0000) => Some(self.access(self.unscaled_distance())),
            () if self.is(0xffc0_0000, 0xa940_0000) => Some(self.access_of_pair()),
            () => None,
        }
    }

    /// Registers of a load of a word of 64 bits at the sum of two registers.
    pub(crate) fn as_load_at_sum(self) -> Option<[Register; 2]> {
        self.is(0xffe0_fc00, 0xf860_6800).then(|| [5, 16].map(|from| self.register(from)))
    }

    /// Store of words of 64 bits at a constant distance from a register, and whether it adds that distance to the register.
    pub(crate) fn as_store(self) -> Option<(Access, bool)> {
        // str, and stp
        match () {
            () if self.is(0xffc0_0000, 0xf900_0000) => Some((self.access(self.unsigned_distance()), false)),
            () if self.is(0xffe0_0c00, 0xf800_0c00) => Some((self.access(self.unscaled_distance()), true)),
            () if self.is(0xffc0_0000, 0xa900_0000) => Some((self.access_of_pair(), false)),
            () if self.is(0xffc0_0000, 0xa980_0000) => Some((self.access_of_pair(), true)),
            () => None,
        }
    }

    fn unsigned_distance(self) -> i64 {
        i64::from(self.bits(10, 12)) * 8
    }

    fn unscaled_distance(self) -> i64 {
        i64::from(self.bits(12, 9)) << 55 >> 55
    }

    fn access(self, distance: i64) -> Access {
        Access { registers: [Some(self.register(0)), None], base: self.register(5), distance }
    }

    fn access_of_pair(self) -> Access {
        let distance = (i64::from(self.bits(15, 7)) << 57 >> 57) * 8;
        Access { registers: [Some(self.register(0)), Some(self.register(10))], base: self.register(5), distance }
    }

    /// Whether the instruction loads a literal, also into a vector register: the address is relative to the instruction.
    pub(crate) fn is_literal_load(self) -> bool {
        self.is(0x3b00_0000, 0x1800_0000)
    }

    /// General registers that the instruction may change, without registers that a called function or the kernel changes.
    pub(crate) fn writes(self) -> Registers {
        match self.group() {
            0b1000 | 0b1001 => self.written_by_constants(),
            0b1010 | 0b1011 => self.written_by_branches(),
            0b0100 | 0b0110 | 0b1100 | 0b1110 => self.written_by_memory(),
            0b0101 | 0b1101 => self.written_by_registers(),
            // Vector instructions that write a general register have its number in these bits.
            0b0111 | 0b1111 => self.or_zero(0),
            0b0010 => self.or_sp(0),
            _ if self.bit(31) => Registers::ALL,
            _ => Registers(0),
        }
    }

    /// Registers that data processing with an immediate writes.
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
            // These are vector structures; bit 23 is set for a base that changes.
            0b001 if is_vector => {
                if self.bit(23) {
                    base
                } else {
                    Registers(0)
                }
            }
            // These are exclusive and ordered accesses, and compare and swap: a status, one or two targets, and the compared
            // registers.
            0b001 => self.row(0, 2).with(self.row(16, 2)).with(self.or_zero(10)),
            0b011 if self.is_literal_load() => {
                if is_vector || self.bits(30, 2) == 3 {
                    Registers(0)
                } else {
                    targets
                }
            }
            // These are memory tags, memory operations, and newer instructions.
            0b011 => targets.with(base).with(self.or_zero(10)).with(self.or_zero(16)),
            // These are pairs; bit 23 is set for a base that changes.
            0b101 => {
                let loaded = if self.bit(22) && !is_vector { targets.with(self.or_zero(10)) } else { Registers(0) };
                if self.bit(23) { loaded.with(base) } else { loaded }
            }
            _ => self.written_by_single_access(),
        }
    }

    /// Registers that an access of one register writes.
    fn written_by_single_access(self) -> Registers {
        let (is_vector, base, targets) = (self.bit(26), self.or_sp(5), self.or_zero(0));
        let is_prefetch = self.bits(30, 2) == 0b11 && self.bits(22, 2) == 0b10;
        let loaded = if is_vector || self.bits(22, 2) == 0 || is_prefetch { Registers(0) } else { targets };
        if self.bit(24) {
            return loaded;
        }
        match (self.bit(21), self.bits(10, 2)) {
            // The base changes before or behind the access.
            (false, 0b01 | 0b11) => loaded.with(base),
            (false, _) | (true, 0b10) => loaded,
            // These are atomic accesses, some of 64 bytes with a status.
            (true, 0b00) if is_vector => Registers(0),
            (true, 0b00) if self.bits(30, 2) == 0b11 && self.bit(15) => self.row(0, 8).with(self.or_zero(16)),
            (true, 0b00) => targets,
            // These are authenticating loads.
            _ => targets.with(base),
        }
    }

    /// Registers that data processing of registers writes.
    fn written_by_registers(self) -> Registers {
        match self.bits(21, 8) {
            // Addends are extended; instructions that set flags cannot write sp.
            0b0101_1001 if !self.bit(29) => self.or_sp(0),
            // ccmp, ccmn
            0b1101_0010 => Registers(0),
            // These have two sources: irg writes sp.
            0b1101_0110 if !self.bit(30) => self.or_sp(0),
            _ => self.or_zero(0),
        }
    }
}

#[cfg(test)]
mod tests;
