//! The kernel side as the agent holds it: programs, maps and the ring. Only this folder knows aya.

mod blocks;
pub(crate) mod counters;
#[cfg(test)]
mod fixture;
pub(crate) mod footprint;
pub(crate) mod kernel_types;
pub(crate) mod live_reader;
pub(crate) mod load;
pub(crate) mod missed;
mod private_stack;
pub(crate) mod processes;
mod program;
pub(crate) mod ring;
pub(crate) mod unwind_maps;
