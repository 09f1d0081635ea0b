//! Probes: hooks placed at addresses and attached.

pub mod attach;
pub mod code;
pub mod cost;
pub mod jumps;
pub mod leftover;
pub mod place;
pub mod plan;
pub(crate) mod subject;
