//! Starting a command, stopping new processes until their probes are attached, and letting the descendants of a command in a leak check
//! run, to inspect them at their exits.

use std::ffi::{OsStr, OsString};
use std::io;

use anyhow::{Context, Result, ensure};
use heapbpf_base::ids::{Pid, Tid};
use heapbpf_base::shown;
use heapbpf_ledger::model::Origin;
use heapbpf_linux::exec_stop::ExecStopLayout;
use heapbpf_linux::job::may_be_hung_up;
use heapbpf_linux::pidfd::Readiness;
use heapbpf_linux::proc::process;
use heapbpf_linux::signals::Inherited;
use heapbpf_report::text::printable;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::Session;
use crate::check::heap_snapshot::HeapSnapshot;
use crate::collect::Method;
use crate::keeper::{Launch, StoppedExecs};
use crate::process::launch::{LaunchError, ProgramStop, candidates};
use crate::process::link_map;
use crate::reader;
use crate::session::command::{Command, FOLLOW_PERIOD, Held, Launched};
use crate::session::config::{Hold, Listener};
use crate::session::followed::Followed;
use crate::session::target::Target;

impl Session {
    /// Starts a command and attaches probes before its code runs. Fails if it cannot be started or has no allocator.
    pub fn launch(&mut self, command: &[OsString], inherited: Inherited) -> Result<()> {
        let child = signal(SignalKind::child()).context("cannot listen for signals")?;
        if self.config.checks.is_some() && self.config.follow_forks {
            self.followed = Some(Followed::new()?);
        }
        let keeper = self.probes.keeper().clone();
        if let Some(program) = command.first() {
            check_answers(program)?;
        }
        let exec_layout = self.execs_to_stop();
        let mut before_exec = |pid, tracer| self.await_exec(pid, tracer);
        let started = Launch::start(&keeper, command, inherited, exec_layout.is_some(), &mut before_exec);
        let launch = match started {
            // The recording ends with a report.
            Err(error) if self.has_lost_keeper() => {
                warn!("the command was not started: {error:#}");
                return Ok(());
            }
            started => started?,
        };
        let stops = Readiness::of(&launch).context("cannot monitor the program")?;
        let pid = launch.pid();
        let mut command = Command { launch, child, stops, poll_at: None, exec_layout, execs: None, gave_way: false };
        let begun = self.begin_command(&mut command).with_context(|| {
            format!("process `{pid}` was started and continues without being profiled (`ps {pid}`, `kill {pid}`)")
        });
        match begun {
            Err(error) if self.has_lost_keeper() => warn!("{error:#}"),
            begun => begun?,
        }
        self.command = Some(command);
        Ok(())
    }

    fn begin_command(&mut self, command: &mut Command) -> Result<()> {
        let pid = command.launch.pid();
        if self.processes.get(pid).is_some() {
            // The command is not held: see `await_exec`.
            return Ok(());
        }
        // Threads of programs that are not held at their exit cannot be stopped.
        if self.config.checks.is_some() {
            command.launch.hold_at_exit()?;
        }
        let mut target = Target::open(pid, Origin::Launched, None)?;
        target.requested = true;
        if let Some(starting) = target.starting() {
            starting.is_held_before_mapping = true;
        }
        self.mark(pid, false);
        self.add_target(target);
        self.lifecycle.poll_for_hooks(pid);
        self.step(&mut command.launch)?;
        Ok(self.let_run(command)?)
    }

    /// Prepares the recording of a command before its exec, because it cannot be held: another process traces it.
    fn await_exec(&mut self, pid: Pid, tracer: Tid) -> Result<()> {
        let name =
            process::thread_name(process::of_thread(tracer).unwrap_or(Pid(tracer.0)), tracer).unwrap_or_default();
        let name = printable(&name);
        ensure!(
            self.config.checks.is_none(),
            "cannot check a command for leaks that `{name}` traces, because it can have only one tracer: start the program yourself \
             and give its PID with `--pid`"
        );
        warn!(
            "the command is not held until its probes are attached, because `{name}` traces it: calls before may be missing"
        );
        let mut target = Target::open(pid, Origin::Launched, None)?;
        target.requested = true;
        self.mark(pid, false);
        self.probes.probe_ahead(&mut target, &mut self.rates);
        self.add_target(target);
        Ok(())
    }

    /// Lets a held command run without a tracer, except for a leak check, which needs one to hold the command at its
    /// exit.
    fn let_run(&mut self, command: &mut Command) -> Result<(), LaunchError> {
        let pid = command.launch.pid();
        command.gave_way = self.gives_way(pid);
        if self.config.checks.is_some() && !command.gave_way {
            command.poll_at = Some(Instant::now() + FOLLOW_PERIOD);
            return command.launch.follow_execs();
        }
        if let Some(layout) = command.exec_layout {
            let execs = StoppedExecs::of(self.probes.keeper(), pid, &layout);
            command.execs = execs.inspect_err(|error| debug!("{error}")).ok();
        }
        command.release();
        self.prepare_to_hold();
        Ok(())
    }

    /// Layout that is needed to stop the command at its execs; `None` if it is not stopped at them.
    fn execs_to_stop(&self) -> Option<ExecStopLayout> {
        let is_stopped = self.config.checks.is_none() && self.config.hold != Hold::Never;
        let layout = self.probes.kernel.exec_stop_layout().filter(|_| is_stopped)?;
        (!may_be_hung_up(Pid(std::process::id()))).then_some(layout)
    }

    /// Whether a leak check skips a process at its exit, because its own LeakSanitizer traces it then.
    pub(super) fn gives_way(&self, pid: Pid) -> bool {
        let target = self.processes.get(pid).filter(|target| target.has_leak_sanitizer && self.config.checks.is_some());
        if let Some(target) = target {
            warn_unchecked(target);
        }
        target.is_some()
    }

    /// Whether a process must not be stopped, because its own LeakSanitizer may be about to trace it.
    pub(super) fn may_trace_itself(&mut self, pid: Pid) -> bool {
        // A process that is starting up is stopped first, and examined then.
        if !link_map::is_complete(pid) {
            return false;
        }
        let Ok(target) = self.probes.discovery.open(pid) else { return false };
        if target.has_leak_sanitizer && self.followed.is_some() {
            warn_unchecked(&target);
        }
        target.has_leak_sanitizer
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
                if let Some(starting) = self.processes.get_mut(pid).and_then(Target::starting) {
                    starting.is_held_before_mapping = true;
                }
            }
            self.empty_ring();
            self.hook(pid);
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

    /// Stops a new process. Call this first, because the process starts up meanwhile. `None` if it cannot or should not
    /// be stopped.
    pub(super) fn hold(&mut self, pid: Pid) -> Option<Launch> {
        let is_never_held = self.config.hold == Hold::Never || !self.config.grace().is_zero();
        let command = self.command.as_ref().filter(|command| command.launched().0 == pid);
        if is_never_held || command.is_some_and(|command| command.traced().is_some()) {
            return None;
        }
        let is_held = self.followed.as_ref().is_some_and(|followed| followed.contains(pid));
        if !is_held && self.may_trace_itself(pid) {
            return None;
        }
        let command = self.command.as_ref().filter(|command| command.launched().0 == pid);
        let Some(followed) = &mut self.followed else {
            let (keeper, execs) = (self.probes.keeper(), command.and_then(|command| command.execs.as_ref()));
            let hold = || execs.map_or_else(|| Launch::hold(keeper, pid), |it| Launch::hold_at_exec(keeper, pid, it));
            return self.held.is_none().then(hold)?.inspect_err(|error| debug!("{error}")).ok();
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
        let Some(method) = self.config.checks.filter(|_| !command.gave_way) else {
            command.release();
            return Ok(());
        };
        command.poll_at = Some(Instant::now() + FOLLOW_PERIOD);
        while let Some(stop) = command.launch.next_stop()? {
            match stop {
                ProgramStop::Exec => {
                    self.step(&mut command.launch)?;
                    self.let_run(command)?;
                }
                ProgramStop::Exiting => {
                    // This is the last time that the mappings of the command can be read.
                    self.empty_ring();
                    self.complete_all_stacks();
                    listener.inspected(self.inspect_launched(&command.launch, method, true));
                    command.launch.follow_execs()?;
                }
            }
        }
        Ok(())
    }

    /// PID of the command if it waits at an exec for its probes.
    pub(super) fn stopped_command(&self) -> Option<Pid> {
        self.command.as_ref().filter(|command| command.is_stopped()).map(|command| command.launched().0)
    }

    /// Resumes the command if it waits at an exec that is not going to be handled: the command could not be held then,
    /// or the kernel side could not report the exec.
    pub(super) fn resume_unattended_command(&mut self) {
        let Some(pid) = self.stopped_command() else { return };
        // The command may be at its next exec by now. The report precedes the stop.
        self.catch_up();
        if let Some(command) = self.command.as_ref().filter(|_| !self.lifecycle.awaits(pid)) {
            command.resume();
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

    /// Lets a held process run until its next exec or its exit.
    pub(super) fn follow_child(&mut self, mut launch: Launch) {
        if self.gives_way(launch.pid()) {
            return log_release(launch.release());
        }
        let resumed = launch.follow_execs();
        match (&mut self.followed, resumed) {
            (Some(followed), Ok(())) => followed.add(launch),
            (_, resumed) => {
                debug!("process {} is not followed: {resumed:?}", launch.pid());
            }
        }
    }

    pub(super) fn attend_followed(&mut self, listener: &mut dyn Listener) {
        let Some(followed) = &mut self.followed else { return };
        for mut launch in followed.take() {
            // Each heap snapshot is a copy of a process's memory: the next process waits at its exit.
            let attended = if listener.has_room() { self.attend_child(&mut launch, listener) } else { Ok(()) };
            if let Err(error) = attended {
                warn!("{error}");
                continue;
            }
            if let Some(followed) = self.followed.as_mut().filter(|_| !launch.is_over()) {
                followed.add(launch);
            }
        }
    }

    fn attend_child(&mut self, launch: &mut Launch, listener: &mut dyn Listener) -> Result<(), LaunchError> {
        while let Some(stop) = launch.next_stop()? {
            match (stop, self.config.checks) {
                (ProgramStop::Exec, _) => {
                    self.step(launch)?;
                    if self.gives_way(launch.pid()) {
                        return launch.release();
                    }
                }
                (ProgramStop::Exiting, Some(method)) => self.inspect_child(launch, method, true, listener),
                (ProgramStop::Exiting, None) => {}
            }
            launch.follow_execs()?;
        }
        Ok(())
    }

    fn inspect_child(&mut self, launch: &Launch, method: Method, at_exit: bool, listener: &mut dyn Listener) {
        match self.inspect_launched(launch, method, at_exit) {
            Ok(snapshot) => {
                if let Some(followed) = self.followed.as_mut().filter(|_| at_exit) {
                    followed.count_checked();
                }
                // The command's own check counts those of all descendants.
                listener.inspected(Ok(HeapSnapshot { unchecked_children: 0, ..snapshot }));
            }
            Err(error) => warn!("{error:#}"),
        }
    }

    /// Inspects the followed descendants that run.
    pub(super) fn inspect_followed(&mut self, method: Method, listener: &mut dyn Listener) {
        let Some(followed) = &mut self.followed else { return };
        for mut launch in followed.take() {
            match launch.stop() {
                Ok(true) => self.inspect_child(&launch, method, false, listener),
                Ok(false) => {}
                Err(error) => debug!("{error}"),
            }
            self.follow_child(launch);
        }
    }
}

/// Fails if the file system of a program does not answer: the exec of the program could not be interrupted.
fn check_answers(program: &OsStr) -> Result<(), LaunchError> {
    for path in candidates(program) {
        reader::reach(None, &path).map_err(|error| {
            LaunchError::NotExecutable(shown::os_text(program).into_owned(), io::Error::other(error))
        })?;
        if path.is_file() {
            break;
        }
    }
    Ok(())
}

fn warn_unchecked(target: &Target) {
    warn!(
        "process {} ({}) is not checked at its exit: it contains LeakSanitizer, which checks it then, and fails if another process \
         traces it",
        target.pid,
        printable(&target.comm)
    );
}

/// Logs why a process could not be held until its release.
pub(super) fn log_release(released: Result<(), LaunchError>) {
    match released {
        Err(error @ LaunchError::Suspended(_)) => warn!("{error}"),
        Err(error) => debug!("{error}"),
        Ok(()) => {}
    }
}
