//! Probes: hooks placed at addresses and attached.

pub(crate) mod attach;
pub(crate) mod code;
pub(crate) mod cost;
pub(crate) mod jumps;
pub(crate) mod leftover;
pub(crate) mod place;
pub(crate) mod plan;
pub(crate) mod subject;
