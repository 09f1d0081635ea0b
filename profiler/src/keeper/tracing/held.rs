//! A program that a tracing thread holds for the agent.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::peer::Peer;
use super::protocol::{Answer, LaunchFailure, LaunchOrder, Now, Order, Outcome};
use crate::collect::stop::{Held as HeldThread, Release};
use crate::ids::Pid;
use crate::linux::child_signal::ChildSignal;
use crate::process::launch::{Launch, LaunchError};

/// See the module. Dropping it lets the program run on.
#[derive(Debug)]
pub(super) struct Held {
    launch: Launch,
    /// Written to when there is news; not for processes that are let go after their start.
    stirs: Option<OwnedFd>,
    changes: Option<ChildSignal>,
    /// All threads are stopped, and stay so until the agent has them run.
    is_stopped: bool,
}

impl Held {
    /// Holds a program at its exec, as the agent has ordered. `None` for an order that does not begin with a program.
    pub(super) fn begin(order: &LaunchOrder, stirs: Option<OwnedFd>, peer: &Peer) -> Option<Result<Self, LaunchError>> {
        match order {
            LaunchOrder::Start { pid, program } => Some(Self::start(*pid, program.clone(), stirs, peer)),
            LaunchOrder::Hold(pid) => {
                Some(Launch::hold(*pid).map(|launch| Self { launch, stirs: None, changes: None, is_stopped: false }))
            }
            _ => None,
        }
    }

    fn start(pid: Pid, program: String, stirs: Option<OwnedFd>, peer: &Peer) -> Result<Self, LaunchError> {
        let changes = ChildSignal::listen().map_err(|error| LaunchError::Trace(program.clone(), error))?;
        let mut launch = Launch::seize(pid, program)?;
        // The child waits for this.
        if peer.send(&Answer::Launch { now: Now::Traced, outcome: Outcome::Done }) {
            launch.run_to_exec(None, &|| peer.is_there())?;
        }
        Ok(Self { launch, stirs, changes: Some(changes), is_stopped: false })
    }

    pub(super) fn obey(&mut self, order: &LaunchOrder, peer: &Peer) -> Answer {
        let outcome = self.carry_out(order, peer).unwrap_or_else(|error| Outcome::Failed(failure(error)));
        Answer::Launch { now: self.now(), outcome }
    }

    fn carry_out(&mut self, order: &LaunchOrder, peer: &Peer) -> Result<Outcome, LaunchError> {
        let launch = &mut self.launch;
        match order {
            LaunchOrder::HoldAtExit => launch.hold_at_exit()?,
            LaunchOrder::Step => {
                let start_up = launch.step_until_loaded(&mut |at_exec| attach(at_exec, peer))?;
                return Ok(Outcome::StartUp(start_up));
            }
            LaunchOrder::FollowExecs => {
                self.is_stopped = false;
                launch.follow_execs()?;
            }
            LaunchOrder::NextStir => return Ok(Outcome::Stir(launch.next_stir()?)),
            LaunchOrder::StopAll => {
                self.is_stopped = launch.stop()?;
                return Ok(Outcome::AllStopped(self.is_stopped));
            }
            LaunchOrder::Release => {
                self.is_stopped = false;
                launch.release()?;
            }
            LaunchOrder::Reap => drop(launch.try_reap()),
            // Begun before, or an answer to nothing.
            LaunchOrder::Start { .. } | LaunchOrder::Hold(_) | LaunchOrder::GoOn | LaunchOrder::Abandon => {}
        }
        Ok(Outcome::Done)
    }

    pub(super) fn now(&mut self) -> Now {
        use std::os::unix::process::ExitStatusExt;
        match self.launch.ended() {
            Some(status) => Now::Ended(status.into_raw()),
            None if self.launch.is_free() => Now::Free,
            None => Now::Traced,
        }
    }

    /// Becomes readable when the program may have stopped or ended.
    pub(super) fn changes(&self) -> Option<BorrowedFd<'_>> {
        self.changes.as_ref().map(AsFd::as_fd)
    }

    /// Lets signals through, and has threads come and go. Where the program is held or has ended, notifies the agent.
    pub(super) fn attend(&mut self) {
        if let Some(changes) = &self.changes {
            changes.clear();
        }
        if self.is_stopped || !self.launch.is_followed() {
            return;
        }
        let stir = self.launch.next_stir();
        if (!matches!(stir, Ok(None)) || !self.launch.is_followed())
            && let Some(stirs) = &self.stirs
        {
            // It is readable already where this would block.
            let _ = rustix::io::write(stirs, &1_u64.to_ne_bytes());
        }
    }

    /// The program and its threads, where all are held.
    pub(super) fn threads(&self) -> (Pid, Vec<HeldThread>) {
        // What becomes of them is ordered afterwards.
        let held = |(tracee, stop)| HeldThread { tracee, stop, release: Release::Leave };
        (self.launch.pid(), self.launch.held_threads().into_iter().map(held).collect())
    }
}

/// Has the agent attach probes to a program that is stopped.
fn attach(at_exec: bool, peer: &Peer) -> Result<(), LaunchError> {
    let answered = peer.send(&Answer::NewCode { at_exec }).then(|| peer.order()).flatten();
    match answered {
        Some((Order::Launch(LaunchOrder::GoOn), _)) => Ok(()),
        _ => Err(LaunchError::Trace("it".to_owned(), io::ErrorKind::BrokenPipe.into())),
    }
}

pub(super) fn failure(error: LaunchError) -> LaunchFailure {
    match error {
        LaunchError::Unstoppable(pid) => LaunchFailure::Unstoppable(pid),
        error => LaunchFailure::Other(error.to_string()),
    }
}
