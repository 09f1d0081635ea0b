//! The keeper process during a session: notices its exit, and removes breakpoints that were left behind.

use std::io;

use anyhow::{Context, Result};
use tracing::{debug, warn};

use super::Session;
use super::probes::Probes;
use super::target::Target;
use crate::ids::Pid;
use crate::keeper::Keeper;
use crate::linux::pidfd::PidFd;
use crate::linux::proc::stat::Stat;
use crate::linux::readiness::Readiness;
use crate::model::Origin;
use crate::probe::leftover::{self, Place};

/// Waits for the keeper's exit.
#[derive(Debug)]
pub(super) struct KeeperWatch {
    pid: Pid,
    process: PidFd,
    readiness: Readiness,
}

impl KeeperWatch {
    pub(super) fn new(keeper: &Keeper) -> Result<Self> {
        let process = keeper.watch()?;
        let readiness = Readiness::of(&process).context("cannot watch the keeper process")?;
        Ok(Self { pid: keeper.pid(), process, readiness })
    }

    /// Resolves when the keeper has exited.
    pub(super) async fn exited(&self) -> io::Result<()> {
        while !self.has_exited() {
            self.readiness.readable().await?;
        }
        Ok(())
    }

    /// Also while it exits: the kernel closes its links then, which takes seconds where there are many, and the process is reported
    /// as ended after that.
    pub(super) fn has_exited(&self) -> bool {
        self.process.has_ended().unwrap_or(true) || Stat::read(self.pid).is_ok_and(|stat| stat.has_ended())
    }
}

impl Probes {
    /// Removes breakpoints that a killed heapbpf has left where probes of this target will go. A process that a probed one has
    /// forked has copies of those that are in use.
    pub(super) fn remove_leftovers(&mut self, target: &Target) {
        if matches!(target.beginning.origin, Origin::Forked(_)) {
            return;
        }
        let places = target.hooks.unattached_places(&self.discovery.plan);
        let places: Vec<Place> =
            places.filter(|(hook, _)| !self.links.is_shared(*hook)).map(|(_, place)| place).collect();
        let found = self.breakpoints(target, places);
        if found.is_empty() {
            return;
        }
        if let Err(error) =
            leftover::remove(self.keeper(), self.kernel.link_kind(), &self.discovery.modules, target.pid, &found)
        {
            return debug!("process {}: cannot remove breakpoints: {error}", target.pid);
        }
        let others = self.breakpoints(target, found.clone()).len();
        let (pid, removed) = (target.pid, found.len() - others);
        if removed > 0 {
            warn!("removed {removed} breakpoints from process {pid}, which a killed heapbpf had left there");
        }
        if others > 0 {
            warn!(
                "another tool has probes on {others} of the hooked functions of process {pid}, which slow it down as well"
            );
        }
    }

    fn breakpoints(&self, target: &Target, places: Vec<Place>) -> Vec<Place> {
        leftover::breakpoints(&target.space, &self.discovery.modules, places.into_iter())
    }

    /// The keeper was killed, and may have left breakpoints in these targets: another one removes them.
    fn recover<'a>(&mut self, targets: impl Iterator<Item = &'a Target>) -> Result<()> {
        let keeper = Keeper::start()?;
        for target in targets {
            let places = target.hooks.places(&self.discovery.plan).map(|(_, place)| place).collect();
            let found = self.breakpoints(target, places);
            if !found.is_empty() {
                let kind = self.kernel.link_kind();
                leftover::remove(&keeper, kind, &self.discovery.modules, target.pid, &found)?;
                debug!("process {}: removed {} breakpoints", target.pid, found.len());
            }
        }
        Ok(())
    }
}

impl Session {
    /// Detaches all probes, and waits until there are none.
    pub(super) fn detach(&mut self) {
        self.targets.running_mut().for_each(|target| self.probes.detach(target));
        if self.probes.keeper().settle().is_err() {
            self.recover_from_keeper();
        }
    }

    /// Removes what a killed keeper has left in the targets.
    fn recover_from_keeper(&mut self) {
        if let Err(error) = self.probes.recover(self.targets.running()) {
            warn!("breakpoints of heapbpf may be left in the targets: {error}; `heapbpf doctor` removes them");
        }
    }
}
