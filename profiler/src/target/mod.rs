//! Targets: the processes that are profiled.

pub mod address_space;
pub mod definitions;
pub mod link_map;
pub mod module_pattern;
pub mod process;
