//! aarch64: AAPCS64 (<https://github.com/ARM-software/abi-aa/blob/2025Q1/aapcs64/aapcs64.rst>).
//!
//! A call leaves its return address in x30, the link register. A function that calls others saves it, mostly beside the
//! caller's x29, so only a function that a signal has interrupted may still have it in the register.

use super::{StorageTable, ThreadData};
use crate::hook::Register;
use crate::hotspot::JavaFrames;
use crate::stack::StackEnd;
use crate::step::{ReadMemory, Registers, Step, outwards};
use crate::unwind::{
    BP_AT_BP, BP_AT_CFA, BP_SAME, KIND_END, KIND_FRAME_POINTER, KIND_GAP, KIND_LINK_BP, KIND_LINK_SP, KIND_SIGNAL,
    Rule, high_half, low_half,
};

pub const X0: Register = Register::from_number(0);
pub const X1: Register = Register::from_number(1);
pub const X2: Register = Register::from_number(2);
pub const X3: Register = Register::from_number(3);
pub const X4: Register = Register::from_number(4);
pub const X5: Register = Register::from_number(5);
pub const X6: Register = Register::from_number(6);
pub const X7: Register = Register::from_number(7);
pub const X8: Register = Register::from_number(8);
pub const X9: Register = Register::from_number(9);
pub const X10: Register = Register::from_number(10);
pub const X11: Register = Register::from_number(11);
pub const X12: Register = Register::from_number(12);
pub const X13: Register = Register::from_number(13);
pub const X14: Register = Register::from_number(14);
pub const X15: Register = Register::from_number(15);
pub const X16: Register = Register::from_number(16);
pub const X17: Register = Register::from_number(17);
pub const X18: Register = Register::from_number(18);
pub const X19: Register = Register::from_number(19);
pub const X20: Register = Register::from_number(20);
pub const X21: Register = Register::from_number(21);
pub const X22: Register = Register::from_number(22);
pub const X23: Register = Register::from_number(23);
pub const X24: Register = Register::from_number(24);
pub const X25: Register = Register::from_number(25);
pub const X26: Register = Register::from_number(26);
pub const X27: Register = Register::from_number(27);
pub const X28: Register = Register::from_number(28);
pub const X29: Register = Register::from_number(29);
pub const X30: Register = Register::from_number(30);
pub const SP: Register = Register::from_number(31);

/// General registers that probes can read: numbers below this.
pub const REGISTERS: u8 = 32;
/// Integer arguments of a call, first to last (6.8.2); x6 and x7 follow.
pub const ARGUMENTS: [Register; 6] = [X0, X1, X2, X3, X4, X5];
pub const STACK_POINTER: Register = SP;
pub const FRAME_POINTER: Register = X29;
pub const RESULT: Register = X0;

/// See the same item of [`x86_64`](super::x86_64). A register that calls through linkage tables may overwrite.
pub const STUB_INTERVAL: Register = X16;

/// Member of the kernel's `struct thread_struct` that begins with the thread pointer, as of the last time that the thread was
/// suspended (arch/arm64/include/asm/processor.h).
pub const THREAD_POINTER: &str = "uw";

/// Whether calls leave their return address in a register.
pub const HAS_LINK: bool = true;

/// Bytes of stack that a call takes, and its return gives back.
pub const CALL_BYTES: u64 = 0;

/// glibc (2.31 to 2.41, `struct pthread` in nptl/descr.h), musl (1.2.2 to 1.2.6, `struct pthread` in
/// src/internal/pthread_impl.h). The thread pointer is behind these structures, whose sizes differ between versions.
pub const THREAD_DATA: ThreadData = ThreadData { glibc_first_block: 0x110, glibc_blocks: 0x310, musl_values: 0x70 };

/// `tcbhead_t` in sysdeps/aarch64/nptl/tls.h of glibc, which the thread pointer refers to; the end of `struct pthread` of musl.
pub const STORAGE_TABLE: StorageTable = StorageTable { glibc: 0, musl: 8u64.wrapping_neg() };

/// Bits of the address of data: the processor ignores the upper byte, in which the Memory Tagging Extension keeps a tag
/// (Documentation/arch/arm64/memory-tagging-extension.rst). glibc and others return tagged pointers where it is enabled.
pub const DATA_ADDRESS: u64 = (1 << 56) - 1;

/// Bits of the address of code: the others may be a signature (`paciasp`), or a tag. Kernels with virtual addresses of 52 bits
/// use more than 48 for programs that request it (Documentation/arch/arm64/memory.rst, "52-bit userspace VAs").
pub const CODE_ADDRESS: u64 = (1 << 48) - 1;

/// In [`Registers::sp`], which is a multiple of 16 otherwise: the stack pointer is this address, without the bit, or a higher one.
/// A chain of frame pointers does not show where the frames end.
const AT_LEAST: u64 = 1;

/// `src/hotspot/cpu/aarch64/frame_aarch64.hpp` of JDK 11 to 25. Where return addresses are signed (`-XX:UseBranchProtection`),
/// compiled code and the interpreter sign theirs too.
pub const JAVA_FRAMES: JavaFrames = JavaFrames { bytecode: 9 * 8, code_address: CODE_ADDRESS, sp_inexact: AT_LEAST };

/// Offsets in the kernel's signal frame, from sp at the signal trampoline, in bytes: `siginfo`, then `ucontext`, whose
/// `sigcontext` begins at byte 176 (arch/arm64/kernel/signal.c: `struct rt_sigframe`; arch/arm64/include/uapi/asm/sigcontext.h).
pub const SIGNAL_X0: u64 = 128 + 176 + 8;
pub const SIGNAL_BP: u64 = SIGNAL_X0 + 29 * 8;
pub const SIGNAL_LINK: u64 = SIGNAL_X0 + 30 * 8;
pub const SIGNAL_SP: u64 = SIGNAL_X0 + 31 * 8;
pub const SIGNAL_IP: u64 = SIGNAL_X0 + 32 * 8;

/// Whether these 8 bytes of code, of which the first is the lowest, end with a call: `bl`, `blr` or `blraa` and the like.
#[inline(always)]
pub const fn ends_with_call(code: u64) -> bool {
    let instruction = code >> 32;
    instruction & 0xfc00_0000 == 0x9400_0000 || instruction & 0xfeff_f000 == 0xd63f_0000
}

/// Steps by the rule that covers [`Registers::lookup_address`].
#[inline(always)]
pub fn step(registers: &Registers, rule: Rule, memory: &impl ReadMemory) -> Step {
    match rule.kind {
        KIND_LINK_SP | KIND_LINK_BP => match step_by_cfa(registers, rule, memory) {
            // A function that has not moved the stack pointer yet has its caller's.
            Some(caller) if !registers.is_return_address && caller.ip != 0 => Step::Caller(caller),
            Some(caller) => outwards(registers, caller),
            None => Step::End(StackEnd::Unreadable),
        },
        KIND_FRAME_POINTER => step_by_frame_pointer(registers, memory),
        KIND_SIGNAL => match step_out_of_signal(registers, memory) {
            Some(interrupted) => Step::Caller(interrupted),
            None => Step::End(StackEnd::Unreadable),
        },
        KIND_END => Step::End(StackEnd::Complete),
        KIND_GAP => Step::End(StackEnd::NoRow),
        _ => Step::End(StackEnd::UnsupportedRule),
    }
}

/// Steps along the chain of frame records (6.4.6): the caller's x29 is at x29, the return address above it.
#[inline(always)]
pub fn step_by_frame_pointer(registers: &Registers, memory: &impl ReadMemory) -> Step {
    let bp = registers.bp;
    if bp == 0 {
        return Step::End(StackEnd::Complete);
    }
    if bp < registers.sp & !AT_LEAST || bp & 7 != 0 {
        return Step::End(StackEnd::BrokenChain);
    }
    let (Some(caller_bp), Some(signed)) = (memory.read_u64(bp), memory.read_u64(bp.wrapping_add(8))) else {
        return Step::End(StackEnd::Unreadable);
    };
    let sp = bp.wrapping_add(16) | AT_LEAST;
    outwards(registers, Registers { ip: signed & CODE_ADDRESS, sp, bp: caller_bp, link: 0, is_return_address: true })
}

#[inline(always)]
fn step_by_cfa(registers: &Registers, rule: Rule, memory: &impl ReadMemory) -> Option<Registers> {
    let offset = low_half(rule.cfa_offset) as i64 * 8;
    let return_offset = high_half(rule.cfa_offset) as i64;
    let cfa = if rule.kind == KIND_LINK_BP {
        registers.bp.wrapping_add_signed(offset)
    } else if registers.sp & AT_LEAST == 0 {
        registers.sp.wrapping_add_signed(offset)
    } else if rule.bp == BP_AT_CFA {
        // A function that saves x29 has it point there, as far as frame pointers are followed at all.
        registers.bp.wrapping_sub(rule.bp_offset as i64 as u64)
    } else {
        return None;
    };
    let bp = match rule.bp {
        BP_SAME => registers.bp,
        BP_AT_CFA => memory.read_u64(cfa.wrapping_add_signed(rule.bp_offset as i64))?,
        BP_AT_BP => memory.read_u64(registers.bp.wrapping_add_signed(rule.bp_offset as i64))?,
        _ => 0,
    };
    let signed = if return_offset != 0 {
        memory.read_u64(cfa.wrapping_add_signed(return_offset))?
    } else if registers.is_return_address {
        return None;
    } else {
        registers.link
    };
    Some(Registers { ip: signed & CODE_ADDRESS, sp: cfa, bp, link: 0, is_return_address: true })
}

/// The interrupted frame. Its stack may be another one (`sigaltstack`), so its stack pointer is not checked.
#[inline(always)]
fn step_out_of_signal(registers: &Registers, memory: &impl ReadMemory) -> Option<Registers> {
    if registers.sp & AT_LEAST != 0 {
        return None;
    }
    let at = |offset: u64| memory.read_u64(registers.sp.wrapping_add(offset));
    Some(Registers {
        ip: at(SIGNAL_IP)?,
        sp: at(SIGNAL_SP)? & !AT_LEAST,
        bp: at(SIGNAL_BP)?,
        link: at(SIGNAL_LINK)?,
        is_return_address: false,
    })
}

#[cfg(test)]
mod tests;
