//! Allocators: which functions they have, and where a target's calls reach them.

pub mod detect;
pub mod libc;
pub mod mmap;
pub mod resolve;
pub mod spec;
