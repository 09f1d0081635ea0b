//! Starting a command, and stopping new processes until their probes are attached.

use std::ffi::OsString;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::command::{Command, FOLLOW, FOLLOW_PERIOD, Held, Launched};
use super::config::{Hold, Listener};
use super::followed::Followed;
use super::session::Session;
use super::target::Target;
use crate::collect::Method;
use crate::ids::Pid;
use crate::keeper::Launch;
use crate::linux::pidfd::Readiness;
use crate::linux::signals::Inherited;
use crate::model::Origin;
use crate::process::launch::{LaunchError, ProgramStop};

impl Session {
    /// Starts a command and attaches probes before its code runs. Fails if it cannot be started or has no allocator.
    pub fn launch(&mut self, command: &[OsString], inherited: Inherited) -> Result<()> {
        let child = signal(SignalKind::child()).context("cannot listen for signals")?;
        if self.config.checks.is_some() && self.config.follow_forks {
            self.followed = Some(Followed::new()?);
        }
        let mut launch = match Launch::start(self.probes.keeper(), command, inherited) {
            // The recording ends with its report.
            Err(error) if self.has_lost_keeper() => {
                warn!("the command was not started: {error}");
                return Ok(());
            }
            started => started?,
        };
        let stops = Readiness::of(&launch).context("cannot monitor the program")?;
        // Threads of programs that are not held at their exit cannot be stopped.
        if self.config.checks.is_some() || self.probes.has_stubs() {
            let held = launch.hold_at_exit();
            if !self.has_lost_keeper() {
                held?;
            }
        }
        let pid = launch.pid();
        let begun = self.begin_command(&mut launch).with_context(|| {
            format!("process `{pid}` was started and continues without being profiled (`ps {pid}`, `kill {pid}`)")
        });
        match begun {
            Err(error) if self.has_lost_keeper() => warn!("{error:#}"),
            begun => begun?,
        }
        self.command = Some(Command { launch, child, stops, followed_until: Some(Instant::now() + FOLLOW) });
        Ok(())
    }

    fn begin_command(&mut self, launch: &mut Launch) -> Result<()> {
        let pid = launch.pid();
        let mut target = Target::open(pid, Origin::Launched, None)?;
        target.requested = true;
        if let Some(starting) = target.starting() {
            starting.is_held_before_mapping = true;
        }
        self.mark(pid);
        self.add_target(target);
        self.lifecycle.settle(pid);
        self.step(launch)?;
        Ok(self.follow_execs(launch)?)
    }

    /// Resumes the program. With the inline engine, stops it again when its dynamic linker has filled most pointers.
    fn follow_execs(&mut self, launch: &mut Launch) -> Result<(), LaunchError> {
        launch.follow_execs()?;
        let target = self.processes.get(launch.pid()).filter(|target| target.was_recorded());
        if let Some(target) = target
            && self.probes.has_stubs()
            && launch.stop()?
        {
            self.probes.install_stubs_in(launch, target, &self.rates);
            launch.follow_execs()?;
        }
        Ok(())
    }

    pub fn launched(&self) -> Option<Launched> {
        self.command.as_ref().map(Command::launched)
    }

    pub(super) fn step(&mut self, launch: &mut Launch) -> Result<(), LaunchError> {
        let pid = launch.pid();
        self.held = Some(Held { pid, is_alone: launch.is_alone(), since_exec: false });
        let start_up = launch.step_until_loaded(&mut |at_exec| {
            if at_exec {
                // An exec ends all other threads.
                self.held = Some(Held { pid, is_alone: true, since_exec: true });
            }
            self.empty_ring();
            self.settle(pid);
            Ok::<(), LaunchError>(())
        });
        self.held = None;
        // Outside of the macro, which does not evaluate its arguments if the level is disabled.
        let start_up = start_up?;
        debug!("process {pid}: {start_up:?}");
        let target = self.processes.get_mut(pid).filter(|target| !target.is_gone());
        if let Some(starting) = target.and_then(Target::starting) {
            starting.was_stepped = true;
        }
        Ok(())
    }

    /// Stops a new process, which starts up meanwhile: call this first. `None` if it cannot or should not be stopped.
    pub(super) fn hold(&mut self, pid: Pid) -> Option<Launch> {
        let is_never_held = self.config.hold == Hold::Never || !self.config.grace().is_zero();
        if is_never_held || self.launched().is_some_and(|launched| launched.0 == pid) {
            return None;
        }
        let Some(followed) = &mut self.followed else {
            let held = self.held.is_none().then(|| Launch::hold(self.probes.keeper(), pid))?;
            return held.inspect_err(|error| debug!("{error}")).ok();
        };
        match self.held {
            Some(held) if held.pid == pid => None,
            // While another process is stepped, this one is only traced until its exit.
            Some(_) => {
                let launch = followed.hold(self.probes.keeper(), pid)?;
                self.follow_child(launch);
                None
            }
            None => followed.hold(self.probes.keeper(), pid),
        }
    }

    /// Lets a stopped process run until it has mapped its initial modules, so that no allocation precedes its probes.
    pub(super) fn step_and_release(&mut self, mut launch: Launch) {
        let pid = launch.pid();
        let stepped = self.step(&mut launch);
        if self.followed.is_some() && stepped.is_ok() {
            self.follow_child(launch);
        } else {
            log_release(stepped.and_then(|()| launch.release()));
        }
        if let Some(target) = self.processes.get(pid) {
            self.probes.poll_stubs(target, &self.rates);
        }
        self.prepare_to_hold();
    }

    pub(super) fn prepare_to_hold(&self) {
        if self.config.hold != Hold::Never && self.config.grace().is_zero() {
            self.probes.keeper().prepare_tracer();
        }
    }

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
            if matches!(stop, ProgramStop::Exiting) {
                // The last time that its mappings can be read.
                self.empty_ring();
                self.complete_all_stacks();
            }
            match (stop, self.config.checks) {
                (ProgramStop::Exec, _) => self.step(&mut command.launch)?,
                (ProgramStop::Exiting, Some(method)) => {
                    listener.inspected(self.inspect_launched(&command.launch, method, true));
                }
                (ProgramStop::Exiting, None) => self.probes.count_stub_calls(command.launch.pid()),
            }
            match stop {
                ProgramStop::Exec => self.follow_execs(&mut command.launch)?,
                ProgramStop::Exiting => command.launch.follow_execs()?,
            }
        }
        if self.config.checks.is_some() {
            command.followed_until = Some(Instant::now() + FOLLOW_PERIOD);
        } else if Instant::now() >= until {
            command.release();
        }
        Ok(())
    }

    /// Changes the stubs of the command while it is traced: only its tracer can stop it.
    pub(super) fn poll_stubs_of_command(&mut self) {
        let Some(pid) = self.command.as_ref().and_then(Command::traced) else { return };
        let Some(target) = self.processes.get(pid).filter(|target| target.was_recorded()) else { return };
        let Some(change) = self.probes.stub_change(target) else { return };
        let Some(command) = &mut self.command else { return };
        let changed = command.launch.stop().and_then(|is_stopped| {
            if is_stopped {
                self.probes.change_stubs(change, target, Some(&command.launch), &self.rates);
            }
            command.launch.follow_execs()
        });
        if let Err(error) = changed {
            warn!("{error}");
            command.release();
        }
    }

    pub(super) fn inspect_command(&mut self, method: Method, listener: &mut dyn Listener) {
        let Some(mut command) = self.command.take() else { return };
        match command.launch.stop() {
            Ok(true) => listener.inspected(self.inspect_launched(&command.launch, method, false)),
            Ok(false) => {}
            Err(error) => listener.inspected(Err(error.into())),
        }
        if let Err(error) = command.launch.follow_execs() {
            warn!("{error}");
            command.release();
        }
        self.command = Some(command);
    }
}

/// Logs why a process could not be held until its release.
pub(super) fn log_release(released: Result<(), LaunchError>) {
    match released {
        Err(error @ LaunchError::Suspended(_)) => warn!("{error}"),
        Err(error) => debug!("{error}"),
        Ok(()) => {}
    }
}
