//! What the kernel side and the agent of heapbpf share, so that neither can drift from the other.
//!
//! Nothing here allocates, does I/O or knows about maps; every function runs on the host as well, where it is tested.

#![cfg_attr(not(any(test, feature = "user")), no_std)]

pub mod counter;
pub mod hook;
pub mod interval;
pub mod limits;
pub mod live;
#[cfg(feature = "user")]
mod pod;
pub mod record;
pub mod sampling;
pub mod stack;
pub mod step;
pub mod target;
pub mod unwind;
