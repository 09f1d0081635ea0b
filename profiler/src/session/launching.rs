//! A session that starts its target itself.

use std::ffi::OsString;
use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::kill_process;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::listener::Listener;
use super::target::Target;
use super::{Hold, Session};
use crate::collect::Method;
use crate::ids::Pid;
use crate::keeper::Launch;
use crate::linux::inherited::Inherited;
use crate::linux::pidfd::raw_pid;
use crate::linux::readiness::Readiness;
use crate::model::Origin;
use crate::process::launch::{LaunchError, ProgramStop, shell_code};

/// A command that a session has started.
pub struct Command {
    launch: Launch,
    /// Its end.
    child: Signal,
    /// Its stops, of which the keeper knows.
    stirs: Readiness,
    /// Until when its execs are waited for; while it is held.
    followed_until: Option<Instant>,
}

/// A process that is held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pid: Pid,
    /// It has no thread that is not held.
    alone: bool,
    /// It was held at its exec, and has been since.
    since_exec: bool,
}

/// The number of a command that a session has started.
#[derive(Clone, Copy, Debug)]
pub struct Launched(pub(super) Pid);

/// Wrappers (`env`, `nice`, `sh -c 'exec …'`) become the program that is meant within this time.
const FOLLOW: Duration = Duration::from_secs(1);

/// How often a command that is held at its end is looked after when no signal told of it.
const FOLLOW_PERIOD: Duration = Duration::from_millis(50);

/// How often a command that could not be let go is asked again.
const RELEASE_PERIOD: Duration = Duration::from_millis(50);

/// How often the end of a command is asked for when no signal told of it.
const REAP_PERIOD: Duration = Duration::from_millis(200);

impl Launched {
    /// Forwards a signal that was sent to heapbpf.
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

impl Session {
    /// Starts a command and puts probes on it before any of its code has run.
    ///
    /// # Errors
    ///
    /// When it cannot be started, or has no allocator.
    pub fn launch(&mut self, command: &[OsString], inherited: Inherited) -> Result<()> {
        let child = signal(SignalKind::child()).context("cannot listen for signals")?;
        let mut launch = Launch::start(self.probes.keeper(), command, inherited)?;
        let stirs = Readiness::of(&launch).context("cannot watch the program")?;
        if self.config.checks.is_some() {
            launch.hold_at_exit()?;
        }
        let pid = launch.pid();
        self.begin_command(&mut launch).with_context(|| {
            format!(
                "process `{pid}` was started, and is left to itself without being profiled (`ps {pid}`, `kill {pid}`)"
            )
        })?;
        self.command = Some(Command { launch, child, stirs, followed_until: Some(Instant::now() + FOLLOW) });
        Ok(())
    }

    fn begin_command(&mut self, launch: &mut Launch) -> Result<()> {
        let mut target = Target::open(launch.pid(), Origin::Launched, None)?;
        (target.requested, target.held_before_mapping) = (true, true);
        self.mark(launch.pid());
        self.adopt(target);
        self.lifecycle.settle(launch.pid());
        self.step(launch)?;
        Ok(launch.follow_execs()?)
    }

    /// The command that was started.
    pub fn launched(&self) -> Option<Launched> {
        self.command.as_ref().map(Command::launched)
    }

    /// Runs a command that is held at an exec until its code is mapped, with probes on each piece as it comes.
    fn step(&mut self, launch: &mut Launch) -> Result<(), LaunchError> {
        let pid = launch.pid();
        self.held = Some(Held { pid, alone: launch.is_alone(), since_exec: false });
        let start_up = launch.step_until_loaded(&mut |at_exec| {
            if at_exec {
                // An exec ends all other threads.
                self.held = Some(Held { pid, alone: true, since_exec: true });
            }
            while !self.drain() {}
            self.settle(pid);
            Ok::<(), LaunchError>(())
        });
        self.held = None;
        // Not within the macro, which evaluates nothing where nobody reads it.
        let start_up = start_up?;
        debug!("process {pid}: {start_up:?}");
        Ok(())
    }

    /// Whether a process is held.
    pub(super) fn is_held(&self, pid: Pid) -> bool {
        self.held.is_some_and(|held| held.pid == pid)
    }

    /// Whether no thread of a process can run at present.
    pub(super) fn is_stopped(&self, pid: Pid) -> bool {
        self.held.is_some_and(|held| held.pid == pid && held.alone)
    }

    /// Whether a process is held and has been since its exec: what it has called since is known, all of it.
    pub(super) fn is_held_since_exec(&self, pid: Pid) -> bool {
        self.held.is_some_and(|held| held.pid == pid && held.since_exec)
    }

    /// Stops a process that has just begun, where it is: to be done before anything else, because each millisecond is one of
    /// its start-up. `None` where that cannot be done or is not wished, or it is held already.
    pub(super) fn seize(&self, pid: Pid) -> Option<Launch> {
        if self.config.hold == Hold::Never
            || self.lifecycle.has_grace()
            || self.held.is_some()
            || self.launched().is_some_and(|launched| launched.0 == pid)
        {
            return None;
        }
        Launch::hold(self.probes.keeper(), pid).inspect_err(|error| debug!("{error}")).ok()
    }

    /// Leads a process that was seized until it has mapped what it starts with, so that it makes no call to an allocator
    /// before probes are there; then lets it go.
    pub(super) fn lead(&mut self, mut launch: Launch) {
        let led = self.step(&mut launch).and_then(|()| launch.release());
        if let Err(error) = led {
            debug!("{error}");
        }
        self.prepare_to_seize();
    }

    /// Saves time when the next process begins.
    pub(super) fn prepare_to_seize(&self) {
        if self.config.hold != Hold::Never && !self.lifecycle.has_grace() {
            self.probes.keeper().prepare_tracer();
        }
    }

    /// A command's process has stopped or ended, or its time to be followed is over.
    pub(super) fn attend_command(&mut self, listener: &mut dyn Listener) {
        let Some(mut command) = self.command.take() else { return };
        if let Err(error) = self.follow(&mut command, listener) {
            warn!("{error}");
            command.release();
        }
        self.command = Some(command);
    }

    fn follow(&mut self, command: &mut Command, listener: &mut dyn Listener) -> Result<(), LaunchError> {
        let Some(until) = command.followed_until else { return Ok(()) };
        while let Some(stop) = command.launch.next_stop()? {
            match (stop, self.config.checks) {
                (ProgramStop::Exec, _) => self.step(&mut command.launch)?,
                (ProgramStop::Exiting, Some(method)) => {
                    listener.looked(self.inspect_launched(&command.launch, method, true));
                }
                (ProgramStop::Exiting, None) => {}
            }
            command.launch.follow_execs()?;
        }
        if self.config.checks.is_some() {
            command.followed_until = Some(Instant::now() + FOLLOW_PERIOD);
        } else if Instant::now() >= until {
            command.release();
        }
        Ok(())
    }

    /// Looks at what was started, if it can be stopped and does not end by itself just now.
    pub(super) fn inspect_command(&mut self, method: Method, listener: &mut dyn Listener) {
        let Some(mut command) = self.command.take() else { return };
        match command.launch.stop() {
            Ok(true) => listener.looked(self.inspect_launched(&command.launch, method, false)),
            Ok(false) => {}
            Err(error) => listener.looked(Err(error.into())),
        }
        if let Err(error) = command.launch.follow_execs() {
            warn!("{error}");
            command.release();
        }
        self.command = Some(command);
    }
}

impl Command {
    /// Its number.
    pub fn launched(&self) -> Launched {
        Launched(self.launch.pid())
    }

    /// Lets go of it now, or as soon as it can be stopped.
    fn release(&mut self) {
        self.followed_until = None;
        if let Err(error) = self.launch.release() {
            debug!("{error}");
            let later = matches!(error, LaunchError::Unstoppable(_));
            self.followed_until = later.then(|| Instant::now() + RELEASE_PERIOD);
        }
    }

    /// Resolves when it is to be looked after.
    pub(super) async fn stirs(command: &mut Option<Self>) {
        match command {
            Some(Self { child, stirs, followed_until: Some(until), .. }) => tokio::select! {
                _ = child.recv() => {}
                _ = stirs.readable() => {}
                () = tokio::time::sleep_until(*until) => {}
            },
            _ => std::future::pending().await,
        }
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.launch.try_reap().is_some()
    }

    /// Waits for its end; its exit code as a shell tells it.
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
