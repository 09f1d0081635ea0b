//! The agent's side of the keeper. Each [`Tracer`] has its own thread in the keeper, because the kernel accepts ptrace requests
//! only from the tracing thread, and its tracees resume when its channel closes.

use std::fs::File;
use std::io::{self, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use thiserror::Error;
use tracing::debug;

use super::protocol::{
    ANSWER_BYTES_MAX, Answer, COMMAND, Command, Installation, Installed, LinkId, REPLY_BYTES_MAX, Reply, Request, Site,
    code_regions,
};
use crate::bpf::load::LinkKind;
use crate::collect::{CollectError, ProcessCopy, StopLimit, StoppedProcess, ThreadState};
use crate::ids::Pid;
use crate::linux::companion::{Channel, Companion};
use crate::linux::pidfd::PidFd;
use crate::linux::proc::maps::Region;

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
    #[error("it has mapped memory of its own where stubs were to be")]
    Occupied,
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
    /// Channel of an idle tracing thread. It is closed before the process is waited for.
    spare: Arc<Mutex<Option<Channel>>>,
    companion: Arc<Mutex<Companion>>,
}

/// Attached probes of one file, in one process or in all. Dropping the link starts detaching them.
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

    /// Attaches probes to all sites or none. `programs` are [`Kernel::hook_programs`](crate::bpf::load::Kernel::hook_programs).
    pub(crate) fn attach(
        &self,
        kind: LinkKind,
        programs: &[BorrowedFd<'_>],
        file: &File,
        sites: Vec<Site>,
        pid: Option<Pid>,
    ) -> Result<Link, KeeperError> {
        let descriptors: Vec<BorrowedFd<'_>> = std::iter::once(file.as_fd()).chain(programs.iter().copied()).collect();
        match self.request(&Request::Attach { kind, sites, pid }, &descriptors)? {
            Reply::Attached(id) => Ok(Link { keeper: self.clone(), id }),
            _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
    }

    /// Installs stubs. `descriptors` are those of the code and of the filter; none if the stubs are mapped already.
    pub(crate) fn install(&self, plan: Installation, descriptors: &[BorrowedFd<'_>]) -> Result<Installed, KeeperError> {
        match self.request(&Request::Install(plan), descriptors)? {
            Reply::Installed(installed) => Ok(installed),
            _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
    }

    /// Offset of `struct rseq` from the thread pointer; `None` if the process has not registered it.
    pub(crate) fn rseq_offset(&self, pid: Pid) -> Result<Option<i32>, KeeperError> {
        match self.request(&Request::FindRseq(pid), &[])? {
            Reply::Rseq(offset) => Ok(offset),
            _ => Err(io::Error::from(io::ErrorKind::InvalidData).into()),
        }
    }

    pub(crate) fn remove_left_stubs(&self, plan: Installation) -> Result<(), KeeperError> {
        self.request(&Request::RemoveLeft(plan), &[]).map(drop)
    }

    pub(crate) fn adopt_stubs(&self, plan: Installation) {
        let companion = self.lock();
        let _ = companion.channel().map(|channel| channel.send_value(&Request::Adopt(plan), &[]));
    }

    /// Restores the slots of a process whose recording goes on. On errors, its calls still pass the stubs.
    pub(crate) fn hand_back(&self, pid: Pid) -> Result<(), KeeperError> {
        self.request(&Request::HandBack(pid), &[]).map(drop)
    }

    /// Requests the removal of a process's stubs. Does not wait for completion.
    pub(crate) fn remove_stubs(&self, pid: Pid) {
        let companion = self.lock();
        let _ = companion.channel().map(|channel| channel.send_value(&Request::Remove(pid), &[]));
    }

    /// Waits until all links that were detached are closed.
    pub(crate) fn finish_closing(&self) -> Result<(), KeeperError> {
        self.request(&Request::FinishClosing, &[]).map(drop)
    }

    pub(super) fn request(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<Reply, KeeperError> {
        let companion = self.lock();
        let channel = companion.channel().ok_or(io::Error::from(io::ErrorKind::BrokenPipe))?;
        channel.send_value(request, descriptors)?;
        match receive(channel, REPLY_BYTES_MAX)? {
            Reply::Refused(reason) => Err(KeeperError::Refused(reason)),
            Reply::Occupied => Err(KeeperError::Occupied),
            reply => Ok(reply),
        }
    }

    /// Requests that a link is closed. Does not wait for completion.
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
pub(super) struct Tracer {
    channel: Rc<Channel>,
    keeper: Keeper,
}

impl Tracer {
    pub(super) fn start(keeper: &Keeper) -> Result<Self, KeeperError> {
        let spare = keeper.spare().take();
        let channel = spare.map_or_else(|| keeper.start_tracer(), Ok)?;
        Ok(Self { channel: Rc::new(channel), keeper: keeper.clone() })
    }

    pub(super) fn ask(&self, command: &Command, descriptors: &[BorrowedFd<'_>]) -> Result<Answer, KeeperError> {
        self.channel.send_value(command, descriptors)?;
        self.answer()
    }

    pub(super) fn answer(&self) -> Result<Answer, KeeperError> {
        receive(&self.channel, ANSWER_BYTES_MAX)
    }

    /// Keeps the thread for the next process, unless something else uses it or there is a spare one. It must trace nothing: the
    /// kernel detaches what is left only when the thread exits.
    fn keep_as_spare(self) {
        if let Ok(channel) = Rc::try_unwrap(self.channel) {
            self.keeper.spare().get_or_insert(channel);
        }
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

#[derive(Debug)]
pub(super) struct RemoteStopped {
    tracer: Tracer,
    pid: Pid,
    living: Pid,
    threads: Vec<ThreadState>,
    limit: Option<StopLimit>,
    is_released: bool,
}

impl RemoteStopped {
    pub(super) fn new(tracer: Tracer, pid: Pid, limit: Option<Duration>) -> Result<Self, CollectError> {
        let begun = limit.map(StopLimit::begin);
        match tracer.ask(&Command::Stop(pid, limit), &[]) {
            Ok(Answer::Stopped { living, threads }) => {
                Ok(Self { tracer, pid, living, threads, limit: begun, is_released: false })
            }
            Ok(Answer::StoppedForLong) => Err(CollectError::StoppedForLong(pid, limit.unwrap_or_default())),
            other => Err(failed(other)),
        }
    }
}

impl StoppedProcess for RemoteStopped {
    fn living_thread(&self) -> Pid {
        self.living
    }

    fn limit(&self) -> Option<StopLimit> {
        self.limit
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
            Ok(Answer::Resumed { pause, is_idle }) => {
                let tracer = self.tracer.clone();
                drop(self);
                if is_idle {
                    tracer.keep_as_spare();
                }
                Ok(pause)
            }
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
    stop_within(keeper, pid, None)
}

/// Stops a process, and resumes it when the time is up. Then this fails, or the inspection of the process.
pub(crate) fn stop_within(
    keeper: &Keeper,
    pid: Pid,
    limit: Option<Duration>,
) -> Result<Box<dyn StoppedProcess>, CollectError> {
    let tracer = Tracer::start(keeper).map_err(|error| failed(Err(error)))?;
    Ok(Box::new(RemoteStopped::new(tracer, pid, limit)?))
}
