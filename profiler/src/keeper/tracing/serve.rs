//! The threads of the keeper that trace processes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;

use super::held::{Held, failure};
use super::peer::Peer;
use super::protocol::{Answer, Code, LaunchOrder, Now, Order, Outcome};
use crate::collect::CollectError;
use crate::collect::fork::Forked;
use crate::collect::stop::Stopped;
use crate::ids::Pid;
use crate::linux::channel::Channel;
use crate::linux::pidfd::PidFd;
use crate::process::launch::retry_releases;

/// How often a process that could not be let go is tried again, in nanoseconds.
const RELEASE_PERIOD_NS: i64 = 10_000_000;

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
        let work = move || Worker { peer, copies: Vec::new(), stopped: None, held: None }.work();
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
    held: Option<Held>,
}

impl Worker {
    fn work(mut self) {
        while self.wait_for_order() {
            let Some((order, descriptors)) = self.peer.order() else { break };
            let answer = self.obey(order, descriptors);
            if !self.peer.send(&answer) {
                break;
            }
        }
        if self.peer.has_exited() {
            self.copies.clear();
        }
        (self.stopped, self.held) = (None, None);
        // The agent still reads the copies. When it exits, the kernel lets go of what could not be.
        while (!self.copies.is_empty() || retry_releases() > 0) && !self.peer.has_exited() {
            self.wait(false);
        }
    }

    /// Whether there is an order, or the channel was closed; not if the agent has exited.
    fn wait_for_order(&mut self) -> bool {
        while !self.wait(true) {
            if self.peer.has_exited() {
                return false;
            }
        }
        true
    }

    /// Waits until the agent exits, closes a pipe, or the held program may have stopped; or until the channel is readable, where
    /// that is of interest: returns whether it is. Ends the copies that the agent does not need any more.
    fn wait(&mut self, with_channel: bool) -> bool {
        let limit = (retry_releases() > 0).then_some(Timespec { tv_sec: 0, tv_nsec: RELEASE_PERIOD_NS });
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let channel = with_channel.then_some(self.peer.channel.as_fd());
        let changes = self.held.as_ref().and_then(Held::changes);
        let agent = (*self.peer.agent).as_ref().map(AsFd::as_fd);
        let pipes = self.copies.iter().map(|lent| lent.pipe.as_fd());
        let all = pipes.chain(changes).chain(channel).chain(agent);
        let mut awaited: Vec<PollFd<'_>> = all.map(readable).collect();
        if retry_on_intr(|| poll(&mut awaited, limit.as_ref())).is_err() {
            // There is no memory for it now.
            thread::sleep(Duration::from_millis(1));
            return false;
        }
        let mut is_ready = awaited.iter().map(|it| !it.revents().is_empty()).collect::<Vec<bool>>().into_iter();
        let has_changes = changes.is_some();
        self.copies.retain(|_| !is_ready.next().unwrap_or(false));
        if has_changes
            && is_ready.next().unwrap_or(false)
            && let Some(held) = &mut self.held
        {
            held.attend();
        }
        if self.peer.has_exited() {
            self.copies.clear();
            return false;
        }
        with_channel && is_ready.next().unwrap_or(false)
    }

    fn obey(&mut self, order: Order, descriptors: Vec<OwnedFd>) -> Answer {
        let answer = match order {
            Order::Stop(pid) => self.stop(pid),
            Order::Fork(code) => self.fork(&code, descriptors),
            Order::Resume => Ok(Answer::Resumed(self.stopped.take().map_or(Duration::ZERO, Stopped::release))),
            Order::Launch(order) => Ok(self.obey_launch(&order, descriptors)),
        };
        answer.unwrap_or_else(|error| Answer::Failed(error.to_string()))
    }

    fn stop(&mut self, pid: Pid) -> Result<Answer, CollectError> {
        self.stopped = None;
        let threads = self.held.as_ref().map(Held::threads);
        let held = threads.filter(|(held, _)| *held == pid).map(|(_, threads)| threads).unwrap_or_default();
        let stopped = Stopped::new_while(pid, held, &|| self.peer.is_there())?;
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

    fn obey_launch(&mut self, order: &LaunchOrder, descriptors: Vec<OwnedFd>) -> Answer {
        match Held::begin(order, descriptors.into_iter().next(), &self.peer) {
            Some(Ok(held)) => self.held = Some(held),
            Some(Err(error)) => {
                return Answer::Launch { now: Now::Free, outcome: Outcome::Failed(failure(error)) };
            }
            None => {}
        }
        match &mut self.held {
            Some(held) => held.obey(order, &self.peer),
            None => Answer::Launch { now: Now::Free, outcome: Outcome::Done },
        }
    }
}
