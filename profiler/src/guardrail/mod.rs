//! What profiling may cost: given clocks and counts as numbers, says when a limit is exceeded.
//!
//! Pure: no clock, file or map. What to do about it is the session's.

pub(crate) mod cpu;
pub(crate) mod overhead;
mod window;

/// Limits that the user has set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Bytes that the agent and the kernel's maps may take together.
    pub memory_bytes_max: Option<u64>,
    /// Of one core, in percent: what the agent may use.
    pub cpu_percent_max: Option<f64>,
    /// Of a target's CPU time, in percent: what its probes may use.
    pub overhead_percent_max: Option<f64>,
}

impl Limits {
    /// Whether there is one.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }
}
