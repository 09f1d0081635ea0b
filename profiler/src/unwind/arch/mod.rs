//! What depends on the processor: registers in unwind information, and code that shows how to unwind it. All of it is compiled and
//! tested on every processor, so it is chosen at run time, by the ELF file.

mod aarch64;
mod row;
mod x86_64;

use gimli::{AArch64, CfaRule, Register, UnwindSection, Vendor, X86_64};
use profiler_common::unwind::Rule;

use row::Row;
pub(crate) use row::{Bytes, Context, RowStorage, Unsupported};

/// Processor of an ELF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Processor {
    X86_64,
    Aarch64,
}

impl Processor {
    /// The processor that this program runs on.
    pub(crate) const NATIVE: Self = if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 };

    pub(crate) const fn elf_machine(self) -> u16 {
        match self {
            Self::X86_64 => object::elf::EM_X86_64,
            Self::Aarch64 => object::elf::EM_AARCH64,
        }
    }

    pub(crate) const fn vendor(self) -> Vendor {
        match self {
            Self::X86_64 => Vendor::Default,
            Self::Aarch64 => Vendor::AArch64,
        }
    }

    /// DWARF's number of the column of the return address.
    pub(crate) const fn return_address(self) -> Register {
        match self {
            Self::X86_64 => X86_64::RA,
            Self::Aarch64 => AArch64::X30,
        }
    }

    /// Instructions of four bytes that set up a frame pointer.
    pub(crate) const fn prologues(self) -> &'static [[u8; 4]] {
        match self {
            Self::X86_64 => &x86_64::PROLOGUES,
            Self::Aarch64 => &aarch64::PROLOGUES,
        }
    }

    /// Whether this is the rule at the entry of a function.
    pub(crate) fn is_entry(self, cfa: &CfaRule<usize>) -> bool {
        match self {
            Self::X86_64 => matches!(cfa, CfaRule::RegisterAndOffset { register: X86_64::RSP, offset: 8 }),
            Self::Aarch64 => matches!(cfa, CfaRule::RegisterAndOffset { register: AArch64::SP, offset: 0 }),
        }
    }

    /// The function that receives the result of the previous call as its only argument, if the code does nothing else first.
    /// `address` is that of `code`.
    pub(crate) fn passes_result_to(self, code: &[u8], address: u64) -> Option<u64> {
        match self {
            Self::X86_64 => x86_64::passes_result_to(code, address),
            Self::Aarch64 => aarch64::passes_result_to(code, address),
        }
    }

    /// Whether the code ends with a call of a function whose address is in a register, or in memory that a register points to.
    pub(crate) fn is_indirect_call(self, code: &[u8]) -> bool {
        match self {
            Self::X86_64 => x86_64::is_indirect_call(code),
            Self::Aarch64 => aarch64::is_indirect_call(code),
        }
    }

    /// Length of the longest call that [`is_indirect_call`](Self::is_indirect_call) recognises.
    pub(crate) const fn call_bytes_max(self) -> usize {
        match self {
            Self::X86_64 => 3,
            Self::Aarch64 => 4,
        }
    }

    /// The rule at the first call of a function without branches before it, from its code.
    pub(crate) fn rule_at_first_call(self, code: &[u8], address: u64) -> Option<Rule> {
        match self {
            Self::X86_64 => x86_64::rule_at_first_call(code, address),
            Self::Aarch64 => aarch64::rule_at_first_call(code),
        }
    }

    /// The rule of code whose frame pointer is that of a frame on another stack, which may be at a lower address.
    pub(crate) fn switched_stack(self) -> Option<Rule> {
        match self {
            Self::X86_64 => x86_64::switched_stack(),
            Self::Aarch64 => aarch64::switched_stack(),
        }
    }

    /// Code that ends a signal's handler, and how many bytes before it are as rare, if it has no unwind information of its own.
    pub(crate) const fn signal_trampoline(self) -> Option<(&'static [u8], u64)> {
        match self {
            Self::X86_64 => None,
            Self::Aarch64 => Some((&aarch64::SIGNAL_TRAMPOLINE, 4)),
        }
    }

    pub(crate) fn translate<'data, S: UnwindSection<Bytes<'data>>>(
        self,
        context: &Context<'_, S>,
        row: &Row,
    ) -> Result<Rule, Unsupported> {
        match self {
            Self::X86_64 => x86_64::translate(context, row),
            Self::Aarch64 => aarch64::translate(context, row),
        }
    }
}

/// Length of the longest sequence that [`Processor::passes_result_to`] recognises.
pub(crate) const PASSES_RESULT_BYTES_MAX: usize = 8;
