//! The agent, as a tracing thread of the keeper sees it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use super::protocol::{Answer, ORDER_BYTES_MAX, Order};
use crate::linux::channel::Channel;
use crate::linux::pidfd::PidFd;

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) channel: Channel,
    /// `None` where it had exited already.
    pub(super) agent: Arc<Option<PidFd>>,
}

impl Peer {
    /// Whether the agent runs and has not closed the channel.
    pub(super) fn is_there(&self) -> bool {
        let mut channel = [PollFd::new(&self.channel, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_open = retry_on_intr(|| poll(&mut channel, Some(&now))).is_ok_and(|ready| ready == 0);
        is_open && !self.has_exited()
    }

    pub(super) fn has_exited(&self) -> bool {
        (*self.agent).as_ref().is_none_or(|agent| agent.has_ended().unwrap_or(true))
    }

    /// Whether the answer was sent.
    pub(super) fn send(&self, answer: &Answer) -> bool {
        postcard::to_stdvec(answer).is_ok_and(|bytes| self.channel.send(&bytes, &[]).is_ok())
    }

    /// Waits for the next order, with its descriptors; `None` when there will be none. An order that the agent was killed in the middle
    /// of sending is none.
    pub(super) fn order(&self) -> Option<(Order, Vec<OwnedFd>)> {
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let agent = (*self.agent).as_ref().map(AsFd::as_fd);
        let mut awaited: Vec<PollFd<'_>> = std::iter::once(self.channel.as_fd()).chain(agent).map(readable).collect();
        retry_on_intr(|| poll(&mut awaited, None)).ok()?;
        if awaited[0].revents().is_empty() {
            return None;
        }
        let message = self.channel.receive(ORDER_BYTES_MAX).ok().flatten()?;
        Some((postcard::from_bytes(&message.bytes).ok()?, message.descriptors))
    }
}
