//! x86-64: System V psABI (<https://gitlab.com/x86-psABIs/x86-64-ABI>).

use super::{StorageTable, ThreadData};
use crate::hook::Register;
use crate::hotspot::JavaFrames;
use crate::stack::StackEnd;
use crate::step::{ReadMemory, Registers, Step, outwards};
use crate::unwind::{
    BP_AT_BP, BP_AT_CFA, BP_SAME, KIND_AT_BP, KIND_AT_SP, KIND_BP, KIND_END, KIND_FRAME_POINTER, KIND_GAP, KIND_PLT,
    KIND_SIGNAL, KIND_SP, Rule, high_half, low_half,
};

pub const RAX: Register = Register::from_number(0);
pub const RCX: Register = Register::from_number(1);
pub const RDX: Register = Register::from_number(2);
pub const RBX: Register = Register::from_number(3);
pub const RSP: Register = Register::from_number(4);
pub const RBP: Register = Register::from_number(5);
pub const RSI: Register = Register::from_number(6);
pub const RDI: Register = Register::from_number(7);
pub const R8: Register = Register::from_number(8);
pub const R9: Register = Register::from_number(9);
pub const R10: Register = Register::from_number(10);
pub const R11: Register = Register::from_number(11);
pub const R12: Register = Register::from_number(12);
pub const R13: Register = Register::from_number(13);
pub const R14: Register = Register::from_number(14);
pub const R15: Register = Register::from_number(15);

/// General registers that probes can read: numbers below this.
pub const REGISTERS: u8 = 16;
/// Integer arguments of a call, first to last (3.2.3).
pub const ARGUMENTS: [Register; 6] = [RDI, RSI, RDX, RCX, R8, R9];
pub const STACK_POINTER: Register = RSP;
pub const FRAME_POINTER: Register = RBP;
pub const RESULT: Register = RAX;

/// At [`Site::StubEntry`](crate::hook::Site::StubEntry), this register has the code of the interval that the call is sampled at, or
/// 0 if it is not sampled.
pub const STUB_INTERVAL: Register = R10;

/// Member of the kernel's `struct thread_struct` that is the thread pointer (arch/x86/include/asm/processor.h).
pub const THREAD_POINTER: &str = "fsbase";

/// Bits of the address of data.
pub const DATA_ADDRESS: u64 = u64::MAX;

/// Whether calls leave their return address in a register.
pub const HAS_LINK: bool = false;

/// Bytes of stack that a call takes, and its return gives back: the return address.
pub const CALL_BYTES: u64 = 8;

/// glibc (2.31 to 2.43, `struct pthread` in nptl/descr.h), musl (1.2.2 to 1.2.6, `struct pthread` in
/// src/internal/pthread_impl.h).
pub const THREAD_DATA: ThreadData = ThreadData { glibc_first_block: 0x310, glibc_blocks: 0x510, musl_values: 0x80 };

/// `tcbhead_t` in sysdeps/x86_64/nptl/tls.h of glibc, `struct pthread` of musl.
pub const STORAGE_TABLE: StorageTable = StorageTable { glibc: 8, musl: 8 };

/// `src/hotspot/cpu/x86/frame_x86.hpp` of JDK 11 to 25.
pub const JAVA_FRAMES: JavaFrames = JavaFrames { bytecode: 8 * 8, code_address: u64::MAX, sp_inexact: 0 };

/// Offsets of the registers in the kernel's signal frame, from rsp at the signal trampoline, in bytes. `ucontext` begins there,
/// and the general registers are 40 bytes in (`arch/x86/include/uapi/asm/sigcontext.h`: `struct sigcontext_64`, where rbp is
/// word 10, rsp word 15, rip word 16).
pub const SIGNAL_BP: u64 = 40 + 10 * 8;
pub const SIGNAL_SP: u64 = 40 + 15 * 8;
pub const SIGNAL_IP: u64 = 40 + 16 * 8;

/// Whether these 8 bytes of code, of which the first is the lowest, end with a call: a direct one, or one of the forms of `call r/m64`
/// (Intel SDM 2, "CALL").
#[inline(always)]
pub const fn ends_with_call(code: u64) -> bool {
    const fn is_indirect(code: u64, bytes: u64) -> bool {
        let at = code >> (64 - 8 * bytes);
        at & 0xff == 0xff && at >> 11 & 7 == 2
    }
    code >> 24 & 0xff == 0xe8
        || is_indirect(code, 2)
        || is_indirect(code, 3)
        || is_indirect(code, 4)
        || is_indirect(code, 6)
        || is_indirect(code, 7)
}

/// Steps by the rule that covers [`Registers::lookup_address`].
#[inline(always)]
pub fn step(registers: &Registers, rule: Rule, memory: &impl ReadMemory) -> Step {
    match rule.kind {
        KIND_SP | KIND_BP | KIND_AT_SP | KIND_AT_BP | KIND_PLT => match step_by_cfa(registers, rule, memory) {
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

/// Steps along the chain of frame pointers: the caller's rbp is at rbp, the return address above it.
#[inline(always)]
pub fn step_by_frame_pointer(registers: &Registers, memory: &impl ReadMemory) -> Step {
    let bp = registers.bp;
    if bp == 0 {
        // The psABI (3.4.1, "Initial Stack and Register State") marks the first frame this way.
        return Step::End(StackEnd::Complete);
    }
    if bp < registers.sp || bp & 7 != 0 {
        return Step::End(StackEnd::BrokenChain);
    }
    let (Some(caller_bp), Some(ip)) = (memory.read_u64(bp), memory.read_u64(bp.wrapping_add(8))) else {
        return Step::End(StackEnd::Unreadable);
    };
    outwards(registers, Registers { ip, sp: bp.wrapping_add(16), bp: caller_bp, link: 0, is_return_address: true })
}

#[inline(always)]
fn step_by_cfa(registers: &Registers, rule: Rule, memory: &impl ReadMemory) -> Option<Registers> {
    let low = low_half(rule.cfa_offset) as i64;
    let high = high_half(rule.cfa_offset) as i64;
    let base = if rule.kind == KIND_BP || rule.kind == KIND_AT_BP { registers.bp } else { registers.sp };
    let cfa = match rule.kind {
        KIND_SP | KIND_BP => base.wrapping_add_signed(rule.cfa_offset as i64),
        KIND_PLT => {
            let pushed = if (registers.ip & 15) as i64 >= high { 8 } else { 0 };
            base.wrapping_add_signed(low + pushed)
        }
        _ => memory.read_u64(base.wrapping_add_signed(low))?.wrapping_add_signed(high),
    };
    let bp = match rule.bp {
        BP_SAME => registers.bp,
        BP_AT_CFA => memory.read_u64(cfa.wrapping_add_signed(rule.bp_offset as i64))?,
        BP_AT_BP => memory.read_u64(registers.bp.wrapping_add_signed(rule.bp_offset as i64))?,
        _ => 0,
    };
    let ip = memory.read_u64(cfa.wrapping_sub(8))?;
    Some(Registers { ip, sp: cfa, bp, link: 0, is_return_address: true })
}

/// The interrupted frame. Its stack may be another one (`sigaltstack`), so its stack pointer is not checked.
#[inline(always)]
fn step_out_of_signal(registers: &Registers, memory: &impl ReadMemory) -> Option<Registers> {
    let sp = registers.sp;
    Some(Registers {
        ip: memory.read_u64(sp.wrapping_add(SIGNAL_IP))?,
        sp: memory.read_u64(sp.wrapping_add(SIGNAL_SP))?,
        bp: memory.read_u64(sp.wrapping_add(SIGNAL_BP))?,
        link: 0,
        is_return_address: false,
    })
}

#[cfg(test)]
mod tests;
