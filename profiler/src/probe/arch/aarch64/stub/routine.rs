//! A stub while it is assembled.

#![expect(
    clippy::useless_conversion,
    clippy::cast_possible_truncation,
    reason = "the assembler's macro converts numbers of registers and shifts"
)]

use dynasmrt::aarch64::Aarch64Relocation;
use dynasmrt::{DynasmApi as _, DynasmError, DynasmLabelApi as _, VecAssembler, dynasm};
use gimli::write::CallFrameInstruction;
use profiler_common::hook::Site;

use crate::probe::arch::stub::{Routine, StubError, StubSite};

type Assembler = VecAssembler<Aarch64Relocation>;

impl From<DynasmError> for StubError {
    fn from(error: DynasmError) -> Self {
        Self::Encode(error.to_string())
    }
}

pub(super) struct Stub {
    pub(super) asm: Assembler,
    sites: Vec<StubSite>,
    frames: Vec<(u32, CallFrameInstruction)>,
}

impl Stub {
    pub(super) fn new(address: u64) -> Self {
        let asm = Assembler::new(usize_of(address));
        Self { asm, sites: Vec::new(), frames: Vec::new() }
    }

    pub(super) fn finish(self) -> Result<Routine, StubError> {
        Ok(Routine { code: self.asm.finalize()?, sites: self.sites, frames: self.frames })
    }

    fn offset(&self) -> u32 {
        u32::try_from(self.asm.offset().0).unwrap_or(u32::MAX)
    }

    /// Notes changes of the frame by the last instruction.
    pub(super) fn frame(&mut self, changes: impl IntoIterator<Item = CallFrameInstruction>) {
        let offset = self.offset();
        self.frames.extend(changes.into_iter().map(|change| (offset, change)));
    }

    /// Adds an instruction for a probe.
    pub(super) fn site(&mut self, site: Site) {
        self.sites.push(StubSite { offset: self.offset().into(), site });
        dynasm!(self.asm ; .arch aarch64 ; nop);
    }

    /// Loads a constant into a register.
    pub(super) fn load(&mut self, register: u8, constant: u64) {
        let [first, rest @ ..] = [0, 16, 32, 48].map(|shift: u32| (shift, low(constant >> shift, 16)));
        if constant >> 32 == 0xffff_ffff && constant >> 31 & 1 == 1 {
            dynasm!(self.asm
                ; .arch aarch64
                ; movn X(register), low(!constant, 16)
                ; movk X(register), rest[0].1, lsl 16
            );
            return;
        }
        dynasm!(self.asm ; .arch aarch64 ; movz X(register), first.1);
        for (shift, part) in rest.into_iter().filter(|&(_, part)| part != 0) {
            dynasm!(self.asm ; .arch aarch64 ; movk X(register), part, lsl shift);
        }
    }

    /// Loads an address within 4 GiB.
    pub(super) fn load_address(&mut self, register: u8, address: u64) {
        // For an address that is not aligned, the assembler takes the next page.
        let page = usize_of(address & !0xfff);
        dynasm!(self.asm
            ; .arch aarch64
            ; adrp X(register), extern page
            ; add XSP(register), XSP(register), low(address, 12)
        );
    }
}

/// The lowest `bits` bits of a word.
pub(super) fn low(word: u64, bits: u32) -> u32 {
    u32::try_from(word & ((1 << bits) - 1)).unwrap_or(0)
}

pub(super) fn usize_of(address: u64) -> usize {
    usize::try_from(address).unwrap_or(usize::MAX)
}
