//! Targets: the processes that are profiled.

pub(crate) mod address_space;
pub(crate) mod cgroup;
pub(crate) mod definitions;
pub(crate) mod launch;
pub(crate) mod link_map;
pub(crate) mod pattern;
pub(crate) mod program;
pub(crate) mod selection;
pub(crate) mod target;
