//! Reads a register whose number is known at run time only.
//!
//! The verifier lets a program read its context at constant offsets alone. Plain code for the choice does not survive the
//! optimiser, which merges the sixteen loads into one load of a computed address; so each load is spelled out.

use core::arch::asm;
use core::mem::offset_of;

use aya_ebpf::bindings::pt_regs;
use profiler_common::hook::Register;

macro_rules! load {
    ($regs:expr, $field:ident) => {{
        let value: u64;
        // SAFETY: a uprobe's context is a pt_regs, valid while the program runs; the offset is the field's.
        unsafe {
            asm!(
                "{value} = *(u64 *)({regs} + {offset})",
                value = out(reg) value,
                regs = in(reg) $regs,
                offset = const offset_of!(pt_regs, $field),
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        value
    }};
}

const RAX: u8 = Register::Rax as u8;
const RCX: u8 = Register::Rcx as u8;
const RDX: u8 = Register::Rdx as u8;
const RBX: u8 = Register::Rbx as u8;
const RSP: u8 = Register::Rsp as u8;
const RBP: u8 = Register::Rbp as u8;
const RSI: u8 = Register::Rsi as u8;
const RDI: u8 = Register::Rdi as u8;
const R8: u8 = Register::R8 as u8;
const R9: u8 = Register::R9 as u8;
const R10: u8 = Register::R10 as u8;
const R11: u8 = Register::R11 as u8;
const R12: u8 = Register::R12 as u8;
const R13: u8 = Register::R13 as u8;
const R14: u8 = Register::R14 as u8;

/// The register with this number; numbers beyond 15 do not occur.
#[inline(always)]
pub(super) fn read(regs: *const pt_regs, number: u8) -> u64 {
    match number {
        RDI => load!(regs, rdi),
        RSI => load!(regs, rsi),
        RDX => load!(regs, rdx),
        RCX => load!(regs, rcx),
        RAX => load!(regs, rax),
        RBX => load!(regs, rbx),
        RSP => load!(regs, rsp),
        RBP => load!(regs, rbp),
        R8 => load!(regs, r8),
        R9 => load!(regs, r9),
        R10 => load!(regs, r10),
        R11 => load!(regs, r11),
        R12 => load!(regs, r12),
        R13 => load!(regs, r13),
        R14 => load!(regs, r14),
        _ => load!(regs, r15),
    }
}
