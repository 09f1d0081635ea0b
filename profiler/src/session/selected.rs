//! The processes that a recording starts with. Individually selected ones that cannot be recorded are an error if there are no others.

use std::collections::VecDeque;

use anyhow::{Error, Result};
use heapbpf_base::ids::Pid;
use heapbpf_linux::proc::process;
use tracing::warn;

use super::config::SessionConfig;
use super::discovery::Discovery;
use super::process_table::ProcessTable;
use super::target::Target;
use crate::process::selection::{self, Selection};

/// Individually selected processes that cannot be recorded.
#[derive(Default)]
pub(super) struct Unrecorded {
    count: u64,
    first: Option<Error>,
}

impl Unrecorded {
    pub(super) fn add(&mut self, pid: Pid, command: String, error: Error, processes: &mut ProcessTable) {
        warn!("process {pid} is not recorded: {error:#}");
        processes.skip(pid, command, format!("{error:#}"));
        self.count += 1;
        self.first.get_or_insert(error);
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Fails with the error of the first process that could not be recorded, if there is one.
    pub(super) fn check(&mut self) -> Result<()> {
        self.first.take().map_or(Ok(()), Err)
    }
}

pub(super) struct Selected {
    pub(super) found: VecDeque<Target>,
    pub(super) unrecorded: Unrecorded,
    /// The part of the selection that no process matches.
    pub(super) unmatched: Selection,
}

impl Selected {
    /// Opens the selected processes. Fails if only individual processes are selected, and none can be recorded.
    pub(super) fn find(
        config: &SessionConfig,
        discovery: &mut Discovery,
        processes: &mut ProcessTable,
    ) -> Result<Self> {
        let selection = &config.selection;
        let (mut found, mut failed) = (VecDeque::new(), VecDeque::new());
        for &pid in &selection.pids {
            match discovery.open(pid) {
                Ok(mut target) => {
                    target.requested = true;
                    found.push_back(target);
                }
                Err(error) => failed.push_back((pid, error)),
            }
        }
        if found.is_empty()
            && !selection.is_open()
            && let Some((_, first)) = failed.pop_front()
        {
            return Err(first);
        }
        let mut unrecorded = Unrecorded::default();
        for (pid, error) in failed {
            let arguments = process::arguments(pid).unwrap_or_default();
            unrecorded.add(pid, arguments.into_iter().next().unwrap_or_default(), error, processes);
        }
        let matching = selection::scan(selection)?;
        let unmatched = selection.unmatched(&matching);
        for facts in matching {
            if selection.pids.contains(&facts.pid()) {
                continue;
            }
            found.extend(processes.open(&facts, config, discovery));
        }
        Ok(Self { found, unrecorded, unmatched })
    }
}
