//! Process file descriptors, and waiting until any descriptor is readable.

#![expect(
    unsafe_code,
    reason = "rustix has no PIDFD_GET_INFO; tokio's registration of descriptors is unsafe since 1.54"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use heapbpf_base::ids::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use tokio::io::unix::AsyncFd;

/// Descriptor of a process. Stays valid when the PID is reused. Readable (`poll`) once the process has exited. Linux 5.3.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    pub fn open(pid: Pid) -> io::Result<Self> {
        let pid = raw_pid(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        Ok(Self(pidfd_open(pid, PidfdFlags::NONBLOCK)?))
    }

    pub fn quit(&self) -> io::Result<()> {
        Ok(rustix::process::pidfd_send_signal(&self.0, rustix::process::Signal::QUIT)?)
    }

    /// Resumes a process that a signal has stopped (SIGCONT).
    pub(crate) fn resume(&self) -> io::Result<()> {
        Ok(rustix::process::pidfd_send_signal(&self.0, rustix::process::Signal::CONT)?)
    }

    pub fn kill(&self) -> io::Result<()> {
        Ok(rustix::process::pidfd_send_signal(&self.0, rustix::process::Signal::KILL)?)
    }

    /// Duplicates one of the process's descriptors (Linux 5.6).
    pub fn descriptor(&self, number: u32) -> io::Result<OwnedFd> {
        let number = i32::try_from(number).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
        Ok(pidfd_getfd(&self.0, number, PidfdGetfdFlags::empty())?)
    }

    /// Whether the process has exited, reaped or not. What was read from `/proc/PID` between `open` and a `false` belongs to this
    /// process.
    pub fn has_ended(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
        // A signal interrupts `poll` even without a timeout (`do_poll` in fs/select.c).
        let ready = retry_on_intr(|| poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })))?;
        Ok(ready > 0)
    }

    /// Wait status of the exited and reaped process, where the kernel keeps it (Linux 6.15).
    pub fn wait_status(&self) -> Option<i32> {
        // SAFETY: a structure of integers.
        let mut info: libc::pidfd_info = unsafe { std::mem::zeroed() };
        info.mask = PIDFD_INFO_EXIT;
        // SAFETY: the request number states the size of `info`, which is all that the kernel writes.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), libc::PIDFD_GET_INFO, &raw mut info) };
        (result == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

const PIDFD_INFO_EXIT: u64 = libc::PIDFD_INFO_EXIT as u64;

/// PID for system calls; `None` for 0, which has another meaning in system calls, and for numbers above `pid_t`.
pub fn raw_pid(pid: Pid) -> Option<rustix::process::Pid> {
    i32::try_from(pid.0).ok().and_then(rustix::process::Pid::from_raw)
}

#[derive(Debug)]
pub struct Readiness(AsyncFd<OwnedFd>);

impl Readiness {
    /// Registers a duplicate of `fd`, so that the original can be used and closed independently.
    pub fn of(fd: impl AsFd) -> io::Result<Self> {
        Self::owning(fd.as_fd().try_clone_to_owned()?)
    }

    pub fn owning(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: `AsyncFd` owns the descriptor until it is dropped, and `OwnedFd` always returns the same one.
        Ok(Self(unsafe { AsyncFd::register(fd) }?))
    }

    /// Waits until the descriptor is readable (edge-triggered). Fails when the runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_exit_status_is_available_after_reaping() {
        let mut child = Command::new("sh").args(["-c", "exit 7"]).spawn().expect("sh starts");
        let pidfd = PidFd::open(Pid(child.id())).expect("the child is not reaped yet");
        child.wait().expect("the child ends");
        // Linux 6.15 and later keep it.
        if let Some(status) = pidfd.wait_status() {
            assert_eq!(status, 7 << 8);
        }
    }

    #[test]
    fn an_exit_is_noticed_before_and_after_reaping() {
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("cat starts");
        let pidfd = PidFd::open(Pid(child.id())).expect("the child runs");
        assert!(!pidfd.has_ended().expect("polled"));
        drop(child.stdin.take());
        // Waits for the end and leaves the zombie.
        let id = || rustix::process::WaitId::PidFd(pidfd.as_fd());
        let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        // The descriptor is non-blocking, so `waitid` is, too.
        while rustix::process::waitid(id(), options).is_err() {
            std::thread::yield_now();
        }
        assert!(pidfd.has_ended().expect("polled"));
        child.wait().expect("the child ended");
        assert!(pidfd.has_ended().expect("polled"));
    }

    #[tokio::test]
    async fn a_signal_is_not_taken_for_an_exit() {
        let _caught = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::window_change()).expect("a handler");
        // SAFETY: takes no arguments and cannot fail.
        let this = unsafe { libc::pthread_self() };
        let pidfd = PidFd::open(Pid(std::process::id())).expect("this one runs");
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    // SAFETY: this thread outlives the scope.
                    unsafe { libc::pthread_kill(this, libc::SIGWINCH) };
                }
            });
            let answers: Vec<_> = (0..20_000).map(|_| pidfd.has_ended().ok()).collect();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(answers.iter().all(|&exited| exited == Some(false)));
        });
    }

    #[test]
    fn zero_is_not_a_process() {
        assert_eq!(PidFd::open(Pid(0)).expect_err("0 is no process").raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn only_valid_pids_are_converted() {
        for (number, taken) in [(0, None), (1, Some(1)), (1 << 22, Some(1 << 22)), (1 << 31, None), (u32::MAX, None)] {
            assert_eq!(raw_pid(Pid(number)).map(rustix::process::Pid::as_raw_pid), taken, "{number}");
        }
    }
}
