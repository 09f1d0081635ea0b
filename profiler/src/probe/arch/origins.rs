//! Registers that hold the values of a function's entry.

use profiler_common::hook::Register;

/// Maximum number of registers of either processor.
const REGISTERS: usize = 32;

/// For each register, by number, the register whose value at the function's entry it has. Tracks whole copies only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::probe) struct Origins([Option<Register>; REGISTERS]);

impl Origins {
    /// Origins at the entry of a function, on a processor with so many registers.
    pub(super) fn at_entry(registers: u8) -> Self {
        let mut origins = Self([None; REGISTERS]);
        (0..registers).map(Register::from_number).for_each(|register| origins.set(register, Some(register)));
        origins
    }

    pub(in crate::probe) fn keeps(&self, register: Register) -> bool {
        self.is_copy(register, register)
    }

    /// Finds a register that has the entry value of this one: preferably itself.
    pub(in crate::probe) fn find(&self, register: Register) -> Option<Register> {
        if self.keeps(register) {
            return Some(register);
        }
        (0..).map(Register::from_number).take(REGISTERS).find(|&holder| self.is_copy(holder, register))
    }

    /// Whether `holder` has the entry value of `argument`.
    pub(super) fn is_copy(&self, holder: Register, argument: Register) -> bool {
        self.get(holder) == Some(argument)
    }

    pub(super) fn copy(&mut self, to: Register, from: Register) {
        self.set(to, self.get(from));
    }

    pub(super) fn exchange(&mut self, one: Register, other: Register) {
        self.0.swap(usize::from(one.number()), usize::from(other.number()));
    }

    pub(super) fn forget(&mut self, register: Register) {
        self.set(register, None);
    }

    /// Returns the origins that are the same in both.
    pub(super) fn common(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|register| self.0[register].filter(|_| self.0[register] == other.0[register])))
    }

    fn get(&self, register: Register) -> Option<Register> {
        self.0[usize::from(register.number())]
    }

    fn set(&mut self, register: Register, origin: Option<Register>) {
        self.0[usize::from(register.number())] = origin;
    }
}
