//! The command that a session starts, and processes stopped by it.

use std::fmt;
use std::time::Duration;

use rustix::process::kill_process;
use tokio::signal::unix::Signal;
use tokio::time::Instant;
use tracing::debug;

use crate::ids::Pid;
use crate::keeper::Launch;
use crate::linux::pidfd::{Readiness, raw_pid};
use crate::process::launch::{LaunchError, shell_code};

pub struct Command {
    pub(super) launch: Launch,
    pub(super) child: Signal,
    pub(super) stops: Readiness,
    pub(super) followed_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) pid: Pid,
    pub(super) is_alone: bool,
    /// It was stopped at its exec, and has been since.
    pub(super) since_exec: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Launched(pub(super) Pid);

/// Wrappers (`env`, `nice`, `sh -c 'exec …'`) are expected to execute the actual program within this time.
pub(super) const FOLLOW: Duration = Duration::from_secs(1);

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

    /// Its PID while another thread of the keeper traces it.
    pub(super) fn traced(&self) -> Option<Pid> {
        (!self.launch.is_over()).then(|| self.launch.pid())
    }

    pub(super) fn release(&mut self) {
        self.followed_until = None;
        if let Err(error) = self.launch.release() {
            debug!("{error}");
            let later = matches!(error, LaunchError::Unstoppable(_));
            self.followed_until = later.then(|| Instant::now() + RELEASE_PERIOD);
        }
    }

    pub(super) async fn changed(command: &mut Option<Self>) {
        match command {
            Some(Self { child, stops, followed_until: Some(until), .. }) => tokio::select! {
                _ = child.recv() => {}
                _ = stops.readable() => {}
                () = tokio::time::sleep_until(*until) => {}
            },
            _ => std::future::pending().await,
        }
    }

    pub fn has_ended(&mut self) -> bool {
        self.launch.try_reap().is_some()
    }

    /// Waits for its exit. Returns its exit code as a shell reports it.
    pub async fn wait(mut self) -> u8 {
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
