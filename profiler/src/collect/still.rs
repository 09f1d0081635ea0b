//! A stopped process as its reader sees it: the thread that traces it may belong to another process, the keeper.

use std::fmt::Debug;
use std::time::Duration;

use super::fork::{ForkError, Forked};
use super::stop::Stopped;
use super::{CollectError, ThreadState};
use crate::ids::Pid;
use crate::linux::proc::regions::Region;

/// A stopped process. Dropping it resumes the process.
pub(crate) trait Still {
    /// A thread by whose number the memory of the process can be read.
    fn living(&self) -> Pid;

    /// The registers of all threads.
    ///
    /// # Errors
    ///
    /// When the process was killed meanwhile, or is a 32-bit process.
    fn states(&self) -> Result<Vec<ThreadState>, CollectError>;

    /// Makes the process fork. `mapped` is what it has mapped. The threads are stopped as before when this returns.
    fn fork(&mut self, mapped: &[Region]) -> Result<Box<dyn ProcessCopy>, CollectError>;

    /// Resumes the process, and returns how long it was stopped.
    ///
    /// # Errors
    ///
    /// When the thread that traces it has exited, at which the kernel resumes the process.
    fn release(self: Box<Self>) -> Result<Duration, CollectError>;
}

/// A copy of a process, of which nothing runs. Dropping it ends it.
pub(crate) trait ProcessCopy: Debug + Send + Sync {
    /// The copy. Its memory can be read as that of any process.
    fn pid(&self) -> Pid;

    /// Whether it was killed, so that its memory cannot be read any more.
    fn has_ended(&self) -> bool;
}

impl Still for Stopped {
    fn living(&self) -> Pid {
        self.living()
    }

    fn states(&self) -> Result<Vec<ThreadState>, CollectError> {
        self.states()
    }

    fn fork(&mut self, mapped: &[Region]) -> Result<Box<dyn ProcessCopy>, CollectError> {
        let copy: Result<Forked, ForkError> = Self::fork(self, mapped);
        Ok(Box::new(copy?))
    }

    fn release(self: Box<Self>) -> Result<Duration, CollectError> {
        Ok((*self).release())
    }
}

impl ProcessCopy for Forked {
    fn pid(&self) -> Pid {
        self.pid()
    }

    fn has_ended(&self) -> bool {
        self.has_ended()
    }
}
