//! Allocators: which functions they have, and where a target's calls reach them.

pub(crate) mod custom;
pub(crate) mod cxx;
pub(crate) mod detect;
pub(crate) mod hook_set;
pub(crate) mod jemalloc;
pub(crate) mod libc;
pub(crate) mod mimalloc;
pub(crate) mod mmap;
pub(crate) mod resolve;
pub(crate) mod rust;
pub(crate) mod selection;
pub(crate) mod spec;
pub(crate) mod tcmalloc;

#[cfg(test)]
mod tests;
