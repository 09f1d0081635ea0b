//! Notices when the keeper process exits.

use std::io;

use anyhow::{Context, Result};
use heapbpf_base::ids::Pid;
use heapbpf_linux::pidfd::{PidFd, Readiness};
use heapbpf_linux::proc::stat::Stat;

use crate::keeper::Keeper;

#[derive(Debug)]
pub(super) struct KeeperMonitor {
    pid: Pid,
    process: PidFd,
    readiness: Readiness,
}

impl KeeperMonitor {
    pub(super) fn new(keeper: &Keeper) -> Result<Self> {
        let process = keeper.pidfd()?;
        let readiness = Readiness::of(&process).context("cannot monitor the keeper process")?;
        Ok(Self { pid: keeper.pid(), process, readiness })
    }

    pub(super) async fn exited(&self) -> io::Result<()> {
        while !self.has_exited() {
            self.readiness.readable().await?;
        }
        Ok(())
    }

    /// Whether the keeper has exited. Also true while it exits: the kernel first closes its links, which takes seconds
    /// if there are many.
    pub(super) fn has_exited(&self) -> bool {
        self.process.has_ended().unwrap_or(true) || Stat::read(self.pid).is_ok_and(|stat| stat.has_ended())
    }
}
