//! Allocators: their functions, and which of these functions a target's calls reach.

mod c_libraries;
pub(crate) mod custom;
pub(crate) mod functions;
pub(crate) mod hook_set;
mod jemalloc;
mod mimalloc;
pub(crate) mod no_return;
pub(crate) mod resolve;
pub(crate) mod selection;
pub(crate) mod spec;
mod tcmalloc;

#[cfg(test)]
mod tests;
