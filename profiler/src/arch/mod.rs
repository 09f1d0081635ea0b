//! Instructions as more than one layer reads them. Those of x86-64 are decoded by iced-x86.

pub(crate) mod aarch64;
