//! Tracing by the keeper: a thread of the keeper stops the threads of a process, and makes one of them fork, for the agent. What
//! must not be interrupted happens in the keeper, which does not wait for the agent in between. When the agent exits, at
//! whatever moment, the thread finishes what it has begun, ends copies and resumes the process.
//!
//! ```text
//! agent: Tracer ── orders ─▶ keeper: a thread for each Tracer ── ptrace ─▶ process
//! ```
//! The kernel accepts requests about a traced thread from its tracing thread alone: so each [`Tracer`] has a thread and a channel of
//! its own, and what it traces is resumed when the channel closes. The agent reads memory itself, which needs no tracing.

mod held;
mod launch;
mod peer;
mod protocol;
mod serve;
mod stopped;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::{MutexGuard, PoisonError};

use tracing::debug;

use super::protocol::{Reply, Request};
use super::{Keeper, KeeperError, gone};
use crate::collect::{CollectError, Still};
use crate::ids::Pid;
use crate::linux::channel::Channel;
pub(crate) use launch::Launch;
use protocol::{ANSWER_BYTES_MAX, Answer, Order};
pub(super) use serve::Tracers;
use stopped::RemoteStopped;

/// A thread of the keeper that traces a process. Dropping the last clone resumes the process.
#[derive(Clone, Debug)]
struct Tracer {
    channel: Rc<Channel>,
    /// Exits when nothing is traced any more.
    keeper: Keeper,
}

impl Tracer {
    /// Starts the thread, or takes the one that [`Keeper::prepare_tracer`] has started.
    fn start(keeper: &Keeper) -> Result<Self, KeeperError> {
        let spare = keeper.spare().take();
        let channel = spare.map_or_else(|| keeper.start_tracer(), Ok)?;
        Ok(Self { channel: Rc::new(channel), keeper: keeper.clone() })
    }

    fn ask(&self, order: &Order, descriptors: &[BorrowedFd<'_>]) -> Result<Answer, KeeperError> {
        let bytes = postcard::to_stdvec(order).map_err(|error| KeeperError::Refused(error.to_string()))?;
        self.channel.send(&bytes, descriptors).map_err(KeeperError::Exited)?;
        self.answer()
    }

    fn answer(&self) -> Result<Answer, KeeperError> {
        let answer = self.channel.receive(ANSWER_BYTES_MAX).map_err(KeeperError::Exited)?.ok_or_else(gone)?;
        postcard::from_bytes(&answer.bytes).map_err(|error| KeeperError::Exited(io::Error::other(error)))
    }
}

impl Keeper {
    /// Starts a tracing thread, unless there is one to spare: a process that has just begun calls its allocator within a
    /// millisecond, of which a thread's start would take a tenth and more. Where that fails, it is tried when a thread is needed.
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

/// Stops all threads of a process.
///
/// # Errors
///
/// When one cannot be stopped, or there is no keeper any more; then all run on.
pub(crate) fn stop(keeper: &Keeper, pid: Pid) -> Result<Box<dyn Still>, CollectError> {
    let tracer = Tracer::start(keeper).map_err(|error| CollectError::Keeper(error.to_string()))?;
    Ok(Box::new(RemoteStopped::new(tracer, pid)?))
}
