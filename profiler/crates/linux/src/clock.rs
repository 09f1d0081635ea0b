//! Clocks, and resource usage of the agent.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use heapbpf_base::ids::Pid;
use heapbpf_base::units::MonotonicNanos;
use rustix::time::{ClockId, Timespec, clock_gettime};

#[derive(Clone, Copy, Debug)]
pub struct Instant {
    /// Time of `CLOCK_MONOTONIC`, as `bpf_ktime_get_ns` counts.
    pub monotonic: MonotonicNanos,
    /// Nanoseconds since the Unix epoch.
    pub unix_ns: u64,
}

/// Present time of both clocks. Reads the wall clock once, so that setting it during a recording changes no duration and no
/// order.
pub fn now() -> Instant {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let first = FIRST.get_or_init(both_clocks);
    let monotonic = monotonic();
    let elapsed_ns = monotonic.0.saturating_sub(first.monotonic.0);
    Instant { monotonic, unix_ns: first.unix_ns.saturating_add(elapsed_ns) }
}

fn monotonic() -> MonotonicNanos {
    MonotonicNanos(nanos(clock_gettime(ClockId::Monotonic)))
}

/// Reads both clocks several times, and takes the reading that took least time: a thread that loses its processor between the two
/// reads them far apart.
fn both_clocks() -> Instant {
    const READINGS: usize = 8;
    let read = |_| {
        let before = monotonic();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let took_ns = monotonic().0.saturating_sub(before.0);
        let unix_ns = u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX);
        (took_ns, Instant { monotonic: MonotonicNanos(before.0 + took_ns / 2), unix_ns })
    };
    let readings = (0..READINGS).map(read);
    readings.min_by_key(|(took_ns, _)| *took_ns).map(|(_, instant)| instant).expect("there are readings")
}

/// Time since boot, including suspension, in nanoseconds, as process start times are counted.
pub fn boot_ns() -> u64 {
    nanos(clock_gettime(ClockId::Boottime))
}

/// CPU time used by the calling thread.
pub fn thread_cpu() -> Duration {
    Duration::from_nanos(nanos(clock_gettime(ClockId::ThreadCPUTime)))
}

pub fn cpu_ns() -> u64 {
    nanos(clock_gettime(ClockId::ProcessCPUTime))
}

/// CPU time used by all threads of a process, in nanoseconds; `None` when there is no such process.
#[expect(unsafe_code, reason = "rustix has no clock of another process")]
pub fn process_cpu_ns(pid: Pid) -> Option<u64> {
    let pid = libc::pid_t::try_from(pid.0).ok().filter(|pid| *pid > 0)?;
    let mut clock = 0;
    // SAFETY: the pointer is to a variable for a clock's number.
    if unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } != 0 {
        return None;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a variable for a time.
    if unsafe { libc::clock_gettime(clock, &raw mut time) } != 0 {
        return None;
    }
    Some(nanos(Timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_nsec }))
}

/// CPU time of children that have exited and were reaped; zero when `/proc` cannot be read.
pub fn children_cpu() -> Duration {
    let stat = procfs::process::Process::myself().and_then(|process| process.stat()).ok();
    let ticks = stat.map_or(0, |stat| u64::try_from(stat.cutime.saturating_add(stat.cstime)).unwrap_or(0));
    Duration::from_millis(ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1))
}

/// Peak resident size of this process, in bytes; 0 when `/proc` cannot be read.
pub fn rss_bytes_max() -> u64 {
    let peak_kib = procfs::process::Process::myself().and_then(|process| process.status()).ok().and_then(|s| s.vmhwm);
    peak_kib.unwrap_or(0) * 1024
}

fn nanos(time: Timespec) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_advance_by_the_same_time() {
        let (before, after) = (now(), now());
        assert_eq!(after.unix_ns - before.unix_ns, after.monotonic.0 - before.monotonic.0);
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos();
        assert!(u128::from(after.unix_ns).abs_diff(unix) < 60_000_000_000, "{after:?} {unix}");
    }

    #[test]
    fn cpu_time_of_a_process_is_read_by_pid() {
        let me = Pid(std::process::id());
        let (before, own, after) = (process_cpu_ns(me), cpu_ns(), process_cpu_ns(me));
        assert!(before <= Some(own) && Some(own) <= after, "{before:?} {own} {after:?}");
        assert_eq!(process_cpu_ns(Pid(0)), None);
        assert_eq!(process_cpu_ns(Pid(u32::MAX)), None);
    }
}
