//! What measurements read of heapbpf's JSON report.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

/// A report.
#[derive(Debug, Deserialize)]
pub(super) struct Report {
    pub(super) started_unix_ns: u64,
    pub(super) ended_unix_ns: u64,
    targets: Vec<Target>,
    pub(super) health: Health,
}

/// A process.
#[derive(Debug, Deserialize)]
struct Target {
    heaps: Vec<Heap>,
    callsites: Vec<Callsite>,
}

#[derive(Debug, Deserialize)]
struct Heap {
    hooks: Vec<Hook>,
}

/// A function that was watched.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Hook {
    pub(super) function: String,
    /// Path of the module's file.
    pub(super) module: String,
    /// Of the probed instruction, in the file.
    pub(super) offset: u64,
    pub(super) attached: bool,
}

/// A stack with its totals.
#[derive(Debug, Deserialize)]
pub(super) struct Callsite {
    pub(super) stack: Vec<Frame>,
    pub(super) alloc_count: f64,
}

/// A frame.
#[derive(Debug, Deserialize)]
pub(super) struct Frame {
    pub(super) inlined: bool,
}

/// How the recording went.
#[derive(Debug, Deserialize)]
pub(super) struct Health {
    pub(super) events: u64,
    pub(super) lost: BTreeMap<String, u64>,
    pub(super) agent_cpu_ns: u64,
}

impl Report {
    /// Reads one of a single process.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("could not open `{}`", path.display()))?;
        let report: Self = serde_json::from_reader(BufReader::new(file))
            .with_context(|| format!("`{}` is no report", path.display()))?;
        ensure!(report.targets.len() == 1, "`{}` is of {} processes", path.display(), report.targets.len());
        Ok(report)
    }

    /// All hooks that were attached.
    pub(super) fn hooks(&self) -> Vec<Hook> {
        let hooks = self.targets.iter().flat_map(|target| &target.heaps).flat_map(|heap| &heap.hooks);
        hooks.filter(|hook| hook.attached).cloned().collect()
    }

    /// All stacks.
    pub(super) fn callsites(&self) -> impl Iterator<Item = &Callsite> {
        self.targets.iter().flat_map(|target| &target.callsites)
    }

    /// How long it recorded, in seconds.
    pub(super) fn seconds(&self) -> f64 {
        std::time::Duration::from_nanos(self.ended_unix_ns.saturating_sub(self.started_unix_ns)).as_secs_f64()
    }

    /// Events lost, for all reasons together.
    pub(super) fn lost(&self) -> u64 {
        self.health.lost.values().sum()
    }
}

impl Callsite {
    /// Functions that it went through, inlined ones not counted.
    pub(super) fn depth(&self) -> usize {
        self.stack.iter().filter(|frame| !frame.inlined).count()
    }
}
