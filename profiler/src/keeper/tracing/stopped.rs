//! A process that a thread of the keeper has stopped, and a copy of it, as the agent sees them.

use std::io::{self, PipeWriter};
use std::os::fd::AsFd;
use std::time::Duration;

use super::Tracer;
use super::protocol::{Answer, Code, Order};
use crate::collect::{CollectError, ProcessCopy, Still, ThreadState};
use crate::ids::Pid;
use crate::keeper::{Keeper, KeeperError};
use crate::linux::pidfd::PidFd;
use crate::linux::proc::regions::Region;

/// A stopped process.
#[derive(Debug)]
pub(super) struct RemoteStopped {
    tracer: Tracer,
    pid: Pid,
    living: Pid,
    threads: Vec<ThreadState>,
    is_released: bool,
}

impl RemoteStopped {
    /// Stops all threads of a process.
    pub(super) fn new(tracer: Tracer, pid: Pid) -> Result<Self, CollectError> {
        match tracer.ask(&Order::Stop(pid), &[]) {
            Ok(Answer::Stopped { living, threads }) => Ok(Self { tracer, pid, living, threads, is_released: false }),
            other => Err(failed(other)),
        }
    }
}

impl Still for RemoteStopped {
    fn living(&self) -> Pid {
        self.living
    }

    fn states(&self) -> Result<Vec<ThreadState>, CollectError> {
        Ok(self.threads.clone())
    }

    fn fork(&mut self, mapped: &[Region]) -> Result<Box<dyn ProcessCopy>, CollectError> {
        let refused = |source| CollectError::Refused { pid: self.pid, what: "open a descriptor for a copy of", source };
        let (line, lent) = io::pipe().map_err(refused)?;
        match self.tracer.ask(&Order::Fork(Code::of(mapped)), &[line.as_fd()]) {
            Ok(Answer::Forked(pid)) => {
                let process = PidFd::open(pid).map_err(refused)?;
                Ok(Box::new(RemoteCopy { pid, process, _lent: lent, _keeper: self.tracer.keeper.clone() }))
            }
            other => Err(failed(other)),
        }
    }

    fn release(mut self: Box<Self>) -> Result<Duration, CollectError> {
        self.is_released = true;
        match self.tracer.ask(&Order::Resume, &[]) {
            Ok(Answer::Resumed(pause)) => Ok(pause),
            other => Err(failed(other)),
        }
    }
}

impl Drop for RemoteStopped {
    fn drop(&mut self) {
        if !self.is_released {
            // Where the keeper has exited, the kernel has resumed the process.
            let _ = self.tracer.ask(&Order::Resume, &[]);
        }
    }
}

/// A copy of a process.
#[derive(Debug)]
struct RemoteCopy {
    pid: Pid,
    process: PidFd,
    /// The keeper ends the copy when this is closed.
    _lent: PipeWriter,
    /// Exits when the copy has ended.
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
