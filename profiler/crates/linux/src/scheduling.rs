//! Real-time priority for work while other processes are stopped.

#![expect(unsafe_code, reason = "rustix 1 has no sched_setscheduler")]

/// RAII guard that gives the calling thread priority over all ordinary threads. Without `CAP_SYS_NICE`, nothing changes.
#[derive(Debug)]
pub struct RealTime(());

impl RealTime {
    pub fn begin() -> Self {
        set(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1);
        Self(())
    }
}

impl Drop for RealTime {
    fn drop(&mut self) {
        set(libc::SCHED_OTHER, 0);
    }
}

fn set(policy: libc::c_int, priority: libc::c_int) {
    let parameter = libc::sched_param { sched_priority: priority };
    // SAFETY: `parameter` outlives the call, which affects the calling thread alone.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameter) };
    if result != 0 {
        tracing::debug!("cannot change the priority: {}", std::io::Error::last_os_error());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_priority_is_that_of_before_again() {
        // SAFETY: reads the policy of the calling thread.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let during = RealTime::begin();
        // Without the capability, it stays ordinary.
        assert!([libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, before].contains(&policy()));
        drop(during);
        assert_eq!(policy(), before);
    }
}
