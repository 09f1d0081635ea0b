//! A program that heapbpf starts itself, held until the code that it starts with can be watched: its first allocation is
//! seen. Owns the process from its first instruction to its exit status; what is attached meanwhile is the caller's.
//!
//! The kernel maps the program and its dynamic linker at the exec; the linker maps the rest, and runs nothing of it before.
//! So the program is stopped at its system calls until one is made that the linker does not make, and after each that
//! mapped code the caller may attach.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use tracing::debug;

use crate::ids::Pid;
use crate::linux::ptrace::{self, Stop, SyscallPhase, Tracee};
use crate::linux::spawn::{Spawned, run_to_exec};

mod error;
mod exit;
#[cfg(test)]
mod fixture;
mod leaving;
mod loader;
mod start_up;
mod threads;

pub(crate) use error::LaunchError;
pub(crate) use exit::Stir;
pub(crate) use leaving::retry_releases;
use loader::{Loader, is_of_probes, maps_code};
pub(crate) use start_up::{StartUp, StartUpEnd};
use threads::Threads;

/// Most system calls at which a program is stopped before it is let run regardless: a hundred times what the largest
/// programs start with, and less than a second.
const SYSCALLS_MAX: u32 = 20_000;

/// Longest time without a system call before a program is let run regardless. It waits for something, which a dynamic linker
/// does only where files come from afar, or computes.
const QUIET_MAX: Duration = Duration::from_secs(1);

/// Longest wait for a running process to stop, which takes microseconds unless it waits in the kernel: then it may take
/// for ever, and nothing else is done meanwhile.
const STOP_WAIT: Duration = Duration::from_millis(20);

/// How long a process that has just begun may go without a system call: it is likely to be past its start-up, and needs no steps then.
const HOLD_QUIET_MAX: Duration = Duration::from_millis(20);

/// A started program. Dropping it lets the program run on: at once, or where it waits in the kernel, by
/// [`retry_releases`].
///
/// The kernel takes questions about a held process from one thread alone, so this cannot be sent to another.
#[derive(Debug)]
pub(crate) struct Launch {
    tracee: Tracee,
    state: State,
    program: String,
    /// How long it may go without a system call while it is stepped.
    quiet_max: Duration,
    /// All its threads, where it is held when it ends.
    threads: Option<Threads>,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Stopped, for this reason.
    Held(Stop),
    /// Runs, and will stop at its next exec.
    Followed,
    /// Was asked to stop, and is let go when it does.
    Leaving,
    /// Runs as if heapbpf had never held it.
    Free,
    /// Was reaped.
    Ended(ExitStatus),
}

impl Launch {
    /// Traces a process that waits before its exec until it is traced. [`run_to_exec`](Self::run_to_exec) is next.
    pub(crate) fn seize(pid: Pid, program: String) -> Result<Self, LaunchError> {
        match Tracee::seize(pid) {
            Ok(tracee) => Ok(Self { tracee, state: State::Followed, program, quiet_max: QUIET_MAX, threads: None }),
            Err(error) => Err(LaunchError::Trace(program, error)),
        }
    }

    /// Runs it to its exec, and holds it there: nothing of the program has run. A child of this process is given as `spawned`. It
    /// may end instead. `is_wanted` is called again and again.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Trace`], and for a child of this process that its program cannot be run.
    pub(crate) fn run_to_exec(
        &mut self,
        spawned: Option<&mut Spawned>,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<(), LaunchError> {
        let stop = run_to_exec(&self.tracee, spawned, is_wanted).map_err(|error| self.untraceable(error))?;
        self.stopped_at(stop);
        Ok(())
    }

    /// Takes hold of a process that has just begun, and stops it wherever it is: to be stepped like a started one. Its parent
    /// does not notice.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Trace`] where somebody else traces it or tracing is forbidden, [`LaunchError::Unstoppable`] where it
    /// waits in the kernel. It runs on, if [`retry_releases`] is called now and then.
    pub(crate) fn hold(pid: Pid) -> Result<Self, LaunchError> {
        let name = format!("process {pid}");
        let tracee = Tracee::seize(pid).map_err(|error| LaunchError::Trace(name.clone(), error))?;
        let mut launch =
            Self { tracee, state: State::Followed, program: name, quiet_max: HOLD_QUIET_MAX, threads: None };
        launch.interrupt()?;
        Ok(launch)
    }

    /// Its number, also after its end.
    pub(crate) fn pid(&self) -> Pid {
        self.tracee.pid()
    }

    /// Whether it runs as if it had never been held.
    pub(crate) fn is_free(&self) -> bool {
        matches!(self.state, State::Free)
    }

    /// Whether it runs, and will stop at its next exec, or be let go at its next stop.
    pub(crate) fn is_followed(&self) -> bool {
        matches!(self.state, State::Followed | State::Leaving)
    }

    /// How it ended, if that was seen.
    pub(crate) fn ended(&self) -> Option<ExitStatus> {
        match self.state {
            State::Ended(status) => Some(status),
            _ => None,
        }
    }

    /// Whether it has one thread: others are not held, and may do anything meanwhile. False if that cannot be told.
    #[cfg(test)]
    pub(crate) fn is_alone(&self) -> bool {
        has_one_thread(self.pid())
    }

    /// Runs a held program until all is mapped that it starts with, and holds it there, unless it waits in the kernel.
    /// `on_new_code` is called while it is stopped: at once, and whenever code was mapped of which nothing has run yet. It is
    /// told whether the program stands at an exec, so that nothing of it has run; it may have been stopped anywhere else.
    /// Signals reach the program meanwhile. Blocks, but for no more than a few seconds.
    ///
    /// # Errors
    ///
    /// What `on_new_code` returns, and [`LaunchError::Trace`]. The program is still held.
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
                    (_, SyscallPhase::Entry { number, .. }) if is_of_probes(number) => {}
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

    /// Lets a held program run, but stops it at its next exec, which [`next_exec`](Self::next_exec) tells: shells and
    /// wrappers (`env`, `nice`, `sh -c 'exec …'`) become the program that is meant. It costs the program nothing until a
    /// signal comes, which is delivered by `next_exec`; debuggers cannot attach. Children that it forks are not held. One that
    /// is held at its exit, or was [stopped](Self::stop), goes on.
    pub(crate) fn follow_execs(&mut self) -> Result<(), LaunchError> {
        if let State::Held(stop) = self.state {
            self.tracee.run(stop).map_err(|error| self.untraceable(error))?;
            self.state = State::Followed;
            if let Some(threads) = &mut self.threads {
                threads.runs();
            }
            return Ok(());
        }
        self.go_on()
    }

    /// Whether a followed program is held at an exec, to be stepped like a new one. Does not block; to be asked whenever
    /// `SIGCHLD` comes, or every so often.
    pub(crate) fn next_exec(&mut self) -> Result<bool, LaunchError> {
        if self.threads.is_some() {
            return Ok(self.next_stir()? == Some(Stir::Exec));
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

    /// Lets go of the program: from now on it runs as if it had never been held, and may be debugged.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Unstoppable`] for a followed program that waits in the kernel, as `vfork` does. It will stand still
    /// when it wakes: this is to be called again then, as `SIGCHLD` tells, or every so often.
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

    /// How the program ended, if it has: it is reaped by this, and by nothing else.
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

    /// Lets it run to its next stop; false if that does not come in time. Then it is held where it is, or followed if it
    /// waits in the kernel.
    fn step(&mut self, stop: Stop) -> Result<bool, LaunchError> {
        self.tracee.run_to_syscall(stop).map_err(|error| self.untraceable(error))?;
        self.state = State::Followed;
        let next = self.tracee.wait(self.quiet_max).map_err(|error| self.untraceable(error))?;
        if let Some(next) = next {
            self.stopped_at(next);
            return Ok(true);
        }
        match self.interrupt() {
            // Its stop, when it comes, is one like those that signals make.
            Err(LaunchError::Unstoppable(_)) => self.state = State::Followed,
            stopped => stopped?,
        }
        Ok(false)
    }

    /// Stops a running program wherever it is.
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
            && let Err(error) = threads.adopt(&self.tracee)
        {
            debug!("process {}: {error}", self.pid());
        }
    }

    fn loader(&self) -> Result<Option<Loader>, LaunchError> {
        let info = self.tracee.syscall_info().map_err(|error| self.untraceable(error))?;
        Ok(info.filter(|info| info.arch == loader::ARCH).and_then(|_| Loader::of(self.pid())))
    }

    /// The instruction that makes the system call at which it is stopped, and the call.
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
            leaving::add(self.tracee.clone());
        }
    }
}

/// Whether a process has one thread. False if that cannot be told.
pub(crate) fn has_one_thread(pid: Pid) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.take(2).count() == 1)
}

/// The shell's number for an exit status: the exit code, or 128 plus the signal.
pub(crate) fn shell_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

/// The system call failed: the kernel returns errors as −4095 to −1.
fn is_error(result: i64) -> bool {
    (-4095..0).contains(&result)
}

#[cfg(test)]
mod tests;
