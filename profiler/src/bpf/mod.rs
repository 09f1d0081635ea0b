//! The kernel side as the agent holds it: programs, maps and the ring. Only this folder and `probe::attach` know aya.

pub mod counters;
pub mod load;
mod program;
pub mod ring;
pub mod unwind_maps;
