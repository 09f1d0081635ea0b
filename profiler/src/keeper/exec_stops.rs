//! Programs of the kernel side that stop a launched process at its execs: the keeper owns them, so that the process is resumed
//! when the agent exits.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use heapbpf_base::ids::Pid;
use heapbpf_linux::exec_stop::{self, ExecStop, ExecStopLayout, StopNote};

use super::client::{Keeper, KeeperError};
use super::protocol::Request;

/// The agent's side of stops at execs. Dropping it ends the stops, and resumes the process if it is stopped at one.
#[derive(Debug)]
pub(crate) struct StoppedExecs {
    keeper: Keeper,
    pid: Pid,
    note: StopNote,
}

impl StoppedExecs {
    /// Stops a child of this process at its execs from now on, before the first instruction, except for those that
    /// [`attach`](exec_stop::attach) names.
    pub(crate) fn of(keeper: &Keeper, pid: Pid, layout: &ExecStopLayout) -> Result<Self, KeeperError> {
        let refused = |error: io::Error| KeeperError::Refused(error.to_string());
        let (link, note) = exec_stop::attach(pid, layout).map_err(refused)?;
        keeper.request(&Request::StopAtExecs(pid), &[link.as_fd(), note.as_fd()])?;
        Ok(Self { keeper: keeper.clone(), pid, note })
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.note.is_set()
    }

    /// Resumes the process if it is stopped at an exec.
    pub(crate) fn resume(&self) {
        self.note.resume();
    }
}

impl AsFd for StoppedExecs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.note.as_fd()
    }
}

impl Drop for StoppedExecs {
    fn drop(&mut self) {
        if self.keeper.request(&Request::RunAtExecs(self.pid), &[]).is_err() {
            // The kernel has closed the keeper's link.
            self.note.resume();
        }
    }
}

/// The keeper's side of stops at execs.
#[derive(Debug, Default)]
pub(super) struct ExecStops(BTreeMap<Pid, ExecStop>);

impl ExecStops {
    pub(super) fn add(&mut self, pid: Pid, descriptors: Vec<OwnedFd>) -> io::Result<()> {
        let [link, word] = <[OwnedFd; 2]>::try_from(descriptors).map_err(|_| io::ErrorKind::InvalidInput)?;
        self.0.insert(pid, ExecStop::new(link, StopNote::new(pid, word)?));
        Ok(())
    }

    pub(super) fn remove(&mut self, pid: Pid) {
        self.0.remove(&pid);
    }
}
