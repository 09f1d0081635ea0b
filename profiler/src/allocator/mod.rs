//! Allocators: their functions, and which of these a target's calls reach.

pub(crate) mod custom;
pub(crate) mod detect;
mod glibc;
pub(crate) mod hook_set;
mod jemalloc;
pub(crate) mod libc;
mod mimalloc;
pub(crate) mod mmap;
mod musl;
pub(crate) mod resolve;
mod rust;
pub(crate) mod selection;
pub(crate) mod spec;
mod tcmalloc;

#[cfg(test)]
mod tests;
