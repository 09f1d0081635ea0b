//! Launches a program and holds it until its start-up code can be probed, so that its first allocation is recorded.
//! Owns the process from its first instruction to its exit status; the caller attaches probes meanwhile.
//!
//! The kernel maps the program and its dynamic linker at the exec; the linker maps all other modules before it runs
//! their code. So the program is stopped at its system calls until it makes one that the linker does not make, and the
//! caller may attach probes after each that mapped code.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracing::debug;

use crate::ids::Pid;
use crate::linux::arch::{AUDIT_ARCH, is_probe_syscall};
use crate::linux::ptrace::{self, Stop, SyscallPhase, Tracee};
use crate::linux::spawn::run_to_exec;

mod start_up;
mod threads;

pub(crate) use start_up::{LaunchError, StartUp, StartUpEnd};
use start_up::{Loader, maps_code};
pub(crate) use threads::retry_releases;
use threads::{Change, OPTIONS, Threads, add_leaving};

/// Maximum number of system calls at which a program is stopped: a hundred times as many as the largest programs make
/// during start-up, and less than a second.
const SYSCALLS_MAX: u32 = 20_000;

/// Time limit without a system call. The program waits for something, which a dynamic linker does only with remote
/// files, or computes.
const QUIET_MAX: Duration = Duration::from_secs(1);

/// Time limit for a running process to stop, which takes microseconds except in an uninterruptible wait, which may last
/// indefinitely and block everything else.
const STOP_WAIT: Duration = Duration::from_millis(20);

/// Like [`QUIET_MAX`], for a process that has just started: it is likely to be past its start-up.
const HOLD_QUIET_MAX: Duration = Duration::from_millis(20);

/// Time limit for all threads of a program to stop.
const ALL_STOP_WAIT: Duration = Duration::from_millis(500);

/// Why a followed program is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProgramStop {
    /// It has called exec. No instruction of the new program has run.
    Exec,
    /// The process exits. None of its instructions will run, but its memory still exists.
    Exiting,
}

/// A launched program. Dropping it detaches: at once, or from an uninterruptible wait by [`retry_releases`]. Not
/// `Send`, because the kernel accepts requests about a traced process only from its tracing thread.
#[derive(Debug)]
pub(crate) struct Launch {
    tracee: Tracee,
    state: State,
    program: String,
    /// Time limit without a system call while it is stepped.
    quiet_max: Duration,
    /// All its threads, if it is held at its exit.
    threads: Option<Threads>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Held(Stop),
    /// Runs until its next exec.
    Followed,
    /// Stop requested; it is detached when it stops.
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

    /// Runs it to its exec, and holds it there before its first instruction; it may exit instead. Calls `is_wanted`
    /// repeatedly.
    pub(crate) fn run_to_exec(&mut self, is_wanted: &dyn Fn() -> bool) -> Result<(), LaunchError> {
        let stop = run_to_exec(&self.tracee, is_wanted).map_err(|error| self.untraceable(error))?;
        self.stopped_at(stop);
        Ok(())
    }

    /// Attaches to a process that has just started, and stops it, to step it like a launched one. Its parent does not
    /// notice. Fails with [`LaunchError::Trace`] where another tracer is attached or tracing is forbidden, with
    /// [`LaunchError::Unstoppable`] in an uninterruptible wait; it continues if [`retry_releases`] is called
    /// periodically.
    pub(crate) fn hold(pid: Pid) -> Result<Self, LaunchError> {
        let name = format!("process {pid}");
        let tracee = Tracee::seize(pid).map_err(|error| LaunchError::Trace(name.clone(), error))?;
        let mut launch =
            Self { tracee, state: State::Followed, program: name, quiet_max: HOLD_QUIET_MAX, threads: None };
        launch.interrupt()?;
        Ok(launch)
    }

    pub(crate) fn pid(&self) -> Pid {
        self.tracee.pid()
    }

    pub(crate) fn is_traced(&self) -> bool {
        !matches!(self.state, State::Free | State::Ended(_))
    }

    /// Whether it runs until its next exec, or is detached at its next stop.
    pub(crate) fn is_followed(&self) -> bool {
        matches!(self.state, State::Followed | State::Leaving)
    }

    pub(crate) fn ended(&self) -> Option<ExitStatus> {
        match self.state {
            State::Ended(status) => Some(status),
            _ => None,
        }
    }

    /// Runs a held program until its start-up code is mapped, and holds it there, unless it is in an uninterruptible
    /// wait. Calls `on_new_code` while it is stopped: at once, and whenever code was mapped of which nothing has run
    /// yet. The argument indicates whether the program is at an exec, before its first instruction, or anywhere else.
    /// Signals are delivered meanwhile. Blocks for a few seconds at most. On errors, the program is still held.
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
            on_new_code(false)?;
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
                        if loader.as_mut().is_none_or(|loader| !loader.makes(instruction, number, &arguments)) {
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
                        if std::mem::take(&mut maps) && !is_error(result) {
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

    /// Resumes a held program until its next exec, which [`next_exec`](Self::next_exec) reports: shells and wrappers
    /// (`env`, `nice`, `sh -c 'exec …'`) become the actual program. Costs nothing until a signal arrives, which
    /// `next_exec` delivers; debuggers cannot attach. Forked children are not held. Also resumes a program that is held
    /// at its exit, or was [stopped](Self::stop).
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

    /// Whether a followed program is held at an exec, to be stepped like a new one. Does not block; to be called at
    /// each `SIGCHLD`, or periodically.
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

    /// Detaches: the program runs as if it had never been traced. Fails with [`LaunchError::Unstoppable`] for a
    /// followed program in an uninterruptible wait, such as `vfork`. It will stop when it wakes up: call this again
    /// then, at `SIGCHLD` or periodically.
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
            State::Ended(status) => return Some(status),
            State::Held(_) => {}
            State::Followed | State::Leaving => {
                let _ = self.next_exec();
            }
            State::Free => {
                if let Ok(Some(status)) = ptrace::try_reap(self.pid()) {
                    self.state = State::Ended(status);
                }
            }
        }
        match self.state {
            State::Ended(status) => Some(status),
            _ => None,
        }
    }

    /// From now on, a held program is held again when it exits, by a call or a signal: see
    /// [`next_stop`](Self::next_stop). All its threads are traced for that, which costs two stops per created thread,
    /// one per exited thread and one per signal. Its children are not held. To be called before it has created threads.
    pub(crate) fn hold_at_exit(&mut self) -> Result<(), LaunchError> {
        if let State::Held(_) = self.state {
            self.tracee.set_options(OPTIONS).map_err(|error| self.untraceable(error))?;
            self.threads = Some(Threads::new(self.tracee.clone()));
        }
        Ok(())
    }

    /// Why a followed program is held, if it is, until [`follow_execs`](Self::follow_execs) resumes it. To be called at
    /// each `SIGCHLD`, or periodically: it delivers signals. Blocks for at most a second, and only while some threads
    /// have reached their exit and others are about to.
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

    /// Stops all threads of a followed program until [`follow_execs`](Self::follow_execs) resumes them and restarts
    /// interrupted system calls. False, with the program running, where it calls exec or exits instead, which
    /// [`next_stop`](Self::next_stop) reports, and where it is not held at its exit. Fails with
    /// [`LaunchError::Unstoppable`], with the program running, where a thread is in an uninterruptible wait, such as
    /// `vfork`.
    pub(crate) fn stop(&mut self) -> Result<bool, LaunchError> {
        if !matches!(self.state, State::Followed) || self.next_stop()?.is_some() {
            return Ok(false);
        }
        // Its exit may have been found.
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

    /// The threads of a program that is stopped or exits, with their stops. Without the first thread if it has exited
    /// before the others; then memory and mappings are in `/proc/TID` of another.
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

    /// Runs it to its next stop; false if that does not occur in time. Then it is held where it is, or followed in an
    /// uninterruptible wait.
    fn step(&mut self, stop: Stop) -> Result<bool, LaunchError> {
        self.tracee.run_to_syscall(stop).map_err(|error| self.untraceable(error))?;
        self.state = State::Followed;
        let next = self.tracee.wait(self.quiet_max).map_err(|error| self.untraceable(error))?;
        if let Some(next) = next {
            self.stopped_at(next);
            return Ok(true);
        }
        match self.interrupt() {
            // Its stop, when it occurs, looks like one caused by a signal.
            Err(LaunchError::Unstoppable(_)) => self.state = State::Followed,
            stopped => stopped?,
        }
        Ok(false)
    }

    fn interrupt(&mut self) -> Result<(), LaunchError> {
        self.tracee.interrupt().map_err(|error| self.untraceable(error))?;
        self.state = State::Leaving;
        let stop = self.tracee.wait(STOP_WAIT).map_err(|error| self.untraceable(error))?;
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

    fn loader(&self) -> Result<Option<Loader>, LaunchError> {
        let info = self.tracee.syscall_info().map_err(|error| self.untraceable(error))?;
        Ok(info.filter(|info| info.arch == AUDIT_ARCH).and_then(|_| Loader::of(self.pid())))
    }

    /// The system call at which it is stopped, and the address after its instruction.
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

/// The exit code of a shell: that of the process, or 128 plus the signal.
pub(crate) fn shell_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// The kernel returns errors as −4095 to −1.
fn is_error(result: i64) -> bool {
    (-4095..0).contains(&result)
}

#[cfg(test)]
mod tests;
