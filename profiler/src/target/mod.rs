//! Targets: the processes that are profiled.

pub mod address_space;
pub mod launch;
pub mod process;
