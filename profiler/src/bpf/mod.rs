//! The kernel side as the agent holds it: programs, maps and the ring. Only this folder knows aya.

mod blocks;
pub mod counters;
#[cfg(test)]
mod fixture;
pub mod footprint;
pub mod kernel_types;
pub mod live_reader;
pub mod load;
pub mod missed;
mod private_stack;
pub mod processes;
mod program;
pub mod ring;
pub mod unwind_maps;
