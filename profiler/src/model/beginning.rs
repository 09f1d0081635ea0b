//! Since when a process is a target.

use serde::{Deserialize, Serialize};

use crate::ids::Pid;
use crate::units::MonotonicNanos;

/// How a process became a target, and from when on its calls were seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beginning {
    /// How.
    pub origin: Origin,
    /// When its probes were in place, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time: MonotonicNanos,
    /// How long the program, or the copy of its parent, had existed by then, where that is known.
    pub delay_ns: Option<u64>,
    /// No call can have been made before: the probes were there before the allocator was.
    pub from_first_call: bool,
}

impl Beginning {
    /// Of a process that ran already.
    pub fn running(time: MonotonicNanos) -> Self {
        Self { origin: Origin::Running, time, delay_ns: None, from_first_call: false }
    }
}

/// How a process became a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// It ran already.
    Running,
    /// It was made by a fork of this target.
    Forked(Pid),
    /// It called exec.
    Executed,
    /// heapbpf started it.
    Launched,
}
