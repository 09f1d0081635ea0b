//! Probes: hooks placed at addresses and attached.

pub mod attach;
pub mod code;
pub mod jumps;
pub mod place;
pub mod plan;
