//! Instruction decoding that more than one layer uses. Instructions of x86-64 are decoded by iced-x86.

pub(crate) mod aarch64;
