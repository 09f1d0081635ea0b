//! Processes that the keeper traces, as seen by the agent.

use std::ffi::OsString;
use std::io::{self, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::client::{Keeper, KeeperError, Tracer};
use super::protocol::{
    Answer, CodeRange, Command as KeeperCommand, LaunchCommand, LaunchFailure, Outcome, ProgramState,
};
use crate::collect::{CollectError, ProcessCopy, StoppedProcess, ThreadState};
use crate::ids::Pid;
use crate::linux::inherited::Inherited;
use crate::linux::pidfd::PidFd;
use crate::linux::proc::maps::Region;
use crate::linux::ptrace;
use crate::linux::spawn::spawn;
use crate::process::launch::{LaunchError, ProgramStop, StartUp, has_one_thread};

/// A launched program, or a process that has just started. Dropping it detaches: at once, or when it wakes up from an
/// uninterruptible wait. The keeper's side is [`crate::process::launch::Launch`], which documents the methods; its
/// [`LaunchError::Trace`] arrives here as [`LaunchError::Keeper`].
#[derive(Debug)]
pub(crate) struct Launch {
    pid: Pid,
    state: State,
    /// Readable when [`next_stop`](Self::next_stop) may have news.
    events: OwnedFd,
}

#[derive(Debug)]
enum State {
    Traced(Tracer),
    /// Not traced (any more), or the keeper has exited.
    Free,
    /// Was reaped.
    Ended(ExitStatus),
}

impl Launch {
    /// Starts a command (the program, looked up in `PATH`, and its arguments) as a child of this process, with its
    /// standard streams, process group, environment and working directory, and with the inherited state. The program is
    /// held at its exec, before its first instruction. On errors no process is left.
    pub(crate) fn start(keeper: &Keeper, command: &[OsString], inherited: Inherited) -> Result<Self, LaunchError> {
        let (program, arguments) = command.split_first().ok_or(LaunchError::Empty)?;
        let name = program.to_string_lossy().into_owned();
        let mut child = Command::new(program);
        child.args(arguments);
        let tracer = Tracer::start(keeper).map_err(|error| LaunchError::Keeper(error.to_string()))?;
        let fork_failed = |error| LaunchError::Fork(name.clone(), error);
        let events = event().map_err(fork_failed)?;
        let mut spawned = spawn(child, inherited).map_err(fork_failed)?;
        let mut launch = Self { pid: spawned.pid(), state: State::Traced(tracer), events };
        launch.command(LaunchCommand::Start { pid: launch.pid, program: name.clone() })?;
        spawned.start_exec();
        let State::Traced(tracer) = &launch.state else { return Err(not_traced()) };
        // If exec fails, the tracer reaps the child first, and then the thread that started it.
        let started = tracer.answer();
        if let Some(error) = spawned.exec_error() {
            return Err(LaunchError::not_run(Path::new(program), name, error));
        }
        launch.handle(started).map(|_| launch)
    }

    pub(crate) fn hold(keeper: &Keeper, pid: Pid) -> Result<Self, LaunchError> {
        let tracer = Tracer::start(keeper).map_err(|error| LaunchError::Keeper(error.to_string()))?;
        let events = event().map_err(|error| LaunchError::Trace(format!("process {pid}"), error))?;
        let mut launch = Self { pid, state: State::Traced(tracer), events };
        launch.command(LaunchCommand::Hold(pid))?;
        Ok(launch)
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn is_alone(&self) -> bool {
        has_one_thread(self.pid)
    }

    pub(crate) fn hold_at_exit(&mut self) -> Result<(), LaunchError> {
        self.command(LaunchCommand::HoldAtExit).map(drop)
    }

    pub(crate) fn step_until_loaded<E: From<LaunchError>>(
        &mut self,
        on_new_code: &mut dyn FnMut(bool) -> Result<(), E>,
    ) -> Result<StartUp, E> {
        let State::Traced(tracer) = &self.state else {
            return Err(not_traced().into());
        };
        let tracer = tracer.clone();
        let mut error = None;
        let mut answer = tracer.ask(&KeeperCommand::Launch(LaunchCommand::Step), &[]);
        while let Ok(Answer::NewCode { at_exec }) = answer {
            error = on_new_code(at_exec).err();
            let command = if error.is_some() { LaunchCommand::Abandon } else { LaunchCommand::Continue };
            answer = tracer.ask(&KeeperCommand::Launch(command), &[]);
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
        self.command(LaunchCommand::FollowExecs).map(drop)
    }

    pub(crate) fn next_stop(&mut self) -> Result<Option<ProgramStop>, LaunchError> {
        match self.command(LaunchCommand::NextStop)? {
            Outcome::Stop(stop) => Ok(stop),
            _ => Ok(None),
        }
    }

    pub(crate) fn stop(&mut self) -> Result<bool, LaunchError> {
        Ok(matches!(self.command(LaunchCommand::StopAll)?, Outcome::AllStopped(true)))
    }

    /// The program as a stopped process. All its threads must be held.
    pub(crate) fn stopped_process(&self) -> Result<Box<dyn StoppedProcess>, CollectError> {
        match &self.state {
            State::Traced(tracer) => Ok(Box::new(RemoteStopped::new(tracer.clone(), self.pid)?)),
            _ => Err(CollectError::Ended(self.pid)),
        }
    }

    pub(crate) fn release(&mut self) -> Result<(), LaunchError> {
        self.command(LaunchCommand::Release).map(drop)
    }

    pub(crate) fn try_reap(&mut self) -> Option<ExitStatus> {
        // If this fails, the kernel has detached it.
        let _ = self.command(LaunchCommand::Reap);
        if let State::Free = self.state
            && let Ok(Some(status)) = ptrace::try_reap(self.pid)
        {
            self.state = State::Ended(status);
        }
        match self.state {
            State::Ended(status) => Some(status),
            _ => None,
        }
    }

    /// Does nothing for a program that is not traced any more.
    fn command(&mut self, command: LaunchCommand) -> Result<Outcome, LaunchError> {
        let State::Traced(tracer) = &self.state else { return Ok(Outcome::Done) };
        let has_events = matches!(command, LaunchCommand::Start { .. });
        let descriptors: &[BorrowedFd<'_>] = if has_events { &[self.events.as_fd()] } else { &[] };
        let answer = tracer.ask(&KeeperCommand::Launch(command), descriptors);
        self.handle(answer)
    }

    fn handle(&mut self, answer: Result<Answer, KeeperError>) -> Result<Outcome, LaunchError> {
        let (state, outcome) = match answer {
            Ok(Answer::Launch { state, outcome }) => (state, outcome),
            Ok(other) => return Err(unexpected(&other)),
            Err(error) => {
                // The kernel detaches it when its tracer exits.
                self.state = State::Free;
                return Err(LaunchError::Keeper(error.to_string()));
            }
        };
        match state {
            ProgramState::Traced => {}
            ProgramState::Free => self.state = State::Free,
            ProgramState::Ended(status) => {
                // The tracer has reaped it; now its parent reaps it.
                let _ = ptrace::try_reap(self.pid);
                self.state = State::Ended(ExitStatus::from_raw(status));
            }
        }
        match outcome {
            Outcome::Failed(LaunchFailure::Unstoppable(pid)) => Err(LaunchError::Unstoppable(pid)),
            Outcome::Failed(LaunchFailure::Other(reason)) => Err(LaunchError::Keeper(reason)),
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
        // If it cannot be detached yet, the keeper does so when it can.
        let _ = self.release();
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

#[derive(Debug)]
struct RemoteStopped {
    tracer: Tracer,
    pid: Pid,
    living: Pid,
    threads: Vec<ThreadState>,
    is_released: bool,
}

impl RemoteStopped {
    /// Stops all threads of a process.
    fn new(tracer: Tracer, pid: Pid) -> Result<Self, CollectError> {
        match tracer.ask(&KeeperCommand::Stop(pid), &[]) {
            Ok(Answer::Stopped { living, threads }) => Ok(Self { tracer, pid, living, threads, is_released: false }),
            other => Err(failed(other)),
        }
    }
}

impl StoppedProcess for RemoteStopped {
    fn living_thread(&self) -> Pid {
        self.living
    }

    fn states(&self) -> Result<Vec<ThreadState>, CollectError> {
        Ok(self.threads.clone())
    }

    fn fork(&mut self, mapped: &[Region]) -> Result<Box<dyn ProcessCopy>, CollectError> {
        let refused = |source| CollectError::Refused { pid: self.pid, what: "open a descriptor for a copy of", source };
        let (line, lent) = io::pipe().map_err(refused)?;
        match self.tracer.ask(&KeeperCommand::Fork(CodeRange::of(mapped)), &[line.as_fd()]) {
            Ok(Answer::Forked(pid)) => {
                let process = PidFd::open(pid).map_err(refused)?;
                Ok(Box::new(RemoteCopy { pid, process, _lent: lent, _keeper: self.tracer.keeper.clone() }))
            }
            other => Err(failed(other)),
        }
    }

    fn release(mut self: Box<Self>) -> Result<Duration, CollectError> {
        self.is_released = true;
        match self.tracer.ask(&KeeperCommand::Resume, &[]) {
            Ok(Answer::Resumed(pause)) => Ok(pause),
            other => Err(failed(other)),
        }
    }
}

impl Drop for RemoteStopped {
    fn drop(&mut self) {
        if !self.is_released {
            // If the keeper has exited, the kernel has resumed the process.
            let _ = self.tracer.ask(&KeeperCommand::Resume, &[]);
        }
    }
}

#[derive(Debug)]
struct RemoteCopy {
    pid: Pid,
    process: PidFd,
    /// The keeper ends the copy when this is closed.
    _lent: PipeWriter,
    /// Keeps the keeper running until the copy has exited.
    _keeper: Keeper,
}

impl ProcessCopy for RemoteCopy {
    fn pid(&self) -> Pid {
        self.pid
    }

    fn has_ended(&self) -> bool {
        self.process.has_ended().unwrap_or(true)
    }
}

fn failed(answer: Result<Answer, KeeperError>) -> CollectError {
    CollectError::Keeper(match answer {
        Ok(Answer::Failed(reason)) => reason,
        Ok(other) => format!("internal error: unexpected answer of the keeper: {other:?}; please report it"),
        Err(error) => error.to_string(),
    })
}

/// Stops all threads of a process. On errors, all of them resume.
pub(crate) fn stop(keeper: &Keeper, pid: Pid) -> Result<Box<dyn StoppedProcess>, CollectError> {
    let tracer = Tracer::start(keeper).map_err(|error| CollectError::Keeper(error.to_string()))?;
    Ok(Box::new(RemoteStopped::new(tracer, pid)?))
}
