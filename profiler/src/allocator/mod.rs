//! Allocators: which functions they have, and where a target's calls reach them.

pub mod custom;
pub mod cxx;
pub mod detect;
pub mod hook_set;
pub mod jemalloc;
pub mod libc;
pub mod mimalloc;
pub mod mmap;
pub mod resolve;
pub mod rust;
pub mod selection;
pub mod spec;
pub mod tcmalloc;

#[cfg(test)]
mod tests;
