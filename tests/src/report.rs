//! The JSON report as its readers know it, and the ledgers that targets print. Refuses to know more of the report than
//! DESIGN.md promises; fields it does not name are let through.

mod counts;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Number;

pub use counts::{Counts, Estimates, Ledger, Site};

/// A report.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Report {
    pub version: u32,
    pub interval_bytes: u64,
    pub started_unix_ns: u64,
    pub ended_unix_ns: u64,
    pub older_than_ns: Option<u64>,
    pub window: Option<Window>,
    pub targets: Vec<Process>,
    pub others: Others,
    pub health: Health,
}

/// The part of a recording that a report is about.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Window {
    pub number: Option<u32>,
    pub reason: String,
    pub start_unix_ns: u64,
    pub since_mark: bool,
    pub end_unix_ns: u64,
    pub merged_count: u32,
}

/// One process of a report.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Process {
    pub pid: u32,
    pub command: String,
    pub beginning: Beginning,
    pub exited: bool,
    pub exit_code: Option<i32>,
    pub replaced: bool,
    pub detached_unix_ns: Option<u64>,
    pub overhead: Option<Overhead>,
    pub leak_candidates: Option<Leaks>,
    pub totals: Totals,
    pub heaps: Vec<Heap>,
    pub callsites: Vec<Callsite>,
}

/// Since when a process was watched.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Beginning {
    pub origin: String,
    pub parent: Option<u32>,
    pub unix_ns: u64,
    pub delay_ns: Option<u64>,
    pub from_first_call: bool,
}

/// Processes that were meant and are not in the report one by one.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Others {
    pub skipped: Vec<Skipped>,
    pub skipped_count: u64,
    pub short_lived_count: u64,
    pub not_inherited_count: u64,
    pub folded_count: u64,
}

/// A process that could not be profiled.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Skipped {
    pub pid: u32,
    pub command: String,
    pub reason: String,
}

/// One heap of a process.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Heap {
    pub name: String,
    pub hooks: Vec<Hook>,
    #[serde(flatten)]
    pub totals: Totals,
}

/// One function that was to be watched.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Hook {
    pub function: String,
    pub module: String,
    pub backend: String,
    pub offset: u64,
    pub instruction: Option<String>,
    pub emulated: Option<bool>,
    pub required: bool,
    pub attached: bool,
    pub error: Option<String>,
}

/// One stack and what it did.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Callsite {
    pub stack: Vec<Frame>,
    pub heap: String,
    pub inherited: bool,
    pub older_count: Option<Number>,
    pub older_bytes: Option<Number>,
    #[serde(flatten)]
    pub totals: Totals,
}

/// One frame.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Frame {
    pub function: Option<String>,
    pub module: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub inlined: bool,
    pub address: String,
}

/// What was lost.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Health {
    pub events: u64,
    pub lost: BTreeMap<String, u64>,
    pub unwind: BTreeMap<String, u64>,
    pub resyncs: u64,
    pub interval_changes: Vec<IntervalChange>,
    pub agent_cpu_ns: u64,
    pub agent_rss_bytes_max: u64,
    pub guardrails: Guardrails,
}

/// Callsites that grow.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Leaks {
    pub span_ns: u64,
    pub too_short: bool,
    pub growing_count: usize,
    pub suppressed_count: u64,
    pub suppressed_bytes: f64,
    pub candidates: Vec<Candidate>,
}

/// A callsite that grows.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Candidate {
    pub stack: Vec<Frame>,
    pub heap: String,
    pub bytes_per_second: f64,
    pub bytes_per_second_margin_95: f64,
    pub live_bytes: f64,
    pub live_count: f64,
    pub old_share: f64,
    pub survival: Option<f64>,
    pub score: f64,
}

/// What probes cost a process.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Overhead {
    pub percent: f64,
    pub percent_highest: Option<f64>,
    pub probe_ns: f64,
    pub cpu_ns: u64,
}

/// Limits and when they were reached.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Guardrails {
    pub memory_bytes_max: Option<u64>,
    pub memory_bytes_highest: Option<u64>,
    pub cpu_percent_max: Option<f64>,
    pub overhead_percent_max: Option<f64>,
    pub reached: Vec<Reached>,
}

/// A limit that was reached.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Reached {
    pub unix_ns: u64,
    pub limit: String,
    pub action: String,
    pub pid: Option<u32>,
    pub bytes: Option<u64>,
    pub percent: Option<f64>,
}

/// A change of a heap's interval.
#[derive(Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct IntervalChange {
    pub unix_ns: u64,
    pub heap: String,
    pub from_bytes: u64,
    pub to_bytes: u64,
    pub reason: String,
}

/// Totals as they stand in the file: integers when exact, floats when estimated.
#[derive(Clone, Debug, Deserialize)]
#[expect(missing_docs, reason = "the names are the format's own")]
pub struct Totals {
    pub inherited_count: Number,
    pub inherited_bytes: Number,
    pub alloc_count: Number,
    pub alloc_bytes: Number,
    pub free_count: Number,
    pub free_bytes: Number,
    pub live_count: Number,
    pub live_bytes: Number,
    pub peak_bytes: Number,
    pub peak_unix_ns: Option<u64>,
    /// Where numbers are estimates.
    pub live_bytes_95: Option<[f64; 2]>,
    /// The same of what was allocated.
    pub alloc_bytes_95: Option<[f64; 2]>,
    pub live_start_bytes: Option<Number>,
    pub live_start_count: Option<Number>,
    pub delta_bytes: Option<Number>,
    pub delta_count: Option<Number>,
}

impl Report {
    /// Reads a file.
    ///
    /// # Panics
    ///
    /// When it cannot be read or is not a report of version 1.
    #[track_caller]
    pub fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
        let report: Self = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text:.4000}"));
        assert_eq!(report.version, 1);
        assert!(report.started_unix_ns <= report.ended_unix_ns, "the session ended before it began");
        report
    }

    /// The process with this pid.
    ///
    /// # Panics
    ///
    /// When the report does not have it.
    #[track_caller]
    pub fn process(&self, pid: u32) -> &Process {
        let pids: Vec<u32> = self.targets.iter().map(|target| target.pid).collect();
        self.targets.iter().find(|target| target.pid == pid).unwrap_or_else(|| panic!("no {pid} among {pids:?}"))
    }

    /// The only process that another one made by a fork.
    ///
    /// # Panics
    ///
    /// When the report has another number of those.
    #[track_caller]
    pub fn child_of(&self, parent: u32) -> &Process {
        let children = self.targets.iter().filter(|process| process.beginning.parent == Some(parent));
        let children: Vec<&Process> = children.collect();
        let [child] = children.as_slice() else { panic!("{parent} has children {children:?}") };
        assert_eq!(child.beginning.origin, "fork");
        child
    }

    /// Fails unless nothing was lost and every hook was attached.
    ///
    /// # Panics
    ///
    /// When something was lost or not attached.
    #[track_caller]
    pub fn assert_complete(&self) {
        let lost: BTreeMap<_, _> = self.health.lost.iter().filter(|(_, count)| **count > 0).collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
        let hooks = || self.targets.iter().flat_map(|target| &target.heaps).flat_map(|heap| &heap.hooks);
        assert!(hooks().count() > 0, "no hooks at all");
        for hook in hooks() {
            assert!(hook.attached && hook.error.is_none(), "not attached: {hook:?}");
        }
    }
}

impl Process {
    /// The heap of this name.
    ///
    /// # Panics
    ///
    /// When the process does not have it.
    #[track_caller]
    pub fn heap(&self, name: &str) -> &Heap {
        let heap = self.heaps.iter().find(|heap| heap.name == name);
        heap.unwrap_or_else(|| panic!("no heap `{name}` among {:?}", self.heap_names()))
    }

    /// The names of all heaps.
    pub fn heap_names(&self) -> Vec<&str> {
        self.heaps.iter().map(|heap| heap.name.as_str()).collect()
    }

    /// Exact counts by the function that a stack's leaf is in.
    ///
    /// # Panics
    ///
    /// When a total is not an integer.
    pub fn exact_by_leaf(&self) -> BTreeMap<String, Counts> {
        let mut functions = BTreeMap::<String, Counts>::new();
        for callsite in &self.callsites {
            let leaf = callsite.stack.first().and_then(|frame| frame.function.clone()).unwrap_or_default();
            functions.entry(leaf).or_default().add(callsite.totals.exact());
        }
        functions
    }

    /// Exact counts of the stacks that have a frame in this function.
    ///
    /// # Panics
    ///
    /// When a total is not an integer.
    pub fn exact_under(&self, is_function: impl Fn(&str) -> bool) -> Counts {
        let mut sum = Counts::default();
        for callsite in &self.callsites {
            if callsite.has(&is_function) {
                sum.add(callsite.totals.exact());
            }
        }
        sum
    }

    /// Estimates of the stacks that have a frame in this function.
    pub fn estimates_under(&self, is_function: impl Fn(&str) -> bool) -> Estimates {
        let mut sum = Estimates::default();
        for callsite in &self.callsites {
            if callsite.has(&is_function) {
                sum.add(callsite.totals.estimates());
            }
        }
        sum
    }

    /// Estimates by the function that a stack's leaf is in.
    pub fn estimates_by_leaf(&self) -> BTreeMap<String, Estimates> {
        let mut functions = BTreeMap::<String, Estimates>::new();
        for callsite in &self.callsites {
            let leaf = callsite.stack.first().and_then(|frame| frame.function.clone()).unwrap_or_default();
            functions.entry(leaf).or_default().add(callsite.totals.estimates());
        }
        functions
    }

    /// Fails unless each function of the ledger has exactly its counts in the report.
    ///
    /// # Panics
    ///
    /// When a function has other counts.
    #[track_caller]
    pub fn assert_matches(&self, ledger: &Ledger) {
        let mut reported = self.exact_by_leaf();
        let expected = ledger.by_function();
        let got: BTreeMap<String, Counts> =
            expected.keys().map(|function| (function.clone(), reported.remove(function).unwrap_or_default())).collect();
        let differing: Vec<String> = expected
            .iter()
            .filter(|(function, counts)| got[*function] != **counts)
            .map(|(function, counts)| format!("{function}:\n  true     {counts:?}\n  reported {:?}", got[function]))
            .collect();
        assert!(differing.is_empty(), "{}\nother functions reported: {reported:#?}", differing.join("\n"));
    }
}

impl Callsite {
    /// Whether the stack has a frame in this function.
    pub fn has(&self, is_function: impl Fn(&str) -> bool) -> bool {
        self.stack.iter().any(|frame| frame.function.as_deref().is_some_and(&is_function))
    }
}

impl Totals {
    /// The totals of a session at an interval of 1.
    ///
    /// # Panics
    ///
    /// When one of them is not written as an integer, or live is not what was allocated and not freed.
    #[track_caller]
    pub fn exact(&self) -> Counts {
        let integer = |number: &Number| number.as_u64().unwrap_or_else(|| panic!("`{number}` is no exact total"));
        let counts = Counts {
            alloc_count: integer(&self.alloc_count),
            alloc_bytes: integer(&self.alloc_bytes),
            free_count: integer(&self.free_count),
            free_bytes: integer(&self.free_bytes),
            live_count: integer(&self.live_count),
            live_bytes: integer(&self.live_bytes),
        };
        assert_eq!(counts.live_count, integer(&self.inherited_count) + counts.alloc_count - counts.free_count);
        assert_eq!(counts.live_bytes, integer(&self.inherited_bytes) + counts.alloc_bytes - counts.free_bytes);
        counts
    }

    /// The totals as estimates.
    ///
    /// # Panics
    ///
    /// When a number is none.
    pub fn estimates(&self) -> Estimates {
        let float = |number: &Number| number.as_f64().expect("any number is a float");
        Estimates {
            alloc_count: float(&self.alloc_count),
            alloc_bytes: float(&self.alloc_bytes),
            live_count: float(&self.live_count),
            live_bytes: float(&self.live_bytes),
        }
    }
}
