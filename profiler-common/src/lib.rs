//! Types and constants that the kernel side and the agent of heapbpf share.
//!
//! Nothing here allocates, does I/O or uses maps; every function also runs on the host, where it is tested.

#![cfg_attr(not(any(test, feature = "user")), no_std)]
#![allow(missing_docs, reason = "an internal crate: names that explain themselves have no docs")]

pub mod arch;
pub mod counter;
pub mod hook;
pub mod hotspot;
pub mod interpreter;
pub mod interval;
pub mod limits;
pub mod live;
pub mod mapped;
pub mod pages;
pub mod php;
#[cfg(feature = "user")]
mod pod;
pub mod record;
pub mod ruby;
pub mod rule_cache;
pub mod sampling;
pub mod stack;
pub mod step;
pub mod target;
pub mod unwind;
pub mod v8;
