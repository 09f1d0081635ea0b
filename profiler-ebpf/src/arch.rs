//! Registers of x86-64, as a probe sees them. All of the kernel side that depends on the CPU is here and in
//! `profiler-common`'s `step.rs` and `hook.rs`.

use core::arch::asm;
use core::mem::offset_of;

use aya_ebpf::bindings::pt_regs;
use profiler_common::hook::Register;

// SAFETY of all reads here: a uprobe's context is a pt_regs, valid while the program runs.

#[inline(always)]
pub(crate) fn ip(regs: *const pt_regs) -> u64 {
    // SAFETY: see above.
    unsafe { (*regs).rip }
}

#[inline(always)]
pub(crate) fn sp(regs: *const pt_regs) -> u64 {
    // SAFETY: see above.
    unsafe { (*regs).rsp }
}

#[inline(always)]
pub(crate) fn bp(regs: *const pt_regs) -> u64 {
    // SAFETY: see above.
    unsafe { (*regs).rbp }
}

/// The register of a function's result.
#[inline(always)]
pub(crate) fn result(regs: *const pt_regs) -> u64 {
    // SAFETY: see above.
    unsafe { (*regs).rax }
}

/// Reads a register at a constant offset.
///
/// The verifier lets a program read its context at constant offsets only. The optimiser would merge the sixteen loads of
/// [`register`] into one load of a computed address, so each load is inline assembly.
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

/// Reads the register with this number, which is at most 15.
#[inline(always)]
pub(crate) fn register(regs: *const pt_regs, number: u8) -> u64 {
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

// Thread-specific data (`pthread_getspecific`), from the thread pointer. glibc (2.31 to 2.43, `struct pthread` in nptl/descr.h):
// pairs of a sequence number and a value, the first block of them in the structure itself, then pointers to the blocks.
pub(crate) const GLIBC_BLOCK_KEYS: u64 = 32;
pub(crate) const GLIBC_FIRST_BLOCK: u64 = 0x310;
pub(crate) const GLIBC_BLOCKS: u64 = 0x510;
/// musl (1.2.2 to 1.2.6, `struct pthread` in src/internal/pthread_impl.h): pointer to an array of values.
pub(crate) const MUSL_DATA: u64 = 0x80;
