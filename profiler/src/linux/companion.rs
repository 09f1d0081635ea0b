//! Helper processes: this program started again with a hidden command, connected by a [`Channel`].

#![expect(unsafe_code, reason = "runs code between fork and exec")]

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};

use super::channel::Channel;
use crate::ids::Pid;

/// The file that this process runs, even if its path now names another.
const PROGRAM: &str = "/proc/self/exe";

/// Signals that a terminal, a service manager or `pkill heapbpf` sends to all processes of a group or name. A companion
/// exits only when the agent does.
const IGNORED: [libc::c_int; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

/// Companions of this process that may be running.
static RUNNING: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// A running companion process. Dropping it closes the channel, at which the companion completes its current work and
/// exits, and waits for that.
#[derive(Debug)]
pub(crate) struct Companion {
    child: Child,
    channel: Option<Channel>,
}

impl Companion {
    /// Starts this program with a hidden command. The companion has its own session, ignores the signals of terminals
    /// and service managers, has its end of the channel as standard input, no standard output, and shares standard
    /// error.
    pub(crate) fn start(command: &str) -> io::Result<Self> {
        let (channel, theirs) = Channel::pair()?;
        let mut program = Command::new(PROGRAM);
        // Not `heapbpf`, so that `kill -USR1 $(pidof heapbpf)` does not reach it.
        program.arg0(format!("heapbpf-{command}")).arg(command);
        program.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
        let before_exec = || {
            rustix::process::setsid()?;
            for signal in IGNORED {
                // SAFETY: ignoring a signal runs no code.
                unsafe { libc::signal(signal, libc::SIG_IGN) };
            }
            Ok(())
        };
        // SAFETY: the closure makes system calls with plain numbers, allocates no memory and takes no lock.
        unsafe { program.pre_exec(before_exec) };
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let child = program.spawn()?;
        running.push(Pid(child.id()));
        Ok(Self { child, channel: Some(channel) })
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// `None` after [`hang_up`](Self::hang_up).
    pub(crate) fn channel(&self) -> Option<&Channel> {
        self.channel.as_ref()
    }

    /// Closes the channel: the companion completes its current work and exits.
    pub(crate) fn hang_up(&mut self) {
        self.channel = None;
    }

    pub(crate) fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Kills it and waits for its exit.
    pub(crate) fn kill(&mut self) {
        self.channel = None;
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        self.hang_up();
        let _ = self.child.wait();
        let pid = self.pid();
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).retain(|&other| other != pid);
    }
}

pub(crate) fn is_companion(pid: Pid) -> bool {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid)
}

/// Sets the name of this process in `ps` and `top`. At most 15 bytes are kept.
pub(crate) fn set_name(name: &str) {
    // The process has the name of its main thread; this may be another thread.
    let _ = std::fs::write("/proc/self/comm", name);
}
