//! Registers of x86-64, as a probe sees them.

use core::arch::asm;
use core::mem::offset_of;

use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::bpf_probe_read_kernel;
use profiler_common::arch::x86_64::{R8, R9, R10, R11, R12, R13, R14, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP};
use profiler_common::hook::Register;
use profiler_common::step::ReadMemory;

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

/// What [`caller`] takes, at a function's entry: the return address is on top of the stack.
#[inline(always)]
pub(crate) fn return_place(regs: *const pt_regs) -> u64 {
    sp(regs)
}

/// The return address.
#[inline(always)]
pub(crate) fn caller(return_place: u64, memory: &impl ReadMemory) -> Option<u64> {
    memory.read_u64(return_place)
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

/// Reads the register with this number, which is at most 15.
#[inline(always)]
pub(crate) fn register(regs: *const pt_regs, number: u8) -> u64 {
    match Register::from_number(number) {
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

/// Instruction, stack and frame pointer of registers of user space at an address of the kernel; `None` for threads that the kernel has made
/// for a process, as io_uring's.
#[inline(always)]
pub(crate) fn user_registers(registers: u64) -> Option<[u64; 3]> {
    let word = |offset: usize| {
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel((registers + offset as u64) as *const u64) }.ok()
    };
    let ip = word(offset_of!(pt_regs, rip))?;
    if ip == 0 { None } else { Some([ip, word(offset_of!(pt_regs, rsp))?, word(offset_of!(pt_regs, rbp))?]) }
}

/// Number of the system call that maps memory (arch/x86/entry/syscalls/syscall_64.tbl).
pub(crate) const MMAP: u64 = 9;

/// Number of a thread's system call, and its arguments if it is [`MMAP`]: length, protection, flags, descriptor and offset. `registers` is the
/// address of those with which it has entered the kernel.
#[inline(always)]
pub(crate) fn map_arguments(registers: u64) -> Option<[u64; 6]> {
    let word = |offset: usize| {
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel((registers + offset as u64) as *const u64) }.ok()
    };
    Some([
        word(offset_of!(pt_regs, orig_rax))?,
        word(offset_of!(pt_regs, rsi))?,
        word(offset_of!(pt_regs, rdx))?,
        word(offset_of!(pt_regs, r10))?,
        word(offset_of!(pt_regs, r8))?,
        word(offset_of!(pt_regs, r9))?,
    ])
}
