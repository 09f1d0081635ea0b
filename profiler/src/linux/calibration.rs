//! Functions of this program to put probes on, so that it can be seen whether that works and measured what it costs.

#![expect(unsafe_code, reason = "which instruction is probed can only be said in assembly")]

use std::arch::global_asm;

/// Defines a function of these instructions, in AT&T syntax.
macro_rules! function {
    ($name:literal, $($instruction:literal),+) => {
        global_asm!(
            ".pushsection .text.heapbpf_calibration, \"ax\", @progbits",
            concat!(".globl ", $name),
            concat!(".hidden ", $name),
            concat!(".type ", $name, ", @function"),
            ".p2align 4",
            concat!($name, ":"),
            $($instruction,)+
            concat!(".size ", $name, ", . - ", $name),
            ".popsection",
            options(att_syntax)
        );
    };
}

// Each does nothing and returns. What counts is the first instruction: the kernel emulates `push` and single-steps `test`
// (see `probe::place`). There are two of each, because one is probed at its entry and the other at its return as well.
function!("heapbpf_emulated", "push %rbx", "pop %rbx", "ret");
function!("heapbpf_emulated_returning", "push %rbx", "pop %rbx", "ret");
function!("heapbpf_stepped", "test %rdi, %rdi", "ret");
function!("heapbpf_stepped_returning", "test %rdi, %rdi", "ret");

// SAFETY: the functions above follow the C calling convention: they change the flags and nothing else.
unsafe extern "C" {
    safe fn heapbpf_emulated(argument: u64);
    safe fn heapbpf_emulated_returning(argument: u64);
    safe fn heapbpf_stepped(argument: u64);
    safe fn heapbpf_stepped_returning(argument: u64);
}

/// One of the functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    /// Begins with an instruction that the kernel emulates.
    Emulated,
    /// The same, to be probed at its return as well.
    EmulatedReturning,
    /// Begins with an instruction that the kernel executes out of line.
    Stepped,
    /// The same, to be probed at its return as well.
    SteppedReturning,
}

impl Spot {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::Emulated, Self::EmulatedReturning, Self::Stepped, Self::SteppedReturning];

    /// Its address in this process.
    pub(crate) fn address(self) -> u64 {
        self.function() as usize as u64
    }

    /// Calls it this often, with an argument that is no block's address.
    pub(crate) fn call(self, times: u32) {
        let function = self.function();
        for _ in 0..times {
            function(1);
        }
    }

    fn function(self) -> extern "C" fn(u64) {
        match self {
            Self::Emulated => heapbpf_emulated,
            Self::EmulatedReturning => heapbpf_emulated_returning,
            Self::Stepped => heapbpf_stepped,
            Self::SteppedReturning => heapbpf_stepped_returning,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_a_function_of_its_own_that_returns() {
        let mut addresses = Spot::ALL.map(Spot::address).to_vec();
        addresses.dedup();
        assert_eq!(addresses.len(), Spot::ALL.len());
        Spot::ALL.iter().for_each(|spot| spot.call(3));
    }
}
