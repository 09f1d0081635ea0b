//! The agent's side. Each [`Tracer`] has its own thread in the keeper, because the kernel accepts ptrace requests only
//! from the tracing thread, and its tracees resume when its channel closes.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{self, ExitStatus};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use serde::de::DeserializeOwned;
use thiserror::Error;
use tracing::debug;

use super::protocol::{
    ANSWER_BYTES_MAX, Answer, COMMAND, Command, LinkId, Outcome, REPLY_BYTES_MAX, Reply, Request, Site, code_regions,
};
use crate::bpf::load::LinkKind;
use crate::collect::{CollectError, ProcessCopy, StoppedProcess, ThreadState};
use crate::ids::Pid;
use crate::linux::companion::{Channel, Companion};
use crate::linux::pidfd::PidFd;
use crate::linux::proc::maps::Region;
use crate::linux::ptrace;
use crate::linux::signals::Inherited;
use crate::linux::spawn::spawn;
use crate::process::launch::{LaunchError, ProgramStop, StartUp, has_one_thread};

#[derive(Debug, Error)]
pub(crate) enum KeeperError {
    #[error(
        "cannot start the keeper process: {0}; heapbpf needs one process and one socket more (`ulimit -u`, `pids.max`)"
    )]
    Start(io::Error),
    #[error(
        "cannot start the keeper process: too many open files; heapbpf needs about 50, and more for its targets; raise the limit (`ulimit -n`)"
    )]
    NoDescriptors,
    #[error("the keeper process has exited: {0}")]
    Exited(#[from] io::Error),
    #[error("{0}")]
    Refused(String),
}

impl KeeperError {
    fn of_start(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EMFILE) => Self::NoDescriptors,
            _ => Self::Start(error),
        }
    }
}

/// The keeper process. Dropping the last clone and the last [`Link`] waits until everything is detached.
#[derive(Clone, Debug)]
pub(crate) struct Keeper {
    /// Channel of an idle tracing thread. Closed before the process is waited for.
    spare: Arc<Mutex<Option<Channel>>>,
    companion: Arc<Mutex<Companion>>,
}

/// Attached probes of one file, in one process or in all. Dropping it starts detaching them.
#[derive(Debug)]
pub(crate) struct Link {
    keeper: Keeper,
    id: LinkId,
}

impl Keeper {
    pub(crate) fn start() -> Result<Self, KeeperError> {
        let companion = Companion::start(COMMAND).map_err(KeeperError::of_start)?;
        Ok(Self { spare: Arc::default(), companion: Arc::new(Mutex::new(companion)) })
    }

    pub(crate) fn pid(&self) -> Pid {
        self.lock().pid()
    }

    pub(crate) fn pidfd(&self) -> Result<PidFd, KeeperError> {
        Ok(PidFd::open(self.pid())?)
    }

    /// All instructions or none. `programs` are [`Kernel::hook_programs`](crate::bpf::load::Kernel::hook_programs).
    pub(crate) fn attach(
        &self,
        kind: LinkKind,
        programs: &[BorrowedFd<'_>],
        file: &File,
        sites: Vec<Site>,
        pid: Option<Pid>,
    ) -> Result<Link, KeeperError> {
        let descriptors: Vec<BorrowedFd<'_>> = std::iter::once(file.as_fd()).chain(programs.iter().copied()).collect();
        let id = self.request(&Request::Attach { kind, sites, pid }, &descriptors)?;
        Ok(Link { keeper: self.clone(), id: id.ok_or(io::Error::from(io::ErrorKind::InvalidData))? })
    }

    pub(crate) fn settle(&self) -> Result<(), KeeperError> {
        self.request(&Request::Settle, &[]).map(drop)
    }

    fn request(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<Option<LinkId>, KeeperError> {
        let companion = self.lock();
        let channel = companion.channel().ok_or(io::Error::from(io::ErrorKind::BrokenPipe))?;
        channel.send_value(request, descriptors)?;
        match receive(channel, REPLY_BYTES_MAX)? {
            Reply::Attached(id) => Ok(Some(id)),
            Reply::Settled => Ok(None),
            Reply::Refused(reason) => Err(KeeperError::Refused(reason)),
        }
    }

    /// Does not wait for completion.
    fn detach(&self, id: LinkId) {
        let companion = self.lock();
        // If the keeper has exited, its links are closed.
        let _ = companion.channel().map(|channel| channel.send_value(&Request::Detach(id), &[]));
    }

    fn lock(&self) -> MutexGuard<'_, Companion> {
        self.companion.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.keeper.detach(self.id);
    }
}

fn receive<T: DeserializeOwned>(channel: &Channel, bytes_max: usize) -> Result<T, KeeperError> {
    let (value, _) = channel.receive_value(bytes_max)?.ok_or(io::Error::from(io::ErrorKind::BrokenPipe))?;
    Ok(value)
}

/// A tracing thread of the keeper. Dropping the last clone resumes the process.
#[derive(Clone, Debug)]
struct Tracer {
    channel: Rc<Channel>,
    keeper: Keeper,
}

impl Tracer {
    fn start(keeper: &Keeper) -> Result<Self, KeeperError> {
        let spare = keeper.spare().take();
        let channel = spare.map_or_else(|| keeper.start_tracer(), Ok)?;
        Ok(Self { channel: Rc::new(channel), keeper: keeper.clone() })
    }

    fn ask(&self, command: &Command, descriptors: &[BorrowedFd<'_>]) -> Result<Answer, KeeperError> {
        self.channel.send_value(command, descriptors)?;
        self.answer()
    }

    fn answer(&self) -> Result<Answer, KeeperError> {
        receive(&self.channel, ANSWER_BYTES_MAX)
    }
}

impl Keeper {
    /// Starts a spare thread: a process that has just started calls its allocator within a millisecond, of which
    /// starting a thread takes a tenth or more. On errors, the thread is started when it is needed.
    pub(crate) fn prepare_tracer(&self) {
        let mut spare = self.spare();
        if spare.is_none() {
            *spare = self.start_tracer().inspect_err(|error| debug!("{error}")).ok();
        }
    }

    fn start_tracer(&self) -> Result<Channel, KeeperError> {
        let (channel, theirs) = Channel::pair().map_err(KeeperError::of_start)?;
        self.request(&Request::Trace, &[theirs.as_fd()])?;
        Ok(channel)
    }

    fn spare(&self) -> MutexGuard<'_, Option<Channel>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Dropping it detaches: at once, or after an uninterruptible wait. [`crate::process::launch::Launch`] documents the
/// methods; its [`LaunchError::Trace`] arrives as [`LaunchError::Keeper`].
#[derive(Debug)]
pub(crate) struct Launch {
    pid: Pid,
    /// `None` if it is not traced (any more), or the keeper has exited.
    tracer: Option<Tracer>,
    status: Option<ExitStatus>,
    /// Readable when [`next_stop`](Self::next_stop) may have news.
    events: OwnedFd,
}

impl Launch {
    /// `command` is the program, looked up in `PATH`, and its arguments. It inherits streams, process group,
    /// environment and directory, and is held at its exec. On errors no process is left.
    pub(crate) fn start(keeper: &Keeper, command: &[OsString], inherited: Inherited) -> Result<Self, LaunchError> {
        let (program, arguments) = command.split_first().ok_or(LaunchError::Empty)?;
        let name = program.to_string_lossy().into_owned();
        let mut child = process::Command::new(program);
        child.args(arguments);
        let tracer = Tracer::start(keeper)?;
        let fork_failed = |error| LaunchError::Fork(name.clone(), error);
        let events = event().map_err(fork_failed)?;
        let mut spawned = spawn(child, inherited).map_err(fork_failed)?;
        let mut launch = Self { pid: spawned.pid(), tracer: Some(tracer), status: None, events };
        launch.command(Command::Start(launch.pid, name.clone()))?;
        spawned.start_exec();
        let tracer = launch.tracer.as_ref().ok_or_else(not_traced)?;
        // If exec fails, the tracer reaps the child first, and then the thread that started it.
        let started = tracer.answer();
        if let Some(error) = spawned.exec_error() {
            return Err(LaunchError::not_run(Path::new(program), name, error));
        }
        launch.handle(started).map(|_| launch)
    }

    pub(crate) fn hold(keeper: &Keeper, pid: Pid) -> Result<Self, LaunchError> {
        let tracer = Tracer::start(keeper)?;
        let events = event().map_err(|error| LaunchError::Trace(format!("process {pid}"), error))?;
        let mut launch = Self { pid, tracer: Some(tracer), status: None, events };
        launch.command(Command::Hold(pid))?;
        Ok(launch)
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
        Ok(Box::new(RemoteStopped::new(tracer, self.pid)?))
    }

    pub(crate) fn release(&mut self) -> Result<(), LaunchError> {
        self.command(Command::Release).map(drop)
    }

    pub(crate) fn try_reap(&mut self) -> Option<ExitStatus> {
        // If this fails, the kernel has detached it.
        let _ = self.command(Command::Reap);
        if self.tracer.is_none() && self.status.is_none() {
            self.status = ptrace::try_reap(self.pid).ok().flatten();
        }
        self.status
    }

    fn command(&mut self, command: Command) -> Result<Outcome, LaunchError> {
        let Some(tracer) = &self.tracer else { return Ok(Outcome::Done) };
        let has_events = matches!(command, Command::Start(..));
        let descriptors: &[BorrowedFd<'_>] = if has_events { &[self.events.as_fd()] } else { &[] };
        let answer = tracer.ask(&command, descriptors);
        self.handle(answer)
    }

    fn handle(&mut self, answer: Result<Answer, KeeperError>) -> Result<Outcome, LaunchError> {
        let (is_traced, status, outcome) = match answer {
            Ok(Answer::Launch { is_traced, status, outcome }) => (is_traced, status, outcome),
            Ok(other) => return Err(unexpected(&other)),
            Err(error) => {
                // The kernel detaches it when its tracer exits.
                self.tracer = None;
                return Err(error.into());
            }
        };
        if !is_traced {
            self.tracer = None;
        }
        if let Some(status) = status {
            // The tracer has reaped it; now its parent reaps it.
            let _ = ptrace::try_reap(self.pid);
            self.status = Some(ExitStatus::from_raw(status));
        }
        match outcome {
            Outcome::Unstoppable(pid) => Err(LaunchError::Unstoppable(pid)),
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
        // If it cannot be detached yet, the keeper does so when it can.
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

#[derive(Debug)]
struct RemoteStopped {
    tracer: Tracer,
    pid: Pid,
    living: Pid,
    threads: Vec<ThreadState>,
    is_released: bool,
}

impl RemoteStopped {
    fn new(tracer: Tracer, pid: Pid) -> Result<Self, CollectError> {
        match tracer.ask(&Command::Stop(pid), &[]) {
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
        match self.tracer.ask(&Command::Fork(code_regions(mapped)), &[line.as_fd()]) {
            Ok(Answer::Forked(pid)) => {
                let process = PidFd::open(pid).map_err(refused)?;
                Ok(Box::new(RemoteCopy { pid, process, _lent: lent, _keeper: self.tracer.keeper.clone() }))
            }
            other => Err(failed(other)),
        }
    }

    fn release(mut self: Box<Self>) -> Result<Duration, CollectError> {
        self.is_released = true;
        match self.tracer.ask(&Command::Resume, &[]) {
            Ok(Answer::Resumed(pause)) => Ok(pause),
            other => Err(failed(other)),
        }
    }
}

impl Drop for RemoteStopped {
    fn drop(&mut self) {
        if !self.is_released {
            // If the keeper has exited, the kernel has resumed the process.
            let _ = self.tracer.ask(&Command::Resume, &[]);
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

pub(crate) fn stop(keeper: &Keeper, pid: Pid) -> Result<Box<dyn StoppedProcess>, CollectError> {
    let tracer = Tracer::start(keeper).map_err(|error| failed(Err(error)))?;
    Ok(Box::new(RemoteStopped::new(tracer, pid)?))
}
