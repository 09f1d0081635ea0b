//! What the kernel does with a probe on an instruction.
//!
//! `arm_probe_decode_insn` in arch/arm64/kernel/probes/decode-insn.c decides, the same in Linux 5.10 to 7.3 but for `nop`. It lets
//! some instructions be executed out of line that use their own address, and fail there: loads of literals into vector registers
//! (all versions), `bc.cond` (before 6.13) and `cb` (all). These are regarded as refused.

use crate::arch::aarch64::{Control, Word};
use crate::probe::arch::instruction_set::{Class, Emulation};

pub(super) fn class(word: Word, emulation: Emulation) -> Option<Class> {
    if word.is_branch_or_system() {
        return branch_or_system(word, emulation);
    }
    if word.is(0x1f00_0000, 0x1000_0000) {
        return Some(Class::Emulated);
    }
    let is_refused = word.is_literal_load() || word.is_exclusive() || word.is_memory_operation();
    // `udf` ends the program.
    (!is_refused && word.control(0) == Control::Next).then_some(Class::SingleStepped)
}

fn branch_or_system(word: Word, emulation: Emulation) -> Option<Class> {
    const NOP: u32 = 0;
    let is_emulated_branch = word.is(0xff00_0010, 0x5400_0000)
        || word.is(0x7c00_0000, 0x3400_0000)
        || word.is(0x7c00_0000, 0x1400_0000)
        // br, blr, ret
        || word.is(0xff9f_fc1f, 0xd61f_0000) && !word.is(0xffff_fc1f, 0xd67f_0000);
    if is_emulated_branch {
        return Some(Class::Emulated);
    }
    if word.is_hint() {
        return match word.hint() {
            NOP if emulation.nops => Some(Class::Emulated),
            // nop, xpaclri, pacia1716, pacib1716, paciaz, paciasp, pacibz, pacibsp, bti
            NOP | 7 | 8 | 10 | 24..=27 | 32 | 34 | 36 | 38 => Some(Class::SingleStepped),
            _ => None,
        };
    }
    // `mrs`, except of the interrupt masks, which processes cannot read.
    let is_system_read = word.is(0xfff0_0000, 0xd530_0000) && !word.is(0xffff_ffe0, 0xd53b_4220);
    // dmb, dsb, isb, sb, clrex
    let is_barrier = word.is(0xffff_f01f, 0xd503_301f);
    (is_system_read || is_barrier).then_some(Class::SingleStepped)
}

#[cfg(test)]
pub(super) mod tests;
