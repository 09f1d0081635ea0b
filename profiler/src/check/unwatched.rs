//! A look at a process that nobody has watched: no probe is attached, and its blocks are those that its heap tells.

use std::sync::Arc;

use anyhow::{Context, Result};

use super::look::{Look, TRIES_MAX, collect_at_rest};
use crate::collect::{Method, collect};
use crate::ids::Pid;
use crate::keeper::{self, Keeper};
use crate::leak::growth::Growths;
use crate::ledger::snapshot::TargetSnapshot;
use crate::ledger::totals::Totals;
use crate::linux::clock;
use crate::model::{Beginning, Health, Others};
use crate::object::module::ModuleStore;
use crate::process::address_space::AddressSpace;
use crate::process::target::Process;
use crate::snapshot::{Base, Snapshot, TargetFacts, TargetState};

/// Takes a heap snapshot of a process, which the keeper stops.
///
/// # Errors
///
/// When there is none, or it cannot be read.
pub(crate) fn look(pid: Pid, method: Method, keeper: &Keeper) -> Result<Look> {
    let process = Process::open(pid)?;
    let mut modules = ModuleStore::new();
    let mut space = AddressSpace::new(pid);
    space.refresh(&mut modules).with_context(|| format!("cannot look at process `{pid}`"))?;
    let mut now = clock::now();
    let (collected, walks) =
        collect_at_rest(TRIES_MAX, || collect(pid, method, || keeper::stop(keeper, pid), &mut |_| now = clock::now()))?;
    let state = TargetState {
        facts: TargetFacts {
            cgroup: process.cgroup.clone(),
            ..TargetFacts::living(pid, &process.command, &process.comm, Beginning::running(now.monotonic))
        },
        space: Arc::new(space),
        threads: Arc::default(),
        heaps: Vec::new(),
        books: Arc::new(TargetSnapshot { pid, totals: Totals::default(), heaps: Vec::new(), callsites: Vec::new() }),
        growths: Growths::default(),
        curve: Vec::new(),
        timeline: Arc::default(),
        until: now.monotonic,
        older: None,
        base: Base::Beginning,
    };
    let snapshot = Snapshot {
        interval_bytes: 1,
        started_unix_ns: now.unix_ns,
        started_monotonic_ns: now.monotonic.0,
        ended_unix_ns: now.unix_ns,
        older_than: None,
        window: None,
        targets: vec![state],
        others: Others::default(),
        modules: modules.share(),
        health: Health::default(),
    };
    Ok(Look { collected, walks, snapshot, now: now.monotonic, watched: Vec::new(), watching: None, at_exit: false })
}
