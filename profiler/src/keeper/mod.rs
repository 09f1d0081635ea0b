//! The process that owns what must not be interrupted: every uprobe link, and every stop and injection by ptrace. `kill -9` of the agent in the middle of attaching or
//! detaching would leave breakpoints in targets: the kernel removes them by writing to the target's pages, and cannot fault
//! those in while SIGKILL is pending (`uprobe: … failed to unregister, leaking uprobe`). So links are created and closed by a
//! process of their own, in a session of its own, which ignores the signals of terminals and service managers. An injected system
//! call that is interrupted half-way would crash the target, so threads are stopped and made to call by the same process.
//! When the agent exits, at whatever moment, the keeper finishes the request at hand, resumes stopped threads, closes all links
//! and exits.
//!
//! ```text
//! agent ── requests, with descriptors ─▶ keeper: `heapbpf keeper` ── links ─▶ kernel
//! ```
//! This file is the agent's side; [`serve`](serve()) is the keeper's.

mod links;
mod protocol;
mod serve;
mod tracing;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

use crate::bpf::load::LinkKind;
use crate::ids::Pid;
use crate::linux::channel::Channel;
use crate::linux::companion::Companion;
use crate::linux::pidfd::PidFd;

pub(crate) use protocol::Site;
use protocol::{LinkId, REPLY_BYTES_MAX, Reply, Request};
pub use serve::{COMMAND, serve};
pub(crate) use tracing::{Launch, stop};

/// Why the keeper cannot do what was requested.
#[derive(Debug, Error)]
pub(crate) enum KeeperError {
    /// There is none.
    #[error(
        "cannot start the keeper process: {0}; heapbpf needs one process and one socket more (`ulimit -u`, `pids.max`)"
    )]
    Start(io::Error),
    /// There are no descriptors left for the connection to it.
    #[error(
        "cannot start the keeper process: too many open files; heapbpf needs about 50, and more for its targets; raise the limit (`ulimit -n`)"
    )]
    NoDescriptors,
    /// It has exited.
    #[error("the keeper process has exited: {0}")]
    Exited(io::Error),
    /// The kernel refuses.
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

/// The keeper process, as the agent sees it. Dropping the last clone, and the last [`Link`], waits until all is detached.
#[derive(Clone, Debug)]
pub(crate) struct Keeper {
    /// Of a tracing thread that nothing is ordered of yet. Closed before the process is waited for.
    spare: Arc<Mutex<Option<Channel>>>,
    companion: Arc<Mutex<Companion>>,
}

/// Attached probes: those of one file in one process, or in all. Dropping it has them detached, soon.
#[derive(Debug)]
pub(crate) struct Link {
    keeper: Keeper,
    id: LinkId,
}

impl Keeper {
    /// Starts the process.
    ///
    /// # Errors
    ///
    /// [`KeeperError::Start`], [`KeeperError::NoDescriptors`].
    pub(crate) fn start() -> Result<Self, KeeperError> {
        let companion = Companion::start(COMMAND).map_err(KeeperError::of_start)?;
        Ok(Self { spare: Arc::default(), companion: Arc::new(Mutex::new(companion)) })
    }

    /// The process.
    pub(crate) fn pid(&self) -> Pid {
        self.lock().pid()
    }

    /// A descriptor that becomes readable when the keeper exits.
    ///
    /// # Errors
    ///
    /// [`KeeperError::Exited`] when it has.
    pub(crate) fn watch(&self) -> Result<PidFd, KeeperError> {
        PidFd::open(self.lock().pid()).map_err(KeeperError::Exited)
    }

    /// Attaches these programs to instructions of a file, all of them or none: in one process, or in every process that maps the file.
    /// `programs` are those of the kind: one for sessions; for the others that of entries and that of returns.
    ///
    /// # Errors
    ///
    /// See [`KeeperError`]; then nothing is attached.
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

    /// Waits until every link that was dropped is detached.
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

    /// Does not wait: there is no reply.
    fn detach(&self, id: LinkId) {
        let companion = self.lock();
        // Where the keeper has exited, its links are closed.
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
