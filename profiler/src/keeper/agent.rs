//! The agent, as the keeper reaches it: a channel and a process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use heapbpf_base::ids::{Pid, Tid};
use heapbpf_linux::companion::{self, Channel};
use heapbpf_linux::pidfd::PidFd;
use heapbpf_linux::proc::stat;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use serde::Serialize;
use serde::de::DeserializeOwned;

#[derive(Debug)]
pub(super) struct Agent {
    channel: Channel,
    pid: Pid,
    /// The agent's process; `None` if it had exited already.
    process: Option<Arc<PidFd>>,
}

impl Agent {
    /// `channel` leads to the process `pid`.
    pub(super) fn new(channel: Channel, pid: Pid) -> Self {
        Self { channel, pid, process: PidFd::open(pid).ok().map(Arc::new) }
    }

    /// Returns the same process at the end of another channel.
    pub(super) fn through(&self, channel: Channel) -> Self {
        Self { channel, pid: self.pid, process: self.process.clone() }
    }

    pub(super) fn is_connected(&self) -> bool {
        let mut channel = [PollFd::new(&self.channel, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_open = retry_on_intr(|| poll(&mut channel, Some(&now))).is_ok_and(|ready| ready == 0);
        is_open && !self.has_exited()
    }

    pub(super) fn has_exited(&self) -> bool {
        self.process.as_ref().is_none_or(|process| process.has_ended().unwrap_or(true))
    }

    /// Whether the agent is stopped by a signal, as by SIGSTOP. Until SIGCONT, it answers nothing.
    pub(super) fn is_suspended(&self) -> bool {
        stat::status(self.pid, Tid(self.pid.0)).is_some_and(|status| status.state == 'T')
    }

    /// Waits at most this long for a message, the end of the channel, or the agent's exit.
    pub(super) fn has_answer(&self, period_ns: i64) -> bool {
        let limit = Timespec { tv_sec: 0, tv_nsec: period_ns };
        self.wait(PollFlags::IN, Some(&limit)).map_or(true, |ready| ready.is_some())
    }

    /// Returns whether the channel is ready, or false if only the agent has exited; `None` when the time is up.
    pub(super) fn wait(&self, ready: PollFlags, limit: Option<&Timespec>) -> io::Result<Option<bool>> {
        let channel = PollFd::new(&self.channel, ready);
        let process = self.process.as_ref().map(|process| PollFd::new(process, PollFlags::IN));
        let mut polled: Vec<PollFd<'_>> = std::iter::once(channel).chain(process).collect();
        let ready = retry_on_intr(|| poll(&mut polled, limit))?;
        Ok((ready > 0).then(|| !polled[0].revents().is_empty()))
    }

    /// Descriptor that is readable when the agent has exited.
    pub(super) fn process(&self) -> Option<BorrowedFd<'_>> {
        self.process.as_deref().map(AsFd::as_fd)
    }

    pub(super) fn send(&self, answer: &impl Serialize) -> bool {
        self.channel.send_value(answer, &[]).is_ok()
    }

    /// Sends an answer. Calls `wait` as [`Channel::send_while`] does.
    pub(super) fn send_while(&self, answer: &impl Serialize, wait: impl FnMut() -> io::Result<()>) -> bool {
        companion::encode(answer).and_then(|bytes| self.channel.send_while(&bytes, &[], wait)).is_ok()
    }

    /// Waits for the next message, with its descriptors; `None` when there are no more. Returns when the agent exits, even if
    /// another process has inherited a descriptor of the channel. An incomplete message of a killed agent is ignored.
    pub(super) fn receive<T: DeserializeOwned>(&self, bytes_max: usize) -> Option<(T, Vec<OwnedFd>)> {
        self.receive_while(bytes_max, || match self.wait(PollFlags::IN, None)? {
            Some(true) => Ok(()),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        })
    }

    /// Receives a message. Calls `wait` as [`Channel::receive_while`] does.
    pub(super) fn receive_while<T: DeserializeOwned>(
        &self,
        bytes_max: usize,
        wait: impl FnMut() -> io::Result<()>,
    ) -> Option<(T, Vec<OwnedFd>)> {
        self.channel.receive_value_while(bytes_max, wait).ok().flatten()
    }
}

impl AsFd for Agent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
