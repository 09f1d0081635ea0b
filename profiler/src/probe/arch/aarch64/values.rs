//! Addresses and loaded words in registers.

use profiler_common::hook::Register;

use super::registers::{LINK, PRESERVED};
use crate::arch::aarch64::Word;

/// Known content of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// A link address.
    Address(u64),
    /// The word at this link address.
    Loaded(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Values([Option<Value>; 32]);

impl Values {
    pub(super) const UNKNOWN: Self = Self([None; 32]);

    pub(super) fn get(&self, register: Register) -> Option<Value> {
        self.0[usize::from(register.number())]
    }

    fn set(&mut self, register: Register, value: Option<Value>) {
        self.0[usize::from(register.number())] = value;
    }

    /// Returns the values that are the same in both.
    pub(super) fn common(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|register| self.0[register].filter(|_| self.0[register] == other.0[register])))
    }

    /// Applies an instruction at this address. Values with the number of the zero register may be set: no instruction addresses
    /// by it.
    pub(super) fn step(&mut self, word: Word, at: u64) {
        let mut written = [None; 2];
        if let Some(address) = word.address(at) {
            written[0] = Some((word.register(0), Value::Address(address)));
        } else if let Some((to, from, distance)) = word.as_addition()
            && let Some(Value::Address(address)) = self.get(from)
        {
            written[0] = Some((to, Value::Address(address.wrapping_add(distance))));
        } else if let Some(moved) = word.as_move()
            && let Some(value) = self.get(moved.from)
        {
            written[0] = Some((moved.to, value));
        } else if let Some(load) = word.as_load()
            && let Some(Value::Address(address)) = self.get(load.base)
        {
            let mut loaded = load.words();
            let slot = |(to, distance)| (to, Value::Loaded(address.wrapping_add_signed(distance)));
            written = [loaded.next().map(slot), loaded.next().map(slot)];
        }
        word.writes().iter().for_each(|register| self.set(register, None));
        for (register, value) in written.into_iter().flatten() {
            self.set(register, Some(value));
        }
    }

    /// Applies a call: keeps the registers that a called function preserves.
    pub(super) fn call(&mut self) {
        let all = (0..32).map(Register::from_number);
        all.filter(|register| !PRESERVED.contains(register)).for_each(|register| self.set(register, None));
    }

    /// Applies a call of a descriptor of thread-local storage: the register of the first result has the descriptor's address, and
    /// the called word is its first. The call changes that register and the link register ("ELF for the Arm 64-bit Architecture",
    /// 5.7.9.2). Returns false for other calls.
    pub(super) fn call_of_descriptor(&mut self, called: Register) -> bool {
        let descriptor = Register::from_number(0);
        let (Some(Value::Address(address)), Some(Value::Loaded(slot))) = (self.get(descriptor), self.get(called))
        else {
            return false;
        };
        if address == slot {
            self.set(descriptor, None);
            self.set(LINK, None);
        }
        address == slot
    }
}
