//! The kernel side as seen by the agent: programs, maps and the ring buffer. Only this folder uses aya.

mod adapt;
pub(crate) mod counters;
mod error;
pub(crate) mod features;
#[cfg(test)]
mod fixture;
pub(crate) mod footprint;
pub(crate) mod kernel_types;
pub(crate) mod live_set;
pub(crate) mod load;
pub(crate) mod processes;
mod program;
pub(crate) mod ring;
pub(crate) mod unwind_maps;
