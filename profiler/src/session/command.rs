//! The command that a session starts, and processes stopped by it.

use std::fmt;
use std::time::Duration;

use heapbpf_base::ids::Pid;
use heapbpf_linux::exec_stop::ExecStopLayout;
use heapbpf_linux::pidfd::{Readiness, raw_pid};
use rustix::process::kill_process;
use tokio::signal::unix::Signal;
use tokio::time::Instant;
use tracing::debug;

use crate::keeper::{Launch, StoppedExecs};
use crate::process::launch::{LaunchError, shell_code};

pub struct Command {
    pub(super) launch: Launch,
    pub(super) child: Signal,
    pub(super) stops: Readiness,
    /// Latest time of the next poll of the command, while it is traced.
    pub(super) poll_at: Option<Instant>,
    /// `None` if the command is not to be stopped at its execs.
    pub(super) exec_layout: Option<ExecStopLayout>,
    /// Stops the command at its execs, as long as it is recorded and not traced.
    pub(super) execs: Option<StoppedExecs>,
    /// Whether the command is not checked for leaks at its exit, because it contains LeakSanitizer.
    pub(super) gave_way: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) pid: Pid,
    pub(super) is_alone: bool,
    /// Whether the process was stopped at its exec, and has been since.
    pub(super) since_exec: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Launched(pub(super) Pid);

/// Period of polling a command that is stopped at its exit, in case no signal reports it.
pub(super) const FOLLOW_PERIOD: Duration = Duration::from_millis(50);
const RELEASE_PERIOD: Duration = Duration::from_millis(50);
const REAP_PERIOD: Duration = Duration::from_millis(200);

impl Launched {
    pub fn signal(self, signal: rustix::process::Signal) {
        if let Some(pid) = raw_pid(self.0)
            && let Err(error) = kill_process(pid, signal)
        {
            debug!("process {}: {error}", self.0);
        }
    }
}

impl fmt::Display for Launched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.0)
    }
}

impl Command {
    pub fn launched(&self) -> Launched {
        Launched(self.launch.pid())
    }

    /// PID of the command while another thread of the keeper traces it.
    pub(super) fn traced(&self) -> Option<Pid> {
        (!self.launch.is_over()).then(|| self.launch.pid())
    }

    /// Detaches from the command: it runs as if it had never been traced.
    pub(super) fn release(&mut self) {
        self.poll_at = None;
        if let Err(error) = self.launch.release() {
            debug!("{error}");
            let later = matches!(error, LaunchError::Unstoppable(_));
            self.poll_at = later.then(|| Instant::now() + RELEASE_PERIOD);
        }
    }

    /// Whether the command waits at an exec for its probes.
    pub(super) fn is_stopped(&self) -> bool {
        self.execs.as_ref().is_some_and(StoppedExecs::is_stopped)
    }

    /// Lets the command run without stops at its later execs.
    pub(super) fn record_no_execs(&mut self) {
        self.execs = None;
    }

    pub(super) fn resume(&self) {
        if let Some(execs) = &self.execs {
            execs.resume();
        }
    }

    pub(super) async fn changed(command: &mut Option<Self>) {
        match command {
            Some(Self { child, stops, poll_at: Some(until), .. }) => tokio::select! {
                _ = child.recv() => {}
                _ = stops.readable() => {}
                () = tokio::time::sleep_until(*until) => {}
            },
            _ => std::future::pending().await,
        }
    }

    /// Whether the command contains LeakSanitizer, and was not checked for leaks at its exit for that reason.
    pub fn gave_way(&self) -> bool {
        self.gave_way
    }

    pub fn has_ended(&mut self) -> bool {
        self.launch.try_reap().is_some()
    }

    /// Waits for the command's exit. Returns its exit code as a shell reports it.
    pub async fn wait(mut self) -> u8 {
        self.record_no_execs();
        if let Err(error) = self.launch.release() {
            debug!("{error}");
        }
        loop {
            if let Some(status) = self.launch.try_reap() {
                return u8::try_from(shell_code(status)).unwrap_or(u8::MAX);
            }
            tokio::select! {
                _ = self.child.recv() => {}
                () = tokio::time::sleep(REAP_PERIOD) => {}
            }
        }
    }
}
