//! Targets: the processes that are profiled.

pub mod address_space;
pub mod cgroup;
pub mod definitions;
pub mod ends;
pub mod facts;
pub mod filter;
pub mod launch;
pub mod link_map;
pub mod module_pattern;
pub mod names;
pub mod pattern;
pub mod process;
pub mod scan;
