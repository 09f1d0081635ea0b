//! A program that a thread of the keeper holds, as the agent sees it.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};

use rustix::event::{EventfdFlags, eventfd};

use super::Tracer;
use super::protocol::{Answer, LaunchFailure, LaunchOrder, Now, Order, Outcome};
use super::stopped::RemoteStopped;
use crate::collect::{CollectError, Still};
use crate::ids::Pid;
use crate::keeper::{Keeper, KeeperError};
use crate::linux::inherited::Inherited;
use crate::linux::ptrace;
use crate::linux::spawn::spawn;
use crate::process::launch::{LaunchError, StartUp, Stir, has_one_thread};

/// A started program, or a process that has just begun. Dropping it lets the program run on: at once, or where it waits in the
/// kernel, when it wakes. See [`crate::process::launch::Launch`], which is the keeper's side.
#[derive(Debug)]
pub(crate) struct Launch {
    pid: Pid,
    state: State,
    /// Readable when [`next_stir`](Self::next_stir) may have news.
    stirs: OwnedFd,
}

#[derive(Debug)]
enum State {
    Traced(Tracer),
    /// Runs as if it had never been held, or the keeper has exited.
    Free,
    /// Was reaped.
    Ended(ExitStatus),
}

impl Launch {
    /// Starts a command (the program, looked up in `PATH`, and its arguments) as a child of this process, with its standard streams,
    /// process group, environment and working folder, and with what is to be inherited. It is held at its exec: nothing of
    /// it has run.
    ///
    /// # Errors
    ///
    /// [`LaunchError`], also in the place of what the new process could not do. Nothing is left running.
    pub(crate) fn start(keeper: &Keeper, command: &[OsString], inherited: Inherited) -> Result<Self, LaunchError> {
        let (program, arguments) = command.split_first().ok_or(LaunchError::Empty)?;
        let name = program.to_string_lossy().into_owned();
        let mut child = Command::new(program);
        child.args(arguments);
        let tracer = Tracer::start(keeper).map_err(|error| LaunchError::Keeper(error.to_string()))?;
        let fork_failed = |error| LaunchError::Fork(name.clone(), error);
        let stirs = event().map_err(fork_failed)?;
        let mut spawned = spawn(child, inherited).map_err(fork_failed)?;
        let mut launch = Self { pid: spawned.pid(), state: State::Traced(tracer), stirs };
        launch.ask(LaunchOrder::Start { pid: launch.pid, program: name.clone() })?;
        spawned.go_on();
        let State::Traced(tracer) = &launch.state else { return Err(gone()) };
        // Where the program cannot be run, the tracer reaps the child, and then the thread that has started it does.
        let begun = tracer.answer();
        if let Some(error) = spawned.exec_error() {
            return Err(LaunchError::not_run(Path::new(program), name, error));
        }
        launch.take(begun).map(|_| launch)
    }

    /// Holds a process that has just begun, and stops it wherever it is: to be stepped like a started one. Its parent does not
    /// notice.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Keeper`] where somebody else traces it or tracing is forbidden, [`LaunchError::Unstoppable`] where it
    /// waits in the kernel. It runs on.
    pub(crate) fn hold(keeper: &Keeper, pid: Pid) -> Result<Self, LaunchError> {
        let tracer = Tracer::start(keeper).map_err(|error| LaunchError::Keeper(error.to_string()))?;
        let stirs = event().map_err(|error| LaunchError::Trace(format!("process {pid}"), error))?;
        let mut launch = Self { pid, state: State::Traced(tracer), stirs };
        launch.ask(LaunchOrder::Hold(pid))?;
        Ok(launch)
    }

    /// Its number, also after its end.
    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether it has one thread: others are not held, and may do anything meanwhile. False if that cannot be told.
    pub(crate) fn is_alone(&self) -> bool {
        has_one_thread(self.pid)
    }

    /// From now on a held program is held again when it ends.
    pub(crate) fn hold_at_exit(&mut self) -> Result<(), LaunchError> {
        self.ask(LaunchOrder::HoldAtExit).map(drop)
    }

    /// Runs a held program until all is mapped that it starts with, and holds it there, unless it waits in the kernel.
    /// `on_new_code` is called while it is stopped: at once, and whenever code was mapped of which nothing has run yet. Its argument
    /// says whether the program stands at an exec. Blocks, but for no more than a few seconds.
    ///
    /// # Errors
    ///
    /// What `on_new_code` returns, and [`LaunchError::Keeper`].
    pub(crate) fn step_until_loaded<E: From<LaunchError>>(
        &mut self,
        on_new_code: &mut dyn FnMut(bool) -> Result<(), E>,
    ) -> Result<StartUp, E> {
        let State::Traced(tracer) = &self.state else {
            return Err(gone().into());
        };
        let tracer = tracer.clone();
        let mut error = None;
        let mut answer = tracer.ask(&Order::Launch(LaunchOrder::Step), &[]);
        while let Ok(Answer::NewCode { at_exec }) = answer {
            error = on_new_code(at_exec).err();
            let order = if error.is_some() { LaunchOrder::Abandon } else { LaunchOrder::GoOn };
            answer = tracer.ask(&Order::Launch(order), &[]);
        }
        let outcome = self.take(answer);
        if let Some(error) = error {
            return Err(error);
        }
        match outcome? {
            Outcome::StartUp(start_up) => Ok(start_up),
            other => Err(unexpected(&other).into()),
        }
    }

    /// Lets a held program run, but stops it at its next exec, which [`next_stir`](Self::next_stir) reports.
    pub(crate) fn follow_execs(&mut self) -> Result<(), LaunchError> {
        self.ask(LaunchOrder::FollowExecs).map(drop)
    }

    /// Why a followed program is held, if it is: [`follow_execs`](Self::follow_execs) lets it go on, for one that ends to its
    /// end. Reports the same until then. To be called when [`AsFd`] is readable.
    pub(crate) fn next_stir(&mut self) -> Result<Option<Stir>, LaunchError> {
        match self.ask(LaunchOrder::NextStir)? {
            Outcome::Stir(stir) => Ok(stir),
            _ => Ok(None),
        }
    }

    /// Stops all threads of a followed program wherever they are, until [`follow_execs`](Self::follow_execs) lets them go on. False, and
    /// it runs on, where it calls exec or ends instead, and where it is not held at its exit.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Unstoppable`] where a thread waits in the kernel, as `vfork` does: the program runs on.
    pub(crate) fn stop(&mut self) -> Result<bool, LaunchError> {
        Ok(matches!(self.ask(LaunchOrder::StopAll)?, Outcome::AllStopped(true)))
    }

    /// The program, all threads of which are held: stopped, or at its exit.
    ///
    /// # Errors
    ///
    /// When its threads cannot be read, or there is no keeper any more.
    pub(crate) fn still(&self) -> Result<Box<dyn Still>, CollectError> {
        match &self.state {
            State::Traced(tracer) => Ok(Box::new(RemoteStopped::new(tracer.clone(), self.pid)?)),
            _ => Err(CollectError::Ended(self.pid)),
        }
    }

    /// Lets go of the program: from now on it runs as if it had never been held, and may be debugged.
    ///
    /// # Errors
    ///
    /// [`LaunchError::Unstoppable`] for a followed program that waits in the kernel, as `vfork` does. It is let go when it wakes.
    pub(crate) fn release(&mut self) -> Result<(), LaunchError> {
        self.ask(LaunchOrder::Release).map(drop)
    }

    /// How the program ended, if it has: it is reaped by this, and by nothing else.
    pub(crate) fn try_reap(&mut self) -> Option<ExitStatus> {
        // Where this fails, the kernel has let go of it.
        let _ = self.ask(LaunchOrder::Reap);
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

    /// Nothing is asked of a program that is not traced any more.
    fn ask(&mut self, order: LaunchOrder) -> Result<Outcome, LaunchError> {
        let State::Traced(tracer) = &self.state else { return Ok(Outcome::Done) };
        let has_stirs = matches!(order, LaunchOrder::Start { .. });
        let descriptors: &[BorrowedFd<'_>] = if has_stirs { &[self.stirs.as_fd()] } else { &[] };
        let answer = tracer.ask(&Order::Launch(order), descriptors);
        self.take(answer)
    }

    fn take(&mut self, answer: Result<Answer, KeeperError>) -> Result<Outcome, LaunchError> {
        let (now, outcome) = match answer {
            Ok(Answer::Launch { now, outcome }) => (now, outcome),
            Ok(other) => return Err(unexpected(&other)),
            Err(error) => {
                // The kernel lets go of it when its tracer exits.
                self.state = State::Free;
                return Err(LaunchError::Keeper(error.to_string()));
            }
        };
        match now {
            Now::Traced => {}
            Now::Free => self.state = State::Free,
            Now::Ended(status) => {
                // The tracer has reaped it; the parent does now.
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
        self.stirs.as_fd()
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        // Where it cannot be let go yet, the keeper does when it can.
        let _ = self.release();
    }
}

fn event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn gone() -> LaunchError {
    LaunchError::Keeper("the program is not held any more".to_owned())
}

fn unexpected(answer: &dyn std::fmt::Debug) -> LaunchError {
    LaunchError::Keeper(format!("internal error: unexpected answer of the keeper: {answer:?}; please report it"))
}
