//! Running processes to be profiled, and waiting for their exits.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;

use heapbpf_base::ids::{Identity, Pid, StartTime};
use heapbpf_ledger::model::Program;
use heapbpf_linux::companion::is_companion;
use heapbpf_linux::file_view::FileView;
use heapbpf_linux::pidfd::{PidFd, Readiness};
use heapbpf_linux::proc::stat::Stat;
use heapbpf_linux::proc::{ProcError, hierarchy, process};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::retry_on_intr;
use thiserror::Error;

use crate::process::cgroup;
use crate::process::launch::shell_code;
use crate::process::program::started_as;

#[derive(Debug)]
pub(crate) struct Process {
    pub pid: Pid,
    pub started: StartTime,
    /// `argv[0]` of the process, or the kernel's name without arguments.
    pub command: String,
    pub comm: String,
    /// Control group as seen from this process: see [`of_memory`](cgroup::of_memory).
    pub cgroup: Option<Arc<str>>,
    /// Link by which the program was started, if it was one.
    pub program: Option<Program>,
    /// Rights with which the process opens files, and root directory from which on.
    pub files: FileView,
    pidfd: PidFd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// Exit code, or 128 plus the signal that killed it; `None` if unknown.
    pub code: Option<i32>,
}

#[derive(Debug, Error)]
pub(crate) enum TargetError {
    #[error("no process `{0}`; list processes with `pgrep -a NAME`")]
    NotFound(Pid),
    #[error("process `{0}` is heapbpf itself, which cannot profile its own allocations; give another process")]
    Myself(Pid),
    #[error("process `{0}` is a kernel thread and has no heap of its own")]
    KernelThread(Pid),
    #[error("process `{0}` is a zombie: it has exited and waits to be reaped; choose a running process")]
    Ended(Pid),
    #[error(
        "process `{0}` exited while heapbpf attached to it; to record a program from its start: `heapbpf -- PROGRAM`"
    )]
    EndedMeanwhile(Pid),
    #[error(transparent)]
    Proc(#[from] ProcError),
    #[error("cannot monitor process `{0}`: {1}")]
    Monitor(Pid, io::Error),
}

impl Process {
    pub(crate) fn open(pid: Pid) -> Result<Self, TargetError> {
        let pidfd = PidFd::open(pid).map_err(|error| match error.raw_os_error() {
            // EINVAL: the PID is a TID; ENOENT since Linux 6.15.
            Some(libc::ESRCH | libc::EINVAL | libc::ENOENT) => TargetError::NotFound(pid),
            _ => TargetError::Monitor(pid, error),
        })?;
        // All of this belongs to the process of the descriptor: see `PidFd::has_ended`.
        let stat = running(pid)?;
        let arguments = process::arguments(pid)?;
        let cgroups = hierarchy::cgroups(pid).unwrap_or_default();
        if pidfd.has_ended().map_err(|error| TargetError::Monitor(pid, error))? {
            return Err(TargetError::Ended(pid));
        }
        let command = arguments.into_iter().next().unwrap_or_else(|| stat.comm.clone());
        let cgroup = cgroup::of_memory(&cgroups).map(Arc::from);
        let program = started_as(pid, &command, &stat.comm);
        Ok(Self {
            pid,
            started: stat.start_ticks,
            command,
            comm: stat.comm,
            cgroup,
            program,
            files: FileView::of(Identity { pid, start_ticks: stat.start_ticks }),
            pidfd,
        })
    }

    pub(crate) fn identity(&self) -> Identity {
        Identity { pid: self.pid, start_ticks: self.started }
    }

    /// Whether the process has exited, reaped or not.
    pub(crate) fn has_ended(&self) -> bool {
        self.pidfd.has_ended().unwrap_or(true)
    }

    pub(crate) fn is_pid_reused(&self) -> bool {
        Stat::read(self.pid).is_ok_and(|stat| !stat.is_of(self.identity()))
    }

    /// Exit of the process, for zombies, and from Linux 6.15 on also for reaped processes.
    pub(crate) fn exit_now(&self) -> Option<Exit> {
        // A zombie's status is in its `/proc` entry, a reaped process's in the pidfd.
        let zombie = || Stat::read(self.pid).ok().filter(|stat| stat.is_of(self.identity()) && stat.state == 'Z');
        let status = self.pidfd.wait_status().or_else(|| zombie()?.exit_status)?;
        Some(Exit { code: Some(shell_code(ExitStatus::from_raw(status))) })
    }
}

pub(crate) fn running(pid: Pid) -> Result<Stat, TargetError> {
    if pid.0 == std::process::id() || is_companion(pid) {
        return Err(TargetError::Myself(pid));
    }
    let stat = Stat::of_process(pid)?;
    if stat.kernel_thread {
        return Err(TargetError::KernelThread(pid));
    }
    if stat.has_ended() { Err(TargetError::Ended(pid)) } else { Ok(stat) }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Waits for exits of processes. epoll removes closed descriptors, so dropping a process needs no call.
#[derive(Debug)]
pub(crate) struct Exits {
    epoll: Readiness,
}

const BATCH: usize = 256;

impl Exits {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: Readiness::owning(epoll::create(CreateFlags::CLOEXEC)?)? })
    }

    pub(crate) fn add(&self, pid: Pid, pidfd: impl AsFd) -> io::Result<()> {
        // An exit is reported once: a pidfd stays readable.
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        Ok(epoll::add(&self.epoll, pidfd, EventData::new_u64(u64::from(pid.0)), flags)?)
    }

    /// Waits for at least one exit; each is returned once.
    pub(crate) async fn next(&self) -> Vec<Pid> {
        loop {
            let exited = self.exited();
            if !exited.is_empty() {
                return exited;
            }
            if self.epoll.readable().await.is_err() {
                // The runtime is shutting down, and this task with it.
                std::future::pending::<()>().await;
            }
        }
    }

    fn exited(&self) -> Vec<Pid> {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; BATCH];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // A signal must not skip this: readiness is edge-triggered.
        let count = retry_on_intr(|| epoll::wait(&self.epoll, &mut events, Some(&now))).unwrap_or(0);
        events[..count].iter().map(|event| Pid(u32::try_from(event.data.u64()).unwrap_or(0))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use heapbpf_linux::pidfd::PidFd;

    use super::*;

    #[test]
    fn wait_statuses_become_shell_codes() {
        for (status, code) in [(0, 0), (7 << 8, 7), (9, 137), (11 | 0x80, 139)] {
            assert_eq!(shell_code(ExitStatus::from_raw(status)), code, "{status:#x}");
        }
    }

    #[tokio::test]
    async fn heapbpf_does_not_profile_itself() {
        let error = Process::open(Pid(std::process::id())).expect_err("refused");
        assert!(matches!(error, TargetError::Myself(_)), "{error}");
    }

    #[tokio::test]
    async fn a_missing_process_is_reported_by_pid() {
        let error = Process::open(Pid(i32::MAX.unsigned_abs())).expect_err("no such process");
        assert_eq!(error.to_string(), "no process `2147483647`; list processes with `pgrep -a NAME`");
    }

    #[tokio::test]
    async fn an_exit_code_is_available_before_and_after_reaping() {
        for reap in [false, true] {
            let mut command = std::process::Command::new("sh");
            let mut child = child_with_pipe(command.args(["-c", "read x; exit 7"]));
            let process = Process::open(Pid(child.id())).expect("it waits for its input");
            drop(child.stdin.take());
            ended(&process).await;
            if reap {
                child.wait().expect("it ended");
            }
            // Before Linux 6.15, the status of a reaped process is lost.
            let exit = process.exit_now();
            assert!(exit == Some(Exit { code: Some(7) }) || (reap && exit.is_none()), "{exit:?}, reaped: {reap}");
            let _ = child.wait();
        }
    }

    #[tokio::test]
    async fn a_process_keeps_its_identity_until_it_is_reaped() {
        let mut child = child_with_pipe(std::process::Command::new("sh").args(["-c", "read x"]));
        let process = Process::open(Pid(child.id())).expect("it waits for its input");
        assert_eq!(process.started, Stat::read(process.pid).expect("it runs").start_ticks);
        assert!(is_same(&process));
        // The same PID with another start time is another process.
        let earlier = StartTime(process.started.0 - 1);
        let other = Process { started: earlier, ..Process::open(process.pid).expect("it runs") };
        assert!(!is_same(&other) && other.is_pid_reused() && !process.is_pid_reused());
        assert_ne!(other.identity(), process.identity());
        drop(child.stdin.take());
        ended(&process).await;
        assert!(is_same(&process));
        assert!(matches!(Process::open(process.pid), Err(TargetError::Ended(_))));
        child.wait().expect("it ended");
        assert!(!is_same(&process));
    }

    #[tokio::test]
    async fn an_exec_changes_the_names_of_a_process() {
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

    /// Whether the PID still belongs to this process, running or zombie.
    fn is_same(process: &Process) -> bool {
        Stat::read(process.pid).is_ok_and(|stat| stat.is_of(process.identity()))
    }

    async fn ended(process: &Process) {
        let exits = crate::process::target::Exits::new().expect("descriptors");
        exits.add(process.pid, process).expect("a pidfd can be polled");
        assert_eq!(exits.next().await, [process.pid]);
        assert!(process.exit_now().is_some());
    }

    fn child_with_pipe(command: &mut std::process::Command) -> std::process::Child {
        command.stdin(std::process::Stdio::piped()).spawn().expect("sh starts")
    }

    fn waiting() -> Child {
        Command::new("sh").args(["-c", "read x"]).stdin(Stdio::piped()).spawn().expect("sh starts")
    }

    #[tokio::test]
    async fn every_exit_is_reported_once() {
        let exits = Exits::new().expect("descriptors");
        let mut children = [waiting(), waiting(), waiting()];
        let pidfds = children.each_ref().map(|child| PidFd::open(Pid(child.id())).expect("it waits"));
        for (child, pidfd) in children.iter().zip(&pidfds) {
            exits.add(Pid(child.id()), pidfd).expect("a pidfd can be polled");
        }
        for chosen in [1, 0] {
            drop(children[chosen].stdin.take());
            assert_eq!(exits.next().await, [Pid(children[chosen].id())]);
        }
        assert_eq!(exits.exited(), [], "the third still runs");
        drop(children[2].stdin.take());
        assert_eq!(exits.next().await, [Pid(children[2].id())]);
        children.iter_mut().for_each(|child| drop(child.wait()));
    }
}
