//! A process that is watched for its end.

#![expect(unsafe_code, reason = "rustix has no PIDFD_GET_INFO")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{PidfdFlags, pidfd_open};

use super::pid;
use crate::ids::Pid;

/// A handle on a process that outlives it and is never another one's, even when its number is used again. Readable
/// (`poll`) once the process has ended. Needs Linux 5.3.
#[derive(Debug)]
pub(crate) struct PidFd(OwnedFd);

impl PidFd {
    /// Takes hold of a running process.
    ///
    /// # Errors
    ///
    /// `ESRCH` when there is no such process.
    pub(crate) fn open(pid: Pid) -> io::Result<Self> {
        let pid = pid::raw(pid).ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))?;
        Ok(Self(pidfd_open(pid, PidfdFlags::NONBLOCK)?))
    }

    /// Kills the process.
    ///
    /// # Errors
    ///
    /// `ESRCH` if it has ended, `EPERM` without the right to.
    pub(crate) fn kill(&self) -> io::Result<()> {
        Ok(rustix::process::pidfd_send_signal(&self.0, rustix::process::Signal::KILL)?)
    }

    /// Whether the process has ended, reaped or not. While it has not, its number is its own: what was read of
    /// `/proc/PID` between [`open`](Self::open) and a `false` of this is this very process's.
    ///
    /// # Errors
    ///
    /// When the kernel has no memory for it.
    pub(crate) fn has_ended(&self) -> io::Result<bool> {
        let mut waited_for = [PollFd::new(&self.0, PollFlags::IN)];
        // A signal interrupts this though it does not wait (`do_poll` in fs/select.c).
        let ready = retry_on_intr(|| poll(&mut waited_for, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })))?;
        Ok(ready > 0)
    }

    /// The wait status of the ended and reaped process, where the kernel keeps it (Linux 6.15).
    pub(crate) fn wait_status(&self) -> Option<i32> {
        let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
        // SAFETY: the request number states the size of `PidfdInfo`, which the kernel fills and nothing else.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
        (result == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for PidFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// `struct pidfd_info`, first version
/// (<https://github.com/torvalds/linux/blob/v6.15/include/uapi/linux/pidfd.h#L38-L84>).
#[derive(Default)]
#[repr(C)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    /// pid, tgid, ppid, then four pairs of user and group ids.
    ids: [u32; 11],
    exit_code: i32,
}

/// `PIDFD_INFO_EXIT`: the exit status, kept once the process is reaped.
const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// `PIDFD_GET_INFO`: `_IOWR(0xFF, 11, struct pidfd_info)` with the first version's size.
const PIDFD_GET_INFO: libc::c_ulong = (3 << 30) | ((size_of::<PidfdInfo>() as libc::c_ulong) << 16) | (0xff << 8) | 11;

const _: () = assert!(size_of::<PidfdInfo>() == 64);

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_exit_status_is_told_after_the_process_is_gone() {
        let mut child = Command::new("sh").args(["-c", "exit 7"]).spawn().expect("sh starts");
        let pidfd = PidFd::open(Pid(child.id())).expect("the child is not reaped yet");
        child.wait().expect("the child ends");
        // Kernels before 6.15 do not keep it.
        if let Some(status) = pidfd.wait_status() {
            assert_eq!(status, 7 << 8);
        }
    }

    #[test]
    fn an_end_is_noticed_before_and_after_reaping() {
        let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("cat starts");
        let pidfd = PidFd::open(Pid(child.id())).expect("the child runs");
        assert!(!pidfd.has_ended().expect("polled"));
        drop(child.stdin.take());
        // Waits for the end and leaves the zombie.
        let id = || rustix::process::WaitId::PidFd(pidfd.as_fd());
        let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        // The descriptor does not block, so neither does waiting for it.
        while rustix::process::waitid(id(), options).is_err() {
            std::thread::yield_now();
        }
        assert!(pidfd.has_ended().expect("polled"));
        child.wait().expect("the child ended");
        assert!(pidfd.has_ended().expect("polled"));
    }

    #[tokio::test]
    async fn signals_end_nothing() {
        let _caught = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::window_change()).expect("a handler");
        // SAFETY: takes no arguments and cannot fail.
        let this = unsafe { libc::pthread_self() };
        let pidfd = PidFd::open(Pid(std::process::id())).expect("this one runs");
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    // SAFETY: the thread waits for this one's end.
                    unsafe { libc::pthread_kill(this, libc::SIGWINCH) };
                }
            });
            let answers: Vec<_> = (0..20_000).map(|_| pidfd.has_ended().ok()).collect();
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(answers.iter().all(|&ended| ended == Some(false)));
        });
    }

    #[test]
    fn no_process_has_number_zero() {
        assert_eq!(PidFd::open(Pid(0)).expect_err("0 is no process").raw_os_error(), Some(libc::ESRCH));
    }
}
