//! One unwind step: from the registers of a frame to those of its caller. The kernel side and the tests run this code.
//!
//! It reads the target's memory through [`ReadMemory`] only, has no loops and cannot panic: all arithmetic wraps, because the
//! target controls registers and memory. The caller's limit of frames bounds a walk.
//!
//! The registers, the psABI's frame chain and the kernel's signal frame are those of x86-64.

use crate::stack::StackEnd;
use crate::unwind::{
    BP_AT_BP, BP_AT_CFA, BP_SAME, KIND_AT_BP, KIND_AT_SP, KIND_BP, KIND_END, KIND_FRAME_POINTER, KIND_GAP, KIND_PLT,
    KIND_SIGNAL, KIND_SP, Rule, high_half, low_half,
};

/// Access to the target's memory.
pub trait ReadMemory {
    /// The 8 bytes at `address`, or `None` if they are unreadable.
    fn read_u64(&self, address: u64) -> Option<u64>;
}

/// The registers that unwinding tracks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    pub ip: u64,
    pub sp: u64,
    /// Frame pointer, or any value that the code keeps in rbp.
    pub bp: u64,
    /// Whether `ip` is a return address rather than the next instruction of a frame that was interrupted.
    pub is_return_address: bool,
}

impl Registers {
    /// The address to search for. A return address is that of the next instruction, which may have another rule or, after a
    /// call that never returns, belong to another function.
    #[inline(always)]
    pub const fn lookup_address(&self) -> u64 {
        if self.is_return_address { self.ip.wrapping_sub(1) } else { self.ip }
    }
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The caller's registers.
    Caller(Registers),
    /// There is no further frame.
    End(StackEnd),
}

/// Offsets of the registers in the kernel's signal frame, from rsp at the signal trampoline, in bytes. `ucontext` begins there,
/// and the general registers are 40 bytes in (`arch/x86/include/uapi/asm/sigcontext.h`: `struct sigcontext_64`, where rbp is
/// word 10, rsp word 15, rip word 16).
pub const SIGNAL_BP: u64 = 40 + 10 * 8;
pub const SIGNAL_SP: u64 = 40 + 15 * 8;
pub const SIGNAL_IP: u64 = 40 + 16 * 8;

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
    outwards(registers, Registers { ip, sp: bp.wrapping_add(16), bp: caller_bp, is_return_address: true })
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
    Some(Registers { ip, sp: cfa, bp, is_return_address: true })
}

/// The interrupted frame. Its stack may be another one (`sigaltstack`), so its stack pointer is not checked.
#[inline(always)]
fn step_out_of_signal(registers: &Registers, memory: &impl ReadMemory) -> Option<Registers> {
    let sp = registers.sp;
    Some(Registers {
        ip: memory.read_u64(sp.wrapping_add(SIGNAL_IP))?,
        sp: memory.read_u64(sp.wrapping_add(SIGNAL_SP))?,
        bp: memory.read_u64(sp.wrapping_add(SIGNAL_BP))?,
        is_return_address: false,
    })
}

/// Accepts the caller unless the walk makes no progress. Stack pointers need not increase: code that runs a call on another
/// stack (the recursion guard of rustc, `ffi` trampolines, coroutines) keeps the old stack pointer in rbp or memory.
#[inline(always)]
fn outwards(registers: &Registers, caller: Registers) -> Step {
    if caller.ip == 0 {
        // Thread entry code pushes this as its own return address.
        return Step::End(StackEnd::Complete);
    }
    if caller.sp == registers.sp {
        return Step::End(StackEnd::BrokenChain);
    }
    Step::Caller(caller)
}

#[cfg(test)]
mod tests;
