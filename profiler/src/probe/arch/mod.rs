//! Instruction sets: decoding, which instructions the kernel emulates at a probe, and the values in registers.
//!
//! This module is pure, so both are compiled and tested on every processor. [`Native`] is the one of the build.

#[cfg_attr(not(target_arch = "aarch64"), allow(dead_code, reason = "for another processor; tested on all"))]
pub(super) mod aarch64;
pub(super) mod flow;
mod instruction_set;
mod origins;
pub(super) mod stub;
mod transfer;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "for another processor; tested on all"))]
pub(super) mod x86_64;

pub(crate) use self::instruction_set::Class;
pub use self::instruction_set::Emulation;
pub(super) use self::instruction_set::{Instruction, InstructionSet, PointerPlace};
pub(super) use self::origins::Origins;
#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::Aarch64 as Native;
#[cfg(not(target_arch = "aarch64"))]
pub(crate) use x86_64::X86_64 as Native;
