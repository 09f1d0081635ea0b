//! CPU-specific code, with the same interface for each CPU.

mod x86_64;

pub(super) use x86_64::*;
