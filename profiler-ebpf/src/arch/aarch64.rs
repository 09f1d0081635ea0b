//! Registers of aarch64, as a probe sees them: the context is a `struct user_pt_regs`.

use core::arch::asm;
use core::mem::offset_of;

use aya_ebpf::bindings::pt_regs;
use aya_ebpf::helpers::bpf_probe_read_kernel;
use profiler_common::arch::aarch64::CODE_ADDRESS;
use profiler_common::step::ReadMemory;

// SAFETY of all reads here: a uprobe's context is a user_pt_regs, valid while the program runs.

/// Reads a register at a constant offset; 31 is the stack pointer, which follows the others.
///
/// Inline assembly, because the optimiser would merge the loads of [`register`] into one of a computed address, which the verifier
/// refuses.
macro_rules! load {
    ($regs:expr, $number:literal) => {{
        let value: u64;
        // SAFETY: a uprobe's context is a user_pt_regs, valid while the program runs; the offset is the register's.
        unsafe {
            asm!(
                "{value} = *(u64 *)({regs} + {offset})",
                value = out(reg) value,
                regs = in(reg) $regs,
                offset = const offset_of!(pt_regs, regs) + $number * 8,
                options(pure, readonly, nostack, preserves_flags),
            );
        }
        value
    }};
}

#[inline(always)]
pub(crate) fn ip(regs: *const pt_regs) -> u64 {
    // SAFETY: see above.
    unsafe { (*regs).pc }
}

#[inline(always)]
pub(crate) fn sp(regs: *const pt_regs) -> u64 {
    // SAFETY: see above.
    unsafe { (*regs).sp }
}

#[inline(always)]
pub(crate) fn bp(regs: *const pt_regs) -> u64 {
    load!(regs, 29)
}

/// The register of a function's result.
#[inline(always)]
pub(crate) fn result(regs: *const pt_regs) -> u64 {
    load!(regs, 0)
}

/// What [`caller`] takes, at a function's entry: the link register.
#[inline(always)]
pub(crate) fn return_place(regs: *const pt_regs) -> u64 {
    load!(regs, 30)
}

/// The return address. Functions that have begun may have signed it.
#[inline(always)]
pub(crate) fn caller(return_place: u64, _memory: &impl ReadMemory) -> Option<u64> {
    Some(return_place & CODE_ADDRESS)
}

/// Reads the register with this number, which is at most 31.
#[inline(always)]
pub(crate) fn register(regs: *const pt_regs, number: u8) -> u64 {
    match number {
        0 => load!(regs, 0),
        1 => load!(regs, 1),
        2 => load!(regs, 2),
        3 => load!(regs, 3),
        4 => load!(regs, 4),
        5 => load!(regs, 5),
        6 => load!(regs, 6),
        7 => load!(regs, 7),
        8 => load!(regs, 8),
        9 => load!(regs, 9),
        10 => load!(regs, 10),
        11 => load!(regs, 11),
        12 => load!(regs, 12),
        13 => load!(regs, 13),
        14 => load!(regs, 14),
        15 => load!(regs, 15),
        16 => load!(regs, 16),
        17 => load!(regs, 17),
        18 => load!(regs, 18),
        19 => load!(regs, 19),
        20 => load!(regs, 20),
        21 => load!(regs, 21),
        22 => load!(regs, 22),
        23 => load!(regs, 23),
        24 => load!(regs, 24),
        25 => load!(regs, 25),
        26 => load!(regs, 26),
        27 => load!(regs, 27),
        28 => load!(regs, 28),
        29 => load!(regs, 29),
        30 => load!(regs, 30),
        _ => load!(regs, 31),
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
    let frame_pointer = offset_of!(pt_regs, regs) + 29 * 8;
    let ip = word(offset_of!(pt_regs, pc))?;
    if ip == 0 { None } else { Some([ip, word(offset_of!(pt_regs, sp))?, word(frame_pointer)?]) }
}

/// Number of the system call that maps memory (include/uapi/asm-generic/unistd.h).
pub(crate) const MMAP: u64 = 222;

/// Number of a thread's system call, and its arguments if it is [`MMAP`]: length, protection, flags, descriptor and offset. `registers` is the
/// address of those with which it has entered the kernel.
#[inline(always)]
pub(crate) fn map_arguments(registers: u64) -> Option<[u64; 6]> {
    let word = |number: u64| {
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel((registers + number * 8) as *const u64) }.ok()
    };
    // The calling convention of system calls has the number in x8.
    Some([word(8)?, word(1)?, word(2)?, word(3)?, word(4)?, word(5)?])
}
