//! Targets: the processes that are profiled.

pub(crate) mod address_space;
pub(crate) mod cgroup;
pub(crate) mod definitions;
pub(crate) mod ends;
pub(crate) mod facts;
pub(crate) mod filter;
pub(crate) mod launch;
pub(crate) mod link_map;
pub(crate) mod module_pattern;
pub(crate) mod names;
pub(crate) mod pattern;
pub(crate) mod process;
pub(crate) mod scan;
