//! Descendants of a command in a leak check, which are traced until they exit, to be checked then.

use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use heapbpf_base::ids::Pid;
use heapbpf_linux::pidfd::Readiness;
use rustix::event::{EventfdFlags, eventfd};
use tokio::time::Instant;
use tracing::debug;

use super::command::FOLLOW_PERIOD;
use crate::keeper::{Keeper, Launch};
use crate::process::launch::ProgramStop;

pub(super) struct Followed {
    /// Descendants that run, or are held at an exec or at their exit.
    launches: Vec<Launch>,
    /// Readable when a descendant may be held.
    events: OwnedFd,
    readiness: Readiness,
    /// Number of descendants that were checked at their exit.
    checked_count: u64,
    /// Latest time of the next poll of the descendants.
    due: Instant,
}

impl Followed {
    pub(super) fn new() -> Result<Self> {
        let events = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("cannot monitor children")?;
        let readiness = Readiness::of(&events).context("cannot monitor children")?;
        Ok(Self { launches: Vec::new(), events, readiness, checked_count: 0, due: Instant::now() })
    }

    pub(super) async fn changed(followed: &Option<Self>) {
        match followed {
            Some(Self { launches, readiness, due, .. }) if !launches.is_empty() => tokio::select! {
                _ = readiness.readable() => {}
                () = tokio::time::sleep_until(*due) => {}
            },
            _ => std::future::pending().await,
        }
    }

    pub(super) fn take(&mut self) -> Vec<Launch> {
        self.due = Instant::now() + FOLLOW_PERIOD;
        std::mem::take(&mut self.launches)
    }

    pub(super) fn add(&mut self, launch: Launch) {
        self.launches.push(launch);
    }

    pub(super) fn count_checked(&mut self) {
        self.checked_count += 1;
    }

    pub(super) fn checked_count(&self) -> u64 {
        self.checked_count
    }

    pub(super) fn contains(&self, pid: Pid) -> bool {
        self.launches.iter().any(|launch| launch.pid() == pid)
    }

    /// Holds a process; `None` if that is impossible. A process that is traced already is held if it is at an exec.
    pub(super) fn hold(&mut self, keeper: &Keeper, pid: Pid) -> Option<Launch> {
        let Some(known) = self.launches.iter().position(|launch| launch.pid() == pid) else {
            let held = Launch::hold_child(keeper, pid, &self.events);
            return held.inspect_err(|error| debug!("{error}")).ok();
        };
        let stop = self.launches[known].next_stop();
        matches!(stop, Ok(Some(ProgramStop::Exec))).then(|| self.launches.swap_remove(known))
    }
}
