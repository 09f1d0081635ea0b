//! Connections of the agent to the keeper.
//!
//! ```text
//! agent: Tracer ── commands ─▶ keeper: a thread for each Tracer ── ptrace ─▶ process
//! ```
//! The kernel accepts requests about a traced thread only from its tracing thread: so each [`Tracer`] has its own
//! thread and channel, and its tracees resume when the channel closes. The agent reads memory itself, which requires no
//! tracing.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;
use tracing::debug;

use super::protocol::{ANSWER_BYTES_MAX, Answer, COMMAND, Command, LinkId, REPLY_BYTES_MAX, Reply, Request, Site};
use crate::bpf::load::LinkKind;
use crate::ids::Pid;
use crate::linux::channel::Channel;
use crate::linux::companion::Companion;
use crate::linux::pidfd::PidFd;

/// Why the keeper cannot do what was requested.
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
    Exited(io::Error),
    /// The kernel's error.
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

    /// Returns a descriptor that becomes readable when the keeper exits.
    pub(crate) fn watch(&self) -> Result<PidFd, KeeperError> {
        PidFd::open(self.lock().pid()).map_err(KeeperError::Exited)
    }

    /// Attaches programs to instructions of a file, all of them or none, in one process or in every process that maps
    /// the file. `programs` are [`Kernel::hook_programs`](crate::bpf::load::Kernel::hook_programs).
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
            Reply::Refused(reason) => Err(KeeperError::Refused(reason)),
            Reply::Settled => Err(KeeperError::Exited(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Waits until all dropped links are detached.
    pub(crate) fn settle(&self) -> Result<(), KeeperError> {
        self.request(&Request::Settle, &[]).map(|_| ())
    }

    fn request(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<Reply, KeeperError> {
        let companion = self.lock();
        let channel = companion.channel().ok_or_else(gone)?;
        send(channel, request, descriptors).map_err(KeeperError::Exited)?;
        let reply = channel.receive(REPLY_BYTES_MAX).map_err(KeeperError::Exited)?.ok_or_else(gone)?;
        postcard::from_bytes(&reply.bytes).map_err(|error| KeeperError::Exited(io::Error::other(error)))
    }

    /// Does not wait for completion.
    fn detach(&self, id: LinkId) {
        let companion = self.lock();
        // If the keeper has exited, its links are closed.
        let _ = companion.channel().map(|channel| send(channel, &Request::Detach(id), &[]));
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

fn gone() -> KeeperError {
    KeeperError::Exited(io::ErrorKind::BrokenPipe.into())
}

fn send(channel: &Channel, request: &Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    channel.send(&postcard::to_stdvec(request).map_err(io::Error::other)?, descriptors)
}

/// A tracing thread of the keeper. Dropping the last clone resumes the process.
#[derive(Clone, Debug)]
pub(super) struct Tracer {
    channel: Rc<Channel>,
    /// Keeps the keeper running while the process is traced.
    pub(super) keeper: Keeper,
}

impl Tracer {
    /// Starts a thread, or takes the one that [`Keeper::prepare_tracer`] has started.
    pub(super) fn start(keeper: &Keeper) -> Result<Self, KeeperError> {
        let spare = keeper.spare().take();
        let channel = spare.map_or_else(|| keeper.start_tracer(), Ok)?;
        Ok(Self { channel: Rc::new(channel), keeper: keeper.clone() })
    }

    pub(super) fn ask(&self, command: &Command, descriptors: &[BorrowedFd<'_>]) -> Result<Answer, KeeperError> {
        let bytes = postcard::to_stdvec(command).map_err(|error| KeeperError::Refused(error.to_string()))?;
        self.channel.send(&bytes, descriptors).map_err(KeeperError::Exited)?;
        self.answer()
    }

    pub(super) fn answer(&self) -> Result<Answer, KeeperError> {
        let answer = self.channel.receive(ANSWER_BYTES_MAX).map_err(KeeperError::Exited)?.ok_or_else(gone)?;
        postcard::from_bytes(&answer.bytes).map_err(|error| KeeperError::Exited(io::Error::other(error)))
    }
}

impl Keeper {
    /// Starts a spare tracing thread, if there is none: a process that has just started calls its allocator within a
    /// millisecond, of which starting a thread would take a tenth and more. On errors, the thread is started when it is
    /// needed.
    pub(crate) fn prepare_tracer(&self) {
        let mut spare = self.spare();
        if spare.is_none() {
            *spare = self.start_tracer().inspect_err(|error| debug!("{error}")).ok();
        }
    }

    fn start_tracer(&self) -> Result<Channel, KeeperError> {
        let (channel, theirs) = Channel::pair().map_err(KeeperError::of_start)?;
        match self.request(&Request::Trace, &[theirs.as_fd()])? {
            Reply::Settled => Ok(channel),
            Reply::Refused(reason) => Err(KeeperError::Refused(reason)),
            Reply::Attached(_) => Err(KeeperError::Exited(io::ErrorKind::InvalidData.into())),
        }
    }

    fn spare(&self) -> MutexGuard<'_, Option<Channel>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
