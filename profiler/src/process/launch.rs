//! Holds a launched program until its start-up code can be probed, so that its first allocation is recorded. The kernel
//! maps the program and its dynamic linker at the exec, and the linker maps all other modules before it runs their
//! code: so the program is stopped at its system calls until it makes one that the linker does not make.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use heapbpf_base::ids::{Pid, Tid};
use heapbpf_linux::arch::{AUDIT_ARCH, is_probe_syscall};
use heapbpf_linux::exec_stop::StopNote;
use heapbpf_linux::ptrace::{self, Stop, SyscallPhase, Tracee};
use heapbpf_linux::spawn::run_to_exec;
use serde::{Deserialize, Serialize};
use tracing::debug;

use crate::process::link_map;

mod start_up;
mod stops;
mod threads;

pub(crate) use start_up::{LaunchError, StartUp, StartUpEnd, candidates};
use start_up::{Loader, entry_point, maps_code};
use stops::{await_stop, end_stop};
pub(crate) use threads::retry_releases;
use threads::{Change, OPTIONS, Threads, add_leaving};

/// Maximum number of system calls of a start-up: a hundred times as many as the largest programs make, and less than a second.
const SYSCALLS_MAX: u32 = 20_000;

/// Time limit without a system call: the program computes, or waits, which a linker does only with remote files.
const QUIET_MAX: Duration = Duration::from_secs(1);

/// Time limit without a system call for a process that has just started: it is likely to be past its start-up.
const HOLD_QUIET_MAX: Duration = Duration::from_millis(20);

const ALL_STOP_WAIT: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProgramStop {
    /// The program has called exec. No instruction of the new program has run.
    Exec,
    /// The process exits. None of its instructions will run, but its memory still exists.
    Exiting,
}

/// A traced program. Dropping it detaches: at once, or from an uninterruptible wait by [`retry_releases`].
#[derive(Debug)]
pub(crate) struct Launch {
    tracee: Tracee,
    state: State,
    program: String,
    quiet_max: Duration,
    /// All threads of the program, if it is held at its exit.
    threads: Option<Threads>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Held(Stop),
    Followed,
    /// A stop is requested; the program is detached when it stops.
    Leaving,
    Free,
    Ended(ExitStatus),
}

impl Launch {
    /// Attaches to a process that waits before its exec. [`run_to_exec`](Self::run_to_exec) is next.
    pub(crate) fn seize(pid: Pid, program: String) -> Result<Self, LaunchError> {
        match Tracee::seize(pid) {
            Ok(tracee) => Ok(Self { tracee, state: State::Followed, program, quiet_max: QUIET_MAX, threads: None }),
            Err(error) => Err(LaunchError::Trace(program, error)),
        }
    }

    /// Holds the program before its first instruction; it may exit instead. Calls `is_wanted` repeatedly.
    pub(crate) fn run_to_exec(&mut self, is_wanted: &dyn Fn() -> bool) -> Result<(), LaunchError> {
        let stop = run_to_exec(&self.tracee, is_wanted).map_err(|error| self.untraceable(error))?;
        self.stopped_at(stop);
        Ok(())
    }

    /// Stops a process that has just started, to step it like a launched one. Its parent does not notice. Errors:
    /// [`LaunchError::Trace`] where another tracer is attached or tracing is forbidden, [`LaunchError::Unstoppable`] in
    /// an uninterruptible wait; it continues if [`retry_releases`] is called periodically.
    pub(crate) fn hold(pid: Pid) -> Result<Self, LaunchError> {
        let name = format!("process {pid}");
        let tracee = Tracee::seize(pid).map_err(|error| LaunchError::Trace(name.clone(), error))?;
        let mut launch =
            Self { tracee, state: State::Followed, program: name, quiet_max: HOLD_QUIET_MAX, threads: None };
        launch.interrupt()?;
        Ok(launch)
    }

    /// Holds a process like [`hold`](Self::hold). The kernel side notes whether it has stopped the process at its exec: then its
    /// first instruction is still to come.
    pub(crate) fn hold_at_exec(pid: Pid, note: &StopNote) -> Result<Self, LaunchError> {
        let mut launch = Self::hold(pid)?;
        if let State::Held(stop) = launch.state
            && note.is_set()
        {
            launch.quiet_max = QUIET_MAX;
            let stop = end_stop(&launch.tracee, stop).map_err(|error| launch.untraceable(error))?;
            note.clear();
            launch.state = State::Leaving;
            launch.stopped_at(stop.ok_or(LaunchError::Unstoppable(pid))?);
        }
        Ok(launch)
    }

    /// Holds a process like [`hold`](Self::hold) and [`hold_at_exit`](Self::hold_at_exit); follows a process that waits
    /// uninterruptibly, as in `vfork`. Its exit is reported even if it is reached before the stop.
    pub(crate) fn hold_child(pid: Pid) -> Result<Self, LaunchError> {
        let name = format!("process {pid}");
        let tracee = Tracee::seize_thread(Tid(pid.0), OPTIONS);
        let tracee = tracee.map_err(|error| LaunchError::Trace(name.clone(), error))?;
        let threads = Some(Threads::new(tracee.clone()));
        let mut launch = Self { tracee, state: State::Followed, program: name, quiet_max: HOLD_QUIET_MAX, threads };
        match launch.interrupt() {
            Err(LaunchError::Unstoppable(_)) => launch.state = State::Followed,
            stopped => stopped?,
        }
        if let (State::Held(Stop::Exiting), Some(threads)) = (launch.state, &mut launch.threads) {
            let added = threads.add_exiting_first();
            added.map_err(|error| LaunchError::Trace(launch.program.clone(), error))?;
            launch.state = State::Followed;
        }
        Ok(launch)
    }

    pub(crate) fn pid(&self) -> Pid {
        self.tracee.pid()
    }

    pub(crate) fn is_traced(&self) -> bool {
        !matches!(self.state, State::Free | State::Ended(_))
    }

    /// Whether the program runs until its next exec, or is detached at its next stop.
    pub(crate) fn is_followed(&self) -> bool {
        matches!(self.state, State::Followed | State::Leaving)
    }

    pub(crate) fn ended(&self) -> Option<ExitStatus> {
        match self.state {
            State::Ended(status) => Some(status),
            _ => None,
        }
    }

    /// Holds the program when its start-up code is mapped, unless it is in an uninterruptible wait. Calls `on_new_code` at once,
    /// and whenever code was mapped that has not run; the argument is whether the program is at an exec, before its first
    /// instruction. Delivers signals. Blocks for a few seconds at most. On errors, the program is still held.
    pub(crate) fn step_until_loaded<E: From<LaunchError>>(
        &mut self,
        on_new_code: &mut dyn FnMut(bool) -> Result<(), E>,
    ) -> Result<StartUp, E> {
        let mut syscalls = 0;
        let mut maps = false;
        let mut loader = None;
        if let State::Held(stop) = self.state
            && stop != Stop::Exec
        {
            on_new_code(self.is_at_entry())?;
            loader = self.loader()?;
        }
        let end = loop {
            let stop = match self.state {
                State::Held(stop) => stop,
                State::Ended(_) => break StartUpEnd::Ended,
                State::Followed | State::Leaving | State::Free => break StartUpEnd::Loaded,
            };
            match stop {
                Stop::Exec => {
                    on_new_code(true)?;
                    loader = self.loader()?;
                    if loader.is_none() {
                        break StartUpEnd::NoLoader;
                    }
                }
                Stop::Syscall => match self.syscall()? {
                    (_, SyscallPhase::Entry { number, .. }) if is_probe_syscall(number) => {}
                    (instruction, SyscallPhase::Entry { number, arguments }) => {
                        syscalls += 1;
                        let pid = self.pid();
                        let is_done = || link_map::is_complete(pid);
                        if loader.as_mut().is_none_or(|it| !it.makes(instruction, number, &arguments, is_done)) {
                            break StartUpEnd::Loaded;
                        }
                        if syscalls >= SYSCALLS_MAX {
                            break StartUpEnd::TooManySyscalls;
                        }
                        maps = maps_code(number, &arguments);
                    }
                    (_, SyscallPhase::Exit(result)) => {
                        if let Some(loader) = &mut loader {
                            loader.returned(result);
                        }
                        // The kernel returns errors as −4095 to −1.
                        if std::mem::take(&mut maps) && !(-4095..0).contains(&result) {
                            on_new_code(false)?;
                        }
                    }
                    (_, SyscallPhase::None) => {}
                },
                _ => {}
            }
            if !self.step(stop)? {
                break StartUpEnd::Quiet;
            }
        };
        Ok(StartUp { end, syscalls })
    }

    /// Resumes a held program until its next exec ([`next_exec`](Self::next_exec)), also after a hold at its exit or a
    /// [stop](Self::stop). Debuggers cannot attach meanwhile. Forked children are not held.
    pub(crate) fn follow_execs(&mut self) -> Result<(), LaunchError> {
        if let State::Held(stop) = self.state {
            self.tracee.run(stop).map_err(|error| self.untraceable(error))?;
            self.state = State::Followed;
            if let Some(threads) = &mut self.threads {
                threads.first_resumed();
            }
            return Ok(());
        }
        self.resume_threads()
    }

    /// Whether the program is held at an exec, to be stepped like a new one. Delivers signals, so call it at each `SIGCHLD`, or
    /// periodically. Does not block.
    pub(crate) fn next_exec(&mut self) -> Result<bool, LaunchError> {
        if self.threads.is_some() {
            return Ok(self.next_stop()? == Some(ProgramStop::Exec));
        }
        while let State::Followed | State::Leaving = self.state {
            let Some(stop) = self.tracee.stopped().map_err(|error| self.untraceable(error))? else {
                break;
            };
            let leaves = matches!(self.state, State::Leaving);
            self.stopped_at(stop);
            if leaves {
                self.release()?;
            } else if stop != Stop::Exec {
                self.follow_execs()?;
            }
        }
        Ok(matches!(self.state, State::Held(Stop::Exec)))
    }

    /// Lets the program run as if it had never been traced. Fails with [`LaunchError::Unstoppable`] in an uninterruptible wait,
    /// such as `vfork`: call this again at `SIGCHLD` or periodically.
    pub(crate) fn release(&mut self) -> Result<(), LaunchError> {
        if let Some(threads) = self.threads.take() {
            return self.release_threads(threads);
        }
        match self.state {
            State::Followed => self.interrupt()?,
            State::Leaving => {
                let stop = self.tracee.stopped().map_err(|error| self.untraceable(error))?;
                self.stopped_at(stop.ok_or(LaunchError::Unstoppable(self.pid()))?);
            }
            _ => {}
        }
        if let State::Held(stop) = self.state {
            self.tracee.detach(stop).map_err(|error| self.untraceable(error))?;
            self.state = State::Free;
        }
        Ok(())
    }

    /// Reaps the program if it has exited; nothing else does.
    pub(crate) fn try_reap(&mut self) -> Option<ExitStatus> {
        match self.state {
            State::Ended(_) | State::Held(_) => {}
            State::Followed | State::Leaving => {
                let _ = self.next_exec();
            }
            State::Free => {
                if let Ok(Some(status)) = ptrace::try_reap(self.pid()) {
                    self.state = State::Ended(status);
                }
            }
        }
        self.ended()
    }

    /// From now on, holds the program when it exits ([`next_stop`](Self::next_stop)). All threads are traced: two stops
    /// per created one, one per exited one and per signal. Children are not held. Call it before there are threads.
    pub(crate) fn hold_at_exit(&mut self) -> Result<(), LaunchError> {
        if let State::Held(_) = self.state {
            self.tracee.set_options(OPTIONS).map_err(|error| self.untraceable(error))?;
            self.threads = Some(Threads::new(self.tracee.clone()));
        }
        Ok(())
    }

    /// Returns the next stop; `None` unless the program is held. To be called at each `SIGCHLD`, or periodically: it delivers
    /// signals. Blocks for at most a second, while some threads have reached their exit and others are about to.
    pub(crate) fn next_stop(&mut self) -> Result<Option<ProgramStop>, LaunchError> {
        let Some(threads) = &mut self.threads else {
            return Ok(self.next_exec()?.then_some(ProgramStop::Exec));
        };
        if let State::Followed = self.state {
            let change = threads.next_change();
            match change.map_err(|error| self.untraceable(error))? {
                Some(Change::Exec) => self.state = State::Held(Stop::Exec),
                Some(Change::Exiting) => return Ok(Some(ProgramStop::Exiting)),
                Some(Change::Ended(stop)) => self.stopped_at(stop),
                None => {}
            }
        }
        Ok(matches!(self.state, State::Held(Stop::Exec)).then_some(ProgramStop::Exec))
    }

    /// Stops all threads until [`follow_execs`](Self::follow_execs). Returns false, with the program running, if it execs or
    /// exits instead ([`next_stop`](Self::next_stop) reports it), or is not held at its exit. Fails with
    /// [`LaunchError::Unstoppable`], with the program running, if a thread is in an uninterruptible wait, such as `vfork`.
    pub(crate) fn stop(&mut self) -> Result<bool, LaunchError> {
        if !matches!(self.state, State::Followed) || self.next_stop()?.is_some() {
            return Ok(false);
        }
        // The exit of the program may have been found.
        if !matches!(self.state, State::Followed) {
            return Ok(false);
        }
        let Some(threads) = &mut self.threads else { return Ok(false) };
        let stopped = threads.stop(ALL_STOP_WAIT);
        if stopped.map_err(|error| self.untraceable(error))? {
            return Ok(true);
        }
        let pid = self.pid();
        self.resume_threads()?;
        match self.next_stop()? {
            None if !matches!(self.state, State::Ended(_)) => Err(LaunchError::Unstoppable(pid)),
            _ => Ok(false),
        }
    }

    /// Held threads of the program. The first thread is missing if it has exited before others; memory and mappings are then in
    /// `/proc/TID` of another.
    pub(crate) fn held_threads(&self) -> Vec<(Tracee, Stop)> {
        self.threads.as_ref().map(Threads::held).unwrap_or_default()
    }

    fn resume_threads(&mut self) -> Result<(), LaunchError> {
        let Some(threads) = &mut self.threads else { return Ok(()) };
        threads.resume().map_err(|error| LaunchError::Trace(self.program.clone(), error))
    }

    fn release_threads(&mut self, mut threads: Threads) -> Result<(), LaunchError> {
        match self.state {
            State::Held(stop) => threads.hold(0, stop),
            State::Followed | State::Leaving => {}
            State::Free | State::Ended(_) => return Ok(()),
        }
        self.state = State::Free;
        let (left, ended) = threads.release(ALL_STOP_WAIT).map_err(|error| self.untraceable(error))?;
        if let Some(stop) = ended {
            self.stopped_at(stop);
        }
        left.into_iter().for_each(add_leaving);
        Ok(())
    }

    /// Runs the program to its next system call. Returns false if no stop occurs in time: then it is held where it is, or
    /// followed in an uninterruptible wait.
    fn step(&mut self, stop: Stop) -> Result<bool, LaunchError> {
        self.tracee.run_to_syscall(stop).map_err(|error| self.untraceable(error))?;
        self.state = State::Followed;
        let next = self.tracee.wait(self.quiet_max).map_err(|error| self.untraceable(error))?;
        if let Some(next) = next {
            self.stopped_at(next);
            return Ok(true);
        }
        match self.interrupt() {
            // The stop of the program, when it occurs, resembles one caused by a signal.
            Err(LaunchError::Unstoppable(_)) => self.state = State::Followed,
            stopped => stopped?,
        }
        Ok(false)
    }

    fn interrupt(&mut self) -> Result<(), LaunchError> {
        self.tracee.interrupt().map_err(|error| self.untraceable(error))?;
        self.state = State::Leaving;
        let stop = await_stop(&self.tracee).map_err(|error| self.untraceable(error))?;
        self.stopped_at(stop.ok_or(LaunchError::Unstoppable(self.pid()))?);
        Ok(())
    }

    fn stopped_at(&mut self, stop: Stop) {
        self.state = match stop {
            Stop::Ended(status) => State::Ended(status),
            stop => State::Held(stop),
        };
        if stop == Stop::Clone
            && let Some(threads) = &mut self.threads
            && let Err(error) = threads.add_created(&self.tracee)
        {
            debug!("process {}: {error}", self.pid());
        }
    }

    /// Whether the process has run no instruction of its program.
    fn is_at_entry(&self) -> bool {
        let registers = self.tracee.registers().ok().flatten();
        registers.is_some_and(|registers| entry_point(self.pid()) == Some(registers.instruction()))
    }

    fn loader(&self) -> Result<Option<Loader>, LaunchError> {
        let info = self.tracee.syscall_info().map_err(|error| self.untraceable(error))?;
        Ok(info.filter(|info| info.arch == AUDIT_ARCH).and_then(|_| Loader::of(self.pid())))
    }

    /// The system call at which the program is stopped, and the address after its instruction.
    fn syscall(&self) -> Result<(u64, SyscallPhase), LaunchError> {
        let info = self.tracee.syscall_info().map_err(|error| self.untraceable(error))?;
        Ok(info.map_or((0, SyscallPhase::None), |info| (info.instruction, info.phase)))
    }

    fn untraceable(&self, error: io::Error) -> LaunchError {
        LaunchError::Trace(self.program.clone(), error)
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        if self.release().is_err() {
            add_leaving(self.tracee.clone());
        }
    }
}

/// Whether a process has one thread. False if that is unknown.
pub(crate) fn has_one_thread(pid: Pid) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.take(2).count() == 1)
}

pub(crate) fn shell_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

#[cfg(test)]
mod tests;
