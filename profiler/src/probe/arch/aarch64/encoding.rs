//! Properties of instructions that only the placement of probes needs.

use profiler_common::arch::aarch64::SP;
use profiler_common::hook::Register;

use crate::arch::aarch64::{INSTRUCTION_BYTES, Word};

impl Word {
    /// Whether the instruction is `bti`, `bti c`, `bti j` or `bti jc`.
    pub(super) fn is_landing_pad(self) -> bool {
        self.is_hint() && matches!(self.hint(), 32 | 34 | 36 | 38)
    }

    /// A conditional branch with the opposite condition, over this distance. `None` for branches that no kernel emulates.
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

    /// Whether the instruction is `paciasp` or `pacibsp`.
    pub(super) fn signs_link(self) -> bool {
        self.is_hint() && matches!(self.hint(), 25 | 27)
    }

    /// The register of 64 bits that the instruction compares with 0, setting the flags: `cmp xN, #0`, `tst xN, xN`.
    pub(super) fn as_null_test(self) -> Option<Register> {
        let is_compare = self.is(0xffff_fc1f, 0xf100_001f);
        let is_test = self.is(0xffe0_fc1f, 0xea00_001f) && self.bits(5, 5) == self.bits(16, 5);
        (is_compare || is_test).then(|| self.register(5))
    }

    /// Whether the instruction is an exclusive load or store, between which a probe would end the exclusive access, or compares
    /// and swaps a pair.
    pub(super) fn is_exclusive(self) -> bool {
        self.is(0x3f80_0000, 0x0800_0000)
    }

    /// Whether the instruction copies or sets memory: three such instructions belong together.
    pub(super) fn is_memory_operation(self) -> bool {
        self.is(0x3b20_0c00, 0x1900_0400)
    }

    /// Whether the return address may be elsewhere than in the link register behind this instruction: it stores, copies or uses it.
    pub(super) fn reads_link(self) -> bool {
        let names = |from: u32| self.bits(from, 5) == 30;
        let (first, second, third, fourth) = (0, 5, 10, 16);
        match self.group() {
            // Signatures are of the return address, or of others that have its value.
            0b1010 | 0b1011 => !self.is_hint() && (names(first) || names(second)),
            0b1000 | 0b1001 => match self.bits(23, 3) {
                // adr, adrp, movz and movn read no register; extr reads two.
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
    /// Whether the instruction is valid: not of an unallocated group, nor `udf`, which has neither name nor use.
    pub(super) fn is_valid(self) -> bool {
        match self.group() {
            0b0000 => self.bit(31) || self.is(0xffff_0000, 0),
            0b0001 | 0b0011 => false,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests;
