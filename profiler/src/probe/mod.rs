//! Probes: hooks placed at addresses and attached.

pub(crate) mod arch;
pub(crate) mod attach;
pub(crate) mod calls;
pub(crate) mod code;
pub(crate) mod cost;
pub(crate) mod foreign;
pub(crate) mod inlined;
pub(crate) mod jumps;
pub(crate) mod leftover;
pub(crate) mod place;
pub(crate) mod plan;
pub(crate) mod presence;
pub(crate) mod stub;
