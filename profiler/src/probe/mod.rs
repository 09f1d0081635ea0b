//! Probes: hooks placed at addresses and attached.

pub mod attach;
pub mod plan;
