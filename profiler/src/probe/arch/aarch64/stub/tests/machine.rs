//! Executes the instructions that stubs consist of.

use std::collections::BTreeMap;

/// Registers and memory; memory contains the instructions, too.
#[derive(Clone, Debug, Default)]
pub(super) struct Machine {
    /// Registers; number 31 is the stack pointer.
    pub(super) x: [u64; 32],
    pub(super) pc: u64,
    pub(super) thread_pointer: u64,
    /// Memory, in words of 4 bytes by address.
    words: BTreeMap<u64, u32>,
    /// Result of the last comparison: negative, zero, carry, overflow.
    flags: [bool; 4],
    /// Address of the last exclusive load.
    exclusive: Option<u64>,
}

const SP: u32 = 31;

impl Machine {
    pub(super) fn at(pc: u64) -> Self {
        Self { pc, ..Self::default() }
    }

    pub(super) fn write(&mut self, address: u64, bytes: &[u8]) {
        assert!(address.is_multiple_of(4));
        for (at, word) in (address..).step_by(4).zip(bytes.as_chunks::<4>().0) {
            self.words.insert(at, u32::from_le_bytes(*word));
        }
    }

    pub(super) fn word(&self, address: u64) -> u32 {
        self.words.get(&address).copied().unwrap_or(0)
    }

    pub(super) fn long(&self, address: u64) -> u64 {
        u64::from(self.word(address)) | u64::from(self.word(address + 4)) << 32
    }

    /// Executes instructions up to one of these addresses, and returns the address.
    pub(super) fn run_to(&mut self, addresses: &[u64]) -> u64 {
        for _ in 0..1000 {
            if addresses.contains(&self.pc) {
                return self.pc;
            }
            self.step();
        }
        panic!("no end at {:#x}", self.pc)
    }

    fn get(&self, register: u32) -> u64 {
        if register == 31 { 0 } else { self.x[register as usize] }
    }

    fn set(&mut self, register: u32, value: u64) {
        if register != 31 {
            self.x[register as usize] = value;
        }
    }

    fn load(&self, address: u64, is_long: bool) -> u64 {
        if is_long { self.long(address) } else { self.word(address).into() }
    }

    fn store(&mut self, address: u64, value: u64, is_long: bool) {
        let bytes = value.to_le_bytes();
        self.write(address, if is_long { &bytes } else { &bytes[..4] });
    }

    fn compare(&mut self, left: u64, right: u64) -> u64 {
        let result = left.wrapping_sub(right);
        let overflows = (left ^ right) & (left ^ result);
        self.flags = [result >> 63 == 1, result == 0, left >= right, overflows >> 63 == 1];
        result
    }

    fn holds(&self, condition: u32) -> bool {
        let [_, zero, carry, _] = self.flags;
        match condition {
            0 => zero,
            1 => !zero,
            2 => carry,
            3 => !carry,
            other => panic!("condition {other}"),
        }
    }

    /// Executes one instruction. Encodings: Arm Architecture Reference Manual, C6.2.
    fn step(&mut self) {
        let word = Word(self.word(self.pc));
        self.pc = self.pc.wrapping_add(4);
        let is_known = self.branch(word) || self.constant(word) || self.register(word) || self.memory(word);
        assert!(is_known, "{:#010x} at {:#x}", word.0, self.pc - 4);
    }

    /// Executes branches and accesses of system registers.
    fn branch(&mut self, word: Word) -> bool {
        let [d, n, ..] = word.registers();
        match word.0 {
            // hint
            _ if word.is(0xffff_f01f, 0xd503_201f) => {}
            _ if word.is(0xffff_ffe0, 0xd53b_d040) => self.set(d, self.thread_pointer),
            _ if word.is(0x7c00_0000, 0x1400_0000) => {
                if word.is_long() {
                    self.x[30] = self.pc;
                }
                self.pc = word.relative(self.pc.wrapping_sub(4), 0, 26);
            }
            _ if word.is(0xff00_0010, 0x5400_0000) => {
                if self.holds(word.bits(0, 4)) {
                    self.pc = word.relative(self.pc.wrapping_sub(4), 5, 19);
                }
            }
            _ if word.is(0x7e00_0000, 0x3400_0000) => {
                if (word.narrow(self.get(d)) == 0) != (word.bits(24, 1) == 1) {
                    self.pc = word.relative(self.pc.wrapping_sub(4), 5, 19);
                }
            }
            _ if word.is(0x7e00_0000, 0x3600_0000) => {
                let number = word.bits(19, 5) | word.bits(31, 1) << 5;
                if self.get(d) >> number & 1 == u64::from(word.bits(24, 1)) {
                    self.pc = word.relative(self.pc.wrapping_sub(4), 5, 14);
                }
            }
            // br, blr
            _ if word.is(0xffdf_fc1f, 0xd61f_0000) => {
                let target = self.get(n);
                if word.bits(21, 1) == 1 {
                    self.x[30] = self.pc;
                }
                self.pc = target;
            }
            // ret
            _ if word.is(0xffff_fc1f, 0xd65f_0000) => self.pc = self.get(n),
            _ => return false,
        }
        true
    }

    /// Executes calculations with a constant.
    fn constant(&mut self, word: Word) -> bool {
        let [d, n, _, m] = word.registers();
        let base = self.x[n as usize];
        match word.0 {
            // movn, movz, movk
            _ if word.is(0x1f80_0000, 0x1280_0000) => {
                let (shift, part) = (word.bits(21, 2) * 16, u64::from(word.bits(5, 16)) << (word.bits(21, 2) * 16));
                let value = match word.bits(29, 2) {
                    0 => !part,
                    2 => part,
                    _ => self.get(d) & !(0xffff << shift) | part,
                };
                self.set(d, word.narrow(value));
            }
            // adr, adrp
            _ if word.is(0x1f00_0000, 0x1000_0000) => {
                let distance = word.signed(5, 19) << 2 | u64::from(word.bits(29, 2));
                let at = self.pc.wrapping_sub(4);
                let address =
                    if word.is_long() { (at & !0xfff).wrapping_add(distance << 12) } else { at.wrapping_add(distance) };
                self.set(d, address);
            }
            // add, sub, subs of a constant
            _ if word.is(0x1f80_0000, 0x1100_0000) => {
                let constant = u64::from(word.bits(10, 12)) << (word.bits(22, 1) * 12);
                match word.bits(29, 2) {
                    0 => self.x[d as usize] = word.narrow(base.wrapping_add(constant)),
                    2 => self.x[d as usize] = word.narrow(base.wrapping_sub(constant)),
                    3 => {
                        let result = self.compare(base, constant);
                        self.set(d, result);
                    }
                    _ => panic!("{:#010x}", word.0),
                }
            }
            // and, orr of a constant: all are rows of ones.
            _ if word.is(0x1f80_0000, 0x1200_0000) => {
                let ones = u64::MAX >> (63 - word.bits(10, 6));
                let mask = ones.rotate_right(word.bits(16, 6));
                let value = if word.bits(29, 2) == 0 { self.get(n) & mask } else { self.get(n) | mask };
                self.set(d, word.narrow(value));
            }
            // ubfm: lsl, lsr, ubfx
            _ if word.is(0x7f80_0000, 0x5300_0000) => {
                let (r, s) = (word.bits(16, 6), word.bits(10, 6));
                let width = if word.is_long() { 64 } else { 32 };
                let value = word.narrow(self.get(n));
                let result = if s >= r {
                    value >> r & (u64::MAX >> (63 - (s - r)))
                } else {
                    (value & (u64::MAX >> (63 - s))) << (width - r)
                };
                self.set(d, word.narrow(result));
            }
            // extr
            _ if word.is(0xffe0_0000, 0x93c0_0000) => {
                let whole = u128::from(self.get(n)) << 64 | u128::from(self.get(m));
                self.set(d, u64::try_from(whole >> word.bits(10, 6) & u128::from(u64::MAX)).expect("the lower half"));
            }
            _ => return false,
        }
        true
    }

    /// Executes calculations with registers.
    fn register(&mut self, word: Word) -> bool {
        let [d, n, _, m] = word.registers();
        match word.0 {
            // add, sub, subs of registers
            _ if word.is(0x1f20_0000, 0x0b00_0000) => {
                let other = match word.bits(22, 2) {
                    0 => self.get(m) << word.bits(10, 6),
                    _ => self.get(m) >> word.bits(10, 6),
                };
                let result = match word.bits(29, 2) {
                    0 => self.get(n).wrapping_add(other),
                    2 => self.get(n).wrapping_sub(other),
                    3 => self.compare(self.get(n), other),
                    _ => panic!("{:#010x}", word.0),
                };
                self.set(d, word.narrow(result));
            }
            // and, bic, orr, eor of registers
            _ if word.is(0x1f00_0000, 0x0a00_0000) => {
                let other = match word.bits(22, 2) {
                    0 => self.get(m) << word.bits(10, 6),
                    _ => self.get(m) >> word.bits(10, 6),
                };
                let other = if word.bits(21, 1) == 1 { !other } else { other };
                let value = match word.bits(29, 2) {
                    0 => self.get(n) & other,
                    1 => self.get(n) | other,
                    2 => self.get(n) ^ other,
                    _ => panic!("{:#010x}", word.0),
                };
                self.set(d, word.narrow(value));
            }
            _ if word.is(0xffe0_fc00, 0x9ac0_2000) => self.set(d, self.get(n) << (self.get(m) & 63)),
            // mul
            _ if word.is(0x7fe0_fc00, 0x1b00_7c00) => self.set(d, word.narrow(self.get(n).wrapping_mul(self.get(m)))),
            _ if word.is(0xffe0_fc00, 0x9bc0_7c00) => {
                let product = u128::from(self.get(n)) * u128::from(self.get(m));
                self.set(d, u64::try_from(product >> 64).expect("the upper half"));
            }
            _ if word.is(0xffff_fc00, 0xdac0_1000) => self.set(d, self.get(n).leading_zeros().into()),
            // csinc
            _ if word.is(0xffe0_0c00, 0x9a80_0400) => {
                let value = if self.holds(word.bits(12, 4)) { self.get(n) } else { self.get(m) + 1 };
                self.set(d, value);
            }
            _ => return false,
        }
        true
    }

    /// Executes loads and stores.
    fn memory(&mut self, word: Word) -> bool {
        let ([d, n, a, m], is_long) = (word.registers(), word.is_long());
        let base = self.x[n as usize];
        match word.0 {
            _ if word.is(0xffff_fc00, 0xc85f_7c00) => {
                self.exclusive = Some(base);
                self.set(d, self.long(base));
            }
            _ if word.is(0xffe0_fc00, 0xc800_7c00) => {
                let is_done = self.exclusive.take() == Some(base);
                if is_done {
                    self.store(base, self.get(d), true);
                }
                self.set(m, u64::from(!is_done));
            }
            // ldr, str at a constant distance
            _ if word.is(0xbf80_0000, 0xb900_0000) => {
                let is_long = word.bits(30, 1) == 1;
                let address = base + (u64::from(word.bits(10, 12)) << if is_long { 3 } else { 2 });
                if word.bits(22, 1) == 1 {
                    self.set(d, self.load(address, is_long));
                } else {
                    self.store(address, self.get(d), is_long);
                }
            }
            // ldr at the distance in a register
            _ if word.is(0xbfe0_ec00, 0xb860_6800) => {
                let is_long = word.bits(30, 1) == 1;
                let shift = if word.bits(12, 1) == 0 { 0 } else { 3 };
                self.set(d, self.load(base.wrapping_add(self.get(m) << shift), is_long));
            }
            // ldp, stp: at a distance, or with another base before or behind
            _ if word.is(0x7e00_0000, 0x2800_0000) => {
                let size_bytes = if is_long { 8 } else { 4 };
                let moved = base.wrapping_add(word.signed(15, 7).wrapping_mul(size_bytes));
                let address = if word.bits(23, 2) == 1 { base } else { moved };
                if word.bits(22, 1) == 1 {
                    self.set(d, self.load(address, is_long));
                    self.set(a, self.load(address + size_bytes, is_long));
                } else {
                    self.store(address, self.get(d), is_long);
                    self.store(address + size_bytes, self.get(a), is_long);
                }
                if word.bits(23, 2) != 2 {
                    assert_eq!(n, SP);
                    self.x[n as usize] = moved;
                }
            }
            _ => return false,
        }
        true
    }
}

/// An instruction.
#[derive(Clone, Copy)]
struct Word(u32);

impl Word {
    fn is(self, mask: u32, bits: u32) -> bool {
        self.0 & mask == bits
    }

    fn bits(self, from: u32, count: u32) -> u32 {
        self.0 >> from & ((1 << count) - 1)
    }

    fn signed(self, from: u32, count: u32) -> u64 {
        i64::from((self.0 << (32 - from - count)).cast_signed() >> (32 - count)).cast_unsigned()
    }

    /// Returns the target of a branch at this address.
    fn relative(self, address: u64, from: u32, count: u32) -> u64 {
        address.wrapping_add(self.signed(from, count).wrapping_mul(4))
    }

    /// Returns the numbers of the instruction's registers: result, first source, third source or second result, second source.
    fn registers(self) -> [u32; 4] {
        [0, 5, 10, 16].map(|from| self.bits(from, 5))
    }

    /// Returns whether the instruction computes 64 bits.
    fn is_long(self) -> bool {
        self.bits(31, 1) == 1
    }

    fn narrow(self, value: u64) -> u64 {
        if self.is_long() { value } else { value & 0xffff_ffff }
    }
}
