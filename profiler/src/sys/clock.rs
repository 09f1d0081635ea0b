//! Clocks, and what the agent itself uses.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::units::MonotonicNanos;

/// An instant on both clocks, so that the kernel's times can be placed in the world's.
#[derive(Clone, Copy, Debug)]
pub struct Instant {
    /// `CLOCK_MONOTONIC`, as `bpf_ktime_get_ns` counts.
    pub monotonic: MonotonicNanos,
    /// Nanoseconds since the Unix epoch.
    pub unix_ns: u64,
}

/// Now.
#[must_use]
pub fn now() -> Instant {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Instant {
        monotonic: MonotonicNanos(nanos(clock_gettime(ClockId::Monotonic))),
        unix_ns: u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX),
    }
}

/// CPU time that this process has used, in nanoseconds.
#[must_use]
pub fn cpu_ns() -> u64 {
    nanos(clock_gettime(ClockId::ProcessCPUTime))
}

/// Largest resident size that this process has had, in bytes; 0 when `/proc` does not tell.
#[must_use]
pub fn rss_bytes_max() -> u64 {
    let peak_kib = procfs::process::Process::myself().and_then(|process| process.status()).ok().and_then(|s| s.vmhwm);
    peak_kib.unwrap_or(0) * 1024
}

fn nanos(time: Timespec) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
