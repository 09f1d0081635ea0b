//! Launched programs, and new processes that are held: the agent's end of a tracing thread of the keeper.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{self, ExitStatus};

use heapbpf_base::ids::{Pid, Tid};
use heapbpf_base::shown;
use heapbpf_linux::proc::stat;
use heapbpf_linux::ptrace;
use heapbpf_linux::signals::Inherited;
use heapbpf_linux::spawn::{Spawned, spawn, spawn_resumed};
use rustix::event::{EventfdFlags, eventfd};

use super::client::{Keeper, KeeperError, RemoteStopped, Tracer};
use super::exec_stops::StoppedExecs;
use super::protocol::{Answer, Command, Outcome};
use crate::collect::{CollectError, StoppedProcess};
use crate::process::launch::{LaunchError, ProgramStop, StartUp, has_one_thread};

/// A launched or held process. Dropping it detaches from the process: at once, or after an uninterruptible wait.
/// [`crate::process::launch::Launch`] documents the methods; its [`LaunchError::Trace`] arrives as [`LaunchError::Keeper`].
#[derive(Debug)]
pub(crate) struct Launch {
    pid: Pid,
    /// `None` if the process is not traced (any more), or the keeper has exited.
    tracer: Option<Tracer>,
    status: Option<ExitStatus>,
    /// Whether this value has started the process, and so is the one that reaps it.
    reaps: bool,
    /// Readable when [`next_stop`](Self::next_stop) may have news.
    events: OwnedFd,
}

impl Launch {
    /// Starts `command`, which is the program, looked up in `PATH`, and its arguments. The process inherits streams, process
    /// group, environment and directory, and is held at its exec. If another process traces it, it is not held: then
    /// `before_exec` is called before the exec. On errors no process is left. With `may_stop`, [`StoppedExecs`] may stop it
    /// later.
    pub(crate) fn start<E: From<LaunchError>>(
        keeper: &Keeper,
        command: &[OsString],
        inherited: Inherited,
        may_stop: bool,
        before_exec: &mut dyn FnMut(Pid, Tid) -> Result<(), E>,
    ) -> Result<Self, E> {
        let (program, arguments) = command.split_first().ok_or(LaunchError::Empty)?;
        let name = shown::os_text(program).into_owned();
        let mut child = process::Command::new(program);
        child.args(arguments);
        let fork_failed = |error| LaunchError::Fork(name.clone(), error);
        let events = event().map_err(fork_failed)?;
        let spawned = if may_stop { spawn_resumed(child, inherited) } else { spawn(child, inherited) };
        let mut spawned = spawned.map_err(fork_failed)?;
        let mut launch = Self { pid: spawned.pid(), tracer: None, status: None, reaps: true, events };
        let other = stat::status(launch.pid, Tid(launch.pid.0)).and_then(|status| status.tracer);
        let started = match other {
            Some(other) => {
                before_exec(launch.pid, other)?;
                spawned.start_exec();
                None
            }
            None => Some(launch.run_to_exec(keeper, &mut spawned, name.clone())?),
        };
        // If exec fails, the tracer reaps the child first, and then the thread that started it.
        if let Some(error) = spawned.exec_error() {
            return Err(LaunchError::not_run(Path::new(program), name, error).into());
        }
        if let Some(started) = started {
            launch.handle(started)?;
        }
        Ok(launch)
    }

    /// Runs the process to its exec. Returns the answer of the tracer when the process is at its exec, or has exited.
    fn run_to_exec(
        &mut self,
        keeper: &Keeper,
        spawned: &mut Spawned,
        name: String,
    ) -> Result<Result<Answer, KeeperError>, LaunchError> {
        self.tracer = Some(Tracer::start(keeper)?);
        let events = self.events.try_clone().map_err(|error| LaunchError::Fork(name.clone(), error))?;
        self.command_with(Command::Start(self.pid, name), Some(events.as_fd()))?;
        spawned.start_exec();
        let tracer = self.tracer.as_ref().ok_or_else(not_traced)?;
        Ok(tracer.answer())
    }

    pub(crate) fn hold(keeper: &Keeper, pid: Pid) -> Result<Self, LaunchError> {
        let tracer = Tracer::start(keeper)?;
        let events = event().map_err(|error| LaunchError::Trace(format!("process {pid}"), error))?;
        let mut launch = Self { pid, tracer: Some(tracer), status: None, reaps: false, events };
        launch.command(Command::Hold(pid))?;
        Ok(launch)
    }

    /// Like [`hold`](Self::hold), for the process that `stops` stops at its execs.
    pub(crate) fn hold_at_exec(keeper: &Keeper, pid: Pid, stops: &StoppedExecs) -> Result<Self, LaunchError> {
        let tracer = Tracer::start(keeper)?;
        let events = event().map_err(|error| LaunchError::Trace(format!("process {pid}"), error))?;
        let mut launch = Self { pid, tracer: Some(tracer), status: None, reaps: false, events };
        launch.command_with(Command::HoldAtExec(pid), Some(stops.as_fd()))?;
        Ok(launch)
    }

    /// Like [`hold`](Self::hold) and [`hold_at_exit`](Self::hold_at_exit). `events` is readable when one of several such
    /// processes may be held.
    pub(crate) fn hold_child(keeper: &Keeper, pid: Pid, events: &OwnedFd) -> Result<Self, LaunchError> {
        let tracer = Tracer::start(keeper)?;
        let own = events.try_clone().map_err(|error| LaunchError::Trace(format!("process {pid}"), error))?;
        let mut launch = Self { pid, tracer: Some(tracer), status: None, reaps: false, events: own };
        launch.command_with(Command::Hold(pid), Some(events.as_fd()))?;
        Ok(launch)
    }

    /// Whether the process has exited, or is not traced.
    pub(crate) fn is_over(&self) -> bool {
        self.tracer.is_none() || self.status.is_some()
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn is_alone(&self) -> bool {
        has_one_thread(self.pid)
    }

    pub(crate) fn hold_at_exit(&mut self) -> Result<(), LaunchError> {
        self.command(Command::HoldAtExit).map(drop)
    }

    pub(crate) fn step_until_loaded<E: From<LaunchError>>(
        &mut self,
        on_new_code: &mut dyn FnMut(bool) -> Result<(), E>,
    ) -> Result<StartUp, E> {
        let tracer = self.tracer.clone().ok_or_else(not_traced)?;
        let mut error = None;
        let mut answer = tracer.ask(&Command::Step, &[]);
        while let Ok(Answer::NewCode { at_exec }) = answer {
            error = on_new_code(at_exec).err();
            let command = if error.is_some() { Command::Abandon } else { Command::Continue };
            answer = tracer.ask(&command, &[]);
        }
        let outcome = self.handle(answer);
        if let Some(error) = error {
            return Err(error);
        }
        match outcome? {
            Outcome::StartUp(start_up) => Ok(start_up),
            other => Err(unexpected(&other).into()),
        }
    }

    pub(crate) fn follow_execs(&mut self) -> Result<(), LaunchError> {
        self.command(Command::FollowExecs).map(drop)
    }

    pub(crate) fn next_stop(&mut self) -> Result<Option<ProgramStop>, LaunchError> {
        match self.command(Command::NextStop)? {
            Outcome::Stop(stop) => Ok(stop),
            _ => Ok(None),
        }
    }

    pub(crate) fn stop(&mut self) -> Result<bool, LaunchError> {
        Ok(matches!(self.command(Command::StopAll)?, Outcome::AllStopped(true)))
    }

    /// The program as a stopped process. All its threads must be held.
    pub(crate) fn stopped_process(&self) -> Result<Box<dyn StoppedProcess>, CollectError> {
        let tracer = self.tracer.clone().ok_or(CollectError::Ended(self.pid))?;
        Ok(Box::new(RemoteStopped::new(tracer, self.pid, None)?))
    }

    pub(crate) fn release(&mut self) -> Result<(), LaunchError> {
        self.command(Command::Release).map(drop)
    }

    pub(crate) fn try_reap(&mut self) -> Option<ExitStatus> {
        // If the command fails, the kernel has detached the process.
        let _ = self.command(Command::Reap);
        if self.tracer.is_none() && self.status.is_none() {
            self.status = ptrace::try_reap(self.pid).ok().flatten();
        }
        self.status
    }

    fn command(&mut self, command: Command) -> Result<Outcome, LaunchError> {
        self.command_with(command, None)
    }

    fn command_with(&mut self, command: Command, descriptor: Option<BorrowedFd<'_>>) -> Result<Outcome, LaunchError> {
        let Some(tracer) = &self.tracer else { return Ok(Outcome::Done) };
        let answer = tracer.ask(&command, descriptor.as_slice());
        self.handle(answer)
    }

    fn handle(&mut self, answer: Result<Answer, KeeperError>) -> Result<Outcome, LaunchError> {
        let (is_traced, status, outcome) = match answer {
            Ok(Answer::Launch { is_traced, status, outcome }) => (is_traced, status, outcome),
            Ok(other) => return Err(unexpected(&other)),
            Err(error) => {
                // The kernel detaches the process when its tracer exits.
                self.tracer = None;
                return Err(error.into());
            }
        };
        if !is_traced {
            self.tracer = None;
        }
        if let Some(status) = status {
            // The tracer has reaped the process; now its parent reaps it.
            if self.reaps {
                let _ = ptrace::try_reap(self.pid);
            }
            self.status = Some(ExitStatus::from_raw(status));
        }
        match outcome {
            Outcome::Unstoppable(pid) => Err(LaunchError::Unstoppable(pid)),
            Outcome::Suspended(pid) => Err(LaunchError::Suspended(pid)),
            Outcome::Failed(reason) => Err(LaunchError::Keeper(reason)),
            outcome => Ok(outcome),
        }
    }
}

impl AsFd for Launch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        // If the process cannot be detached yet, the keeper detaches it later.
        let _ = self.release();
    }
}

impl From<KeeperError> for LaunchError {
    fn from(error: KeeperError) -> Self {
        Self::Keeper(error.to_string())
    }
}

fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn not_traced() -> LaunchError {
    LaunchError::Keeper("the program is not traced any more".to_owned())
}

fn unexpected(answer: &dyn std::fmt::Debug) -> LaunchError {
    LaunchError::Keeper(format!("internal error: unexpected answer of the keeper: {answer:?}; please report it"))
}
