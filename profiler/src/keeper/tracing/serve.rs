//! The threads of the keeper that trace processes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use super::protocol::{Answer, Code, ORDER_BYTES_MAX, Order};
use crate::collect::CollectError;
use crate::collect::fork::Forked;
use crate::collect::stop::Stopped;
use crate::ids::Pid;
use crate::sys::channel::{Channel, Message};
use crate::sys::pidfd::PidFd;

/// All tracing threads.
#[derive(Debug)]
pub(in crate::keeper) struct Tracers {
    /// `None` where it has exited already.
    agent: Arc<Option<PidFd>>,
    threads: Vec<JoinHandle<()>>,
}

impl Tracers {
    pub(in crate::keeper) fn new(agent: Arc<Option<PidFd>>) -> Self {
        Self { agent, threads: Vec::new() }
    }

    /// Starts a thread that serves a channel.
    pub(in crate::keeper) fn start(&mut self, channel: Channel) -> io::Result<()> {
        self.threads.retain(|thread| !thread.is_finished());
        let peer = Peer { channel, agent: Arc::clone(&self.agent) };
        let work = move || Worker { peer, copies: Vec::new(), stopped: None }.work();
        self.threads.push(thread::Builder::new().name("heapbpf-tracer".to_owned()).spawn(work)?);
        Ok(())
    }

    /// Waits until all threads have finished what they have begun, and resumed what they trace.
    pub(in crate::keeper) fn finish(&mut self) {
        for thread in self.threads.drain(..) {
            // A thread that has panicked traces nothing.
            let _ = thread.join();
        }
    }
}

/// The agent, as a tracing thread sees it.
#[derive(Debug)]
struct Peer {
    channel: Channel,
    agent: Arc<Option<PidFd>>,
}

impl Peer {
    /// Whether the agent runs and has not closed the channel.
    fn is_there(&self) -> bool {
        let mut channel = [PollFd::new(&self.channel, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let is_open = retry_on_intr(|| poll(&mut channel, Some(&now))).is_ok_and(|ready| ready == 0);
        is_open && !self.has_exited()
    }

    fn has_exited(&self) -> bool {
        (*self.agent).as_ref().is_none_or(|agent| agent.has_ended().unwrap_or(true))
    }

    /// Whether the answer was sent.
    fn send(&self, answer: &Answer) -> bool {
        postcard::to_stdvec(answer).is_ok_and(|bytes| self.channel.send(&bytes, &[]).is_ok())
    }
}

/// A copy that the agent reads, until it closes the other end of the pipe.
#[derive(Debug)]
struct Lent {
    pipe: OwnedFd,
    _copy: Forked,
}

/// A tracing thread. When it ends, copies end before the process is resumed.
#[derive(Debug)]
struct Worker {
    peer: Peer,
    copies: Vec<Lent>,
    stopped: Option<Stopped>,
}

impl Worker {
    fn work(mut self) {
        while let Some(message) = self.next() {
            // An order that the agent was killed in the middle of sending is not carried out.
            let Ok(order) = postcard::from_bytes(&message.bytes) else { break };
            let answer = self.obey(order, message.descriptors);
            if !self.peer.send(&answer.unwrap_or_else(|error| Answer::Failed(error.to_string()))) {
                break;
            }
        }
        if self.peer.has_exited() {
            self.copies.clear();
        }
        self.stopped = None;
        // The agent still reads them.
        while !self.copies.is_empty() {
            self.wait(false);
        }
    }

    /// The next order; `None` when there will be none.
    fn next(&mut self) -> Option<Message> {
        while !self.wait(true) {
            if self.peer.has_exited() {
                return None;
            }
        }
        self.peer.channel.receive(ORDER_BYTES_MAX).ok().flatten()
    }

    /// Waits until the agent exits, closes a pipe or, where that is of interest, the channel is readable: returns whether it is.
    /// Ends the copies that the agent does not need any more.
    fn wait(&mut self, with_channel: bool) -> bool {
        let agent = (*self.peer.agent).as_ref();
        let channel = with_channel.then_some(&self.peer.channel);
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let pipes = self.copies.iter().map(|lent| readable(lent.pipe.as_fd()));
        let others = channel.map(Channel::as_fd).into_iter().chain(agent.map(PidFd::as_fd));
        let mut awaited: Vec<PollFd<'_>> = pipes.chain(others.map(readable)).collect();
        if retry_on_intr(|| poll(&mut awaited, None)).is_err() {
            // There is no memory for it now.
            thread::sleep(Duration::from_millis(1));
            return false;
        }
        let mut is_ready = awaited.iter().map(|it| !it.revents().is_empty()).collect::<Vec<bool>>().into_iter();
        self.copies.retain(|_| !is_ready.next().unwrap_or(false));
        if self.peer.has_exited() {
            self.copies.clear();
            return false;
        }
        with_channel && is_ready.next().unwrap_or(false)
    }

    fn obey(&mut self, order: Order, descriptors: Vec<OwnedFd>) -> Result<Answer, CollectError> {
        match order {
            Order::Stop(pid) => self.stop(pid),
            Order::Fork(code) => self.fork(&code, descriptors),
            Order::Resume => Ok(Answer::Resumed(self.stopped.take().map_or(Duration::ZERO, Stopped::release))),
        }
    }

    fn stop(&mut self, pid: Pid) -> Result<Answer, CollectError> {
        self.stopped = None;
        let stopped = Stopped::new_while(pid, Vec::new(), &|| self.peer.is_there())?;
        let answer = Answer::Stopped { living: stopped.living(), threads: stopped.states()? };
        self.stopped = Some(stopped);
        Ok(answer)
    }

    fn fork(&mut self, code: &[Code], descriptors: Vec<OwnedFd>) -> Result<Answer, CollectError> {
        let (Some(stopped), Some(pipe)) = (&self.stopped, descriptors.into_iter().next()) else {
            return Err(CollectError::Keeper("internal error: no process is stopped; please report it".to_owned()));
        };
        let mapped: Vec<_> = code.iter().map(|code| code.region()).collect();
        let copy = stopped.fork(&mapped)?;
        let answer = Answer::Forked(copy.pid());
        self.copies.push(Lent { pipe, _copy: copy });
        Ok(answer)
    }
}
