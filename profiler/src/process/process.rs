//! One process being profiled: who it is, and whether it still runs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use thiserror::Error;

use super::cgroup;
use crate::ids::{Identity, Pid, StartTime};
use crate::linux::companion::is_companion;
use crate::linux::pidfd::PidFd;
use crate::linux::proc::stat::Stat;
use crate::linux::proc::{ProcError, cgroups, process};

/// A process that was found running.
#[derive(Debug)]
pub(crate) struct Process {
    /// Its number.
    pub pid: Pid,
    /// When it started: tells it from others that had its number before, or get it after its end.
    pub started: StartTime,
    /// `argv[0]`; the kernel's name where there is none.
    pub command: String,
    /// The kernel's name (`/proc/PID/comm`).
    pub comm: String,
    /// Its control group as this process sees it: see [`of_memory`](cgroup::of_memory).
    pub cgroup: Option<Arc<str>>,
    pidfd: PidFd,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// Its exit status, 128 plus the signal's number when a signal killed it; `None` where the kernel does not tell.
    pub code: Option<i32>,
}

/// Why a process cannot be a target.
#[derive(Debug, Error)]
pub(crate) enum TargetError {
    /// There is none.
    #[error("no process `{0}`; list processes with `pgrep -a NAME`")]
    NotFound(Pid),
    /// It is this one.
    #[error(
        "process `{0}` is heapbpf itself, whose own bookkeeping would be counted as it profiles; give another process"
    )]
    Myself(Pid),
    /// It has no memory of its own.
    #[error("process `{0}` is a kernel thread and has no heap of its own")]
    KernelThread(Pid),
    /// It is over.
    #[error("process `{0}` has ended, and only waits for its parent to ask how; choose one that runs")]
    Ended(Pid),
    /// `/proc` does not tell.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// It cannot be watched.
    #[error("cannot watch process `{0}`: {1}")]
    Watch(Pid, io::Error),
}

impl Process {
    /// Takes hold of a running process.
    pub(crate) fn open(pid: Pid) -> Result<Self, TargetError> {
        let pidfd = PidFd::open(pid).map_err(|error| match error.raw_os_error() {
            // EINVAL: the number is a thread's; ENOENT since Linux 6.15.
            Some(libc::ESRCH | libc::EINVAL | libc::ENOENT) => TargetError::NotFound(pid),
            _ => TargetError::Watch(pid, error),
        })?;
        // All of this is of the process that the descriptor stands for: see `PidFd::has_ended`.
        let stat = running(pid)?;
        let arguments = process::arguments(pid)?;
        let cgroups = cgroups::of(pid).unwrap_or_default();
        if pidfd.has_ended().map_err(|error| TargetError::Watch(pid, error))? {
            return Err(TargetError::Ended(pid));
        }
        let command = arguments.into_iter().next().unwrap_or_else(|| stat.comm.clone());
        let cgroup = cgroup::of_memory(&cgroups).map(Arc::from);
        Ok(Self { pid, started: stat.start_ticks, command, comm: stat.comm, cgroup, pidfd })
    }

    /// Which process it is, for good.
    pub(crate) fn identity(&self) -> Identity {
        Identity { pid: self.pid, start_ticks: self.started }
    }

    /// Whether it has ended, reaped or not.
    pub(crate) fn has_ended(&self) -> bool {
        self.pidfd.has_ended().unwrap_or(true)
    }

    /// Whether its number has been given to another process.
    pub(crate) fn is_succeeded(&self) -> bool {
        Stat::read(self.pid).is_ok_and(|stat| !stat.is_of(self.identity()))
    }

    /// How the process ended, if it has and the kernel tells: at once while it is a zombie, and from Linux 6.15 on also when
    /// it was reaped.
    pub(crate) fn exit_now(&self) -> Option<Exit> {
        // A zombie's status is in its `/proc` entry, a reaped process's in the pidfd.
        let zombie = || Stat::read(self.pid).ok().filter(|stat| stat.is_of(self.identity()) && stat.state == 'Z');
        let status = self.pidfd.wait_status().or_else(|| zombie()?.exit_status)?;
        Some(Exit { code: Some(exit_code(status)) })
    }
}

/// The first line about a process that can be a target.
pub(super) fn running(pid: Pid) -> Result<Stat, TargetError> {
    if pid.0 == std::process::id() || is_companion(pid) {
        return Err(TargetError::Myself(pid));
    }
    let stat = Stat::read(pid)?;
    if stat.kernel_thread {
        return Err(TargetError::KernelThread(pid));
    }
    if stat.has_ended() { Err(TargetError::Ended(pid)) } else { Ok(stat) }
}

impl AsFd for Process {
    /// Its pidfd: readable once it has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// The shell's number for a wait status: the exit code, or 128 plus the signal.
fn exit_code(status: i32) -> i32 {
    match status & 0x7f {
        0 => (status >> 8) & 0xff,
        signal => 128 + signal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_statuses_become_shell_codes() {
        for (status, code) in [(0, 0), (7 << 8, 7), (9, 137), (11 | 0x80, 139)] {
            assert_eq!(exit_code(status), code, "{status:#x}");
        }
    }

    #[tokio::test]
    async fn heapbpf_does_not_profile_itself() {
        let error = Process::open(Pid(std::process::id())).expect_err("refused");
        assert!(matches!(error, TargetError::Myself(_)), "{error}");
    }

    #[tokio::test]
    async fn a_process_that_does_not_exist_is_named() {
        let error = Process::open(Pid(i32::MAX.unsigned_abs())).expect_err("no such process");
        assert_eq!(error.to_string(), "no process `2147483647`; list processes with `pgrep -a NAME`");
    }

    #[tokio::test]
    async fn an_exit_code_is_told_before_and_after_reaping() {
        for reap in [false, true] {
            let mut command = std::process::Command::new("sh");
            let mut child = child_with_pipe(command.args(["-c", "read x; exit 7"]));
            let process = Process::open(Pid(child.id())).expect("it waits for its input");
            drop(child.stdin.take());
            ended(&process).await;
            if reap {
                child.wait().expect("it ended");
            }
            // Before 6.15 the status of a reaped process is not kept.
            let exit = process.exit_now();
            assert!(exit == Some(Exit { code: Some(7) }) || (reap && exit.is_none()), "{exit:?}, reaped: {reap}");
            let _ = child.wait();
        }
    }

    #[tokio::test]
    async fn a_process_stays_itself_until_it_is_reaped() {
        let mut child = child_with_pipe(std::process::Command::new("sh").args(["-c", "read x"]));
        let process = Process::open(Pid(child.id())).expect("it waits for its input");
        assert_eq!(process.started, process::start_time(process.pid).expect("it runs"));
        assert!(is_same(&process));
        // Who has the number with another start is somebody else.
        let earlier = StartTime(process.started.0 - 1);
        let other = Process { started: earlier, ..Process::open(process.pid).expect("it runs") };
        assert!(!is_same(&other) && other.is_succeeded() && !process.is_succeeded());
        assert_ne!(other.identity(), process.identity());
        drop(child.stdin.take());
        ended(&process).await;
        assert!(is_same(&process));
        assert!(matches!(Process::open(process.pid), Err(TargetError::Ended(_))));
        child.wait().expect("it ended");
        assert!(!is_same(&process));
    }

    #[tokio::test]
    async fn an_exec_gives_other_names_to_the_same_process() {
        let mut child = child_with_pipe(std::process::Command::new("sh").args(["-c", "read x; exec cat"]));
        let process = Process::open(Pid(child.id())).expect("it waits for its input");
        assert_eq!((process.command.as_str(), process.comm.as_str()), ("sh", "sh"));
        std::io::Write::write_all(child.stdin.as_mut().expect("a pipe"), b"\n").expect("it reads");
        while process::arguments(process.pid).expect("it runs") != ["cat"] {
            std::thread::yield_now();
        }
        let renamed = Process::open(process.pid).expect("it runs");
        assert_eq!((renamed.command.as_str(), renamed.comm.as_str()), ("cat", "cat"));
        assert_eq!(renamed.identity(), process.identity());
        drop(child.stdin.take());
        child.wait().expect("it ends");
    }

    /// Whether the number is still this process's: it runs, or it has ended and is not reaped.
    fn is_same(process: &Process) -> bool {
        Stat::read(process.pid).is_ok_and(|stat| stat.is_of(process.identity()))
    }

    async fn ended(process: &Process) {
        let ends = crate::process::ends::Ends::new().expect("descriptors are to be had");
        ends.add(process.pid, process).expect("a pidfd can be waited for");
        assert_eq!(ends.next().await, [process.pid]);
        assert!(process.exit_now().is_some());
    }

    fn child_with_pipe(command: &mut std::process::Command) -> std::process::Child {
        command.stdin(std::process::Stdio::piped()).spawn().expect("sh starts")
    }
}
