//! Heap snapshots: the collected state of a process, and the known facts about its blocks at that time.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::Pid;
use heapbpf_base::units::MonotonicNanos;
use heapbpf_ledger::model::{Beginning, Leaks};
use heapbpf_ledger::snapshot::TargetSnapshot;
use heapbpf_ledger::totals::Totals;
use heapbpf_linux::clock;

use crate::collect::{Collected, Method, collect};
use crate::keeper::{self, Keeper};
use crate::object::module::ModuleStore;
use crate::process::address_space::AddressSpace;
use crate::process::target::Process;
use crate::snapshot::{Base, Snapshot, TargetFacts, TargetState};
use crate::walk::{Scene, Walk, walk};

/// A heap snapshot. Can be sent to another thread: the check continues while the process runs.
pub struct HeapSnapshot {
    pub collected: Collected,
    pub walks: Vec<Walk>,
    /// The process as the only target.
    pub state: Snapshot,
    /// Time at which the process was stopped.
    pub now: MonotonicNanos,
    pub recorded: Vec<RecordedBlock>,
    /// Coverage of the recording; `None` if the process was not recorded.
    pub coverage: Option<Coverage>,
    pub at_exit: bool,
    /// Number of processes that a launched command has created, and that are not targets.
    pub unchecked_children: u64,
}

/// Maximum number of tries on a process with a thread in allocator code each time.
pub(crate) const TRIES_MAX: u32 = 8;

/// Time for which a process may have been stopped, all tries together, before a further try.
const PAUSES_MAX: Duration = Duration::from_secs(1);
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// Collects a process, and tries again if a thread was in allocator code: a block can be in no list then, or in two. The last try
/// counts.
pub(crate) fn collect_at_rest<E>(
    tries_max: u32,
    mut collect: impl FnMut() -> Result<Collected, E>,
) -> Result<(Collected, Vec<Walk>), E> {
    let (mut tries, mut pause) = (0, Duration::ZERO);
    loop {
        let mut collected = collect()?;
        pause += collected.pause;
        collected.pause = pause;
        let walks = walk(&Scene::new(&*collected.memory, &collected.regions, &collected.threads));
        tries += 1;
        if tries >= tries_max || pause >= PAUSES_MAX || !walks.iter().any(|walk| walk.busy) {
            return Ok((collected, walks));
        }
        drop(collected);
        thread::sleep(BETWEEN_TRIES * (1 << tries));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coverage {
    pub duration_ns: u64,
    /// Whether every call since the first was recorded, and no event was dropped: there are no other blocks.
    pub is_complete: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedBlock {
    pub address: TargetAddr,
    pub size_bytes: u64,
    pub callsite: u32,
    born_ticks: u32,
}

/// Unit of recorded times. With it, a block takes 24 bytes: 32 bits of ticks cover two years.
const TICK_NS: u64 = 1 << 24;

impl RecordedBlock {
    pub fn new(address: TargetAddr, size_bytes: u64, callsite: u32, born: MonotonicNanos) -> Self {
        let born_ticks = u32::try_from(born.0 / TICK_NS).unwrap_or(u32::MAX);
        Self { address, size_bytes, callsite, born_ticks }
    }

    /// Returns the allocation time, accurate to half a tick, 8.4 ms.
    pub fn born(&self) -> MonotonicNanos {
        MonotonicNanos(u64::from(self.born_ticks) * TICK_NS + TICK_NS / 2)
    }
}

const _: () = assert!(size_of::<RecordedBlock>() == 24);

impl HeapSnapshot {
    /// Returns when a block was allocated, if that was recorded. `recorded` must be sorted by address.
    pub(super) fn born(&self, address: TargetAddr) -> Option<MonotonicNanos> {
        let at = self.recorded.binary_search_by_key(&address, |block| block.address).ok()?;
        Some(self.recorded[at].born())
    }
}

/// Takes a heap snapshot of a process that is not recorded. Its blocks are those that its heaps contain. The keeper stops the
/// process.
pub(crate) fn take_unrecorded(pid: Pid, method: Method, keeper: &Keeper) -> Result<HeapSnapshot> {
    let process = Process::open(pid)?;
    let mut modules = ModuleStore::default();
    let mut space = AddressSpace::new(pid);
    space.refresh(&mut modules).with_context(|| format!("cannot read the mappings of process `{pid}`"))?;
    let mut now = clock::now();
    let (collected, walks) =
        collect_at_rest(TRIES_MAX, || collect(pid, method, || keeper::stop(keeper, pid), &mut |_| now = clock::now()))?;
    // The process can have changed its rights since it was opened.
    let files = process.files.narrowed();
    let state = TargetState {
        facts: TargetFacts {
            cgroup: process.cgroup.clone(),
            program: process.program.clone(),
            rights: Some(files.rights_here()),
            files: Some(Box::new(files)),
            ..TargetFacts::running(pid, &process.command, &process.comm, Beginning::running(now.monotonic))
        },
        space: Arc::new(space),
        threads: Arc::default(),
        heaps: Vec::new(),
        ledger: Arc::new(TargetSnapshot { pid, totals: Totals::default(), heaps: Vec::new(), callsites: Vec::new() }),
        growths: Leaks::default(),
        curve: Vec::new(),
        timeline: Arc::default(),
        memory: Arc::default(),
        until: now.monotonic,
        older: None,
        base: Base::Beginning,
    };
    let snapshot = Snapshot {
        interval_bytes: 1,
        started_unix_ns: now.unix_ns,
        started_monotonic_ns: now.monotonic.0,
        ended_unix_ns: now.unix_ns,
        targets: vec![state],
        modules: modules.share(),
        ..Snapshot::default()
    };
    Ok(HeapSnapshot {
        collected,
        walks,
        state: snapshot,
        now: now.monotonic,
        recorded: Vec::new(),
        coverage: None,
        at_exit: false,
        unchecked_children: 0,
    })
}
