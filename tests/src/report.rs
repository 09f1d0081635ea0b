//! Reads JSON reports independently of heapbpf's types: the fields that tests need, others are ignored. Also reads the
//! ledgers that targets print.
//!
//! Functions panic, and so fail the test, where the report does not have what they return.

#![expect(missing_docs, reason = "fields have the names of the format")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Number;

#[derive(Debug, Deserialize)]
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

#[derive(Clone, Debug, Deserialize)]
pub struct Window {
    pub number: Option<u32>,
    pub reason: String,
    pub start_unix_ns: u64,
    pub since_mark: bool,
    pub end_unix_ns: u64,
}

#[derive(Debug, Deserialize)]
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
    pub inventory: Option<Inventory>,
    pub heaps: Vec<Heap>,
    pub callsites: Vec<Callsite>,
}

#[derive(Debug, Deserialize)]
pub struct Inventory {
    pub blocks: u64,
    pub bytes: u64,
    pub interval_bytes: u64,
    pub pause_ns: u64,
    pub gaps: Vec<String>,
    pub error: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct Beginning {
    pub origin: String,
    pub parent: Option<u32>,
    pub unix_ns: u64,
    pub delay_ns: Option<u64>,
    pub from_first_call: bool,
}

#[derive(Debug, Deserialize)]
pub struct Others {
    pub skipped: Vec<Skipped>,
    pub skipped_count: u64,
    pub short_lived_count: u64,
    pub folded_count: u64,
}

#[derive(Debug, Deserialize)]
pub struct Skipped {
    pub pid: u32,
    pub command: String,
    pub reason: String,
}

#[derive(Debug, Deserialize)]
pub struct Heap {
    pub name: String,
    /// Mean bytes between two samples.
    #[serde(default)]
    pub interval_bytes: u64,
    pub hooks: Vec<Hook>,
    #[serde(flatten)]
    pub totals: Totals,
}

#[derive(Debug, Deserialize)]
pub struct Hook {
    pub function: String,
    pub module: String,
    pub backend: String,
    pub offset: u64,
    pub instruction: Option<String>,
    pub emulated: Option<bool>,
    pub attached: bool,
    pub error: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct Callsite {
    pub stack: Vec<Frame>,
    /// `complete`, or why the stack is incomplete.
    pub end: Option<String>,
    pub heap: String,
    pub inherited: bool,
    pub older_count: Option<Number>,
    #[serde(flatten)]
    pub totals: Totals,
}

#[derive(Debug, Deserialize)]
pub struct Frame {
    pub function: Option<String>,
    pub module: Option<String>,
    /// `None` for native code.
    pub kind: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub inlined: bool,
    pub address: String,
}

impl Frame {
    /// Whether it is of this function.
    pub fn is(&self, function: &str) -> bool {
        self.function.as_deref() == Some(function)
    }
}

#[derive(Clone, Debug, Deserialize)]
pub struct Verdict {
    pub complete: bool,
    pub statement: String,
    pub findings: Vec<Finding>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Finding {
    pub kind: String,
    pub count: u64,
    pub exceeded: bool,
}

#[derive(Debug, Deserialize)]
pub struct Health {
    /// `None` in reports of leaks.
    verdict: Option<Verdict>,
    pub events: u64,
    pub lost: BTreeMap<String, u64>,
    pub unwind: BTreeMap<String, u64>,
    pub resyncs: u64,
    pub interval_changes: Vec<IntervalChange>,
    pub agent_cpu_ns: u64,
    pub agent_rss_bytes_max: u64,
    pub guardrails: Guardrails,
    pub scope: Option<Scope>,
    pub inline_engine: Option<InlineEngine>,
}

impl Health {
    #[track_caller]
    pub fn verdict(&self) -> &Verdict {
        self.verdict.as_ref().expect("the report is of a recording")
    }
}

#[derive(Debug, Deserialize)]
pub struct InlineEngine {
    pub targets: u64,
    pub passed_calls: u64,
    pub trapped_calls: u64,
    pub refused: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
pub struct Scope {
    pub kind: String,
    pub reason: String,
    pub other_processes: Option<u64>,
    pub foreign_calls: u64,
    pub foreign_probes: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub struct Leaks {
    pub too_short: bool,
    pub growing_count: usize,
    pub suppressed_count: u64,
    pub suppressed_bytes: f64,
    pub candidates: Vec<Candidate>,
}

#[derive(Debug, Deserialize)]
pub struct Candidate {
    pub stack: Vec<Frame>,
    pub heap: String,
    pub bytes_per_second: f64,
    pub bytes_per_second_margin_95: f64,
    pub live_bytes: f64,
    pub live_count: f64,
    pub old_share: f64,
    pub survival: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub struct Overhead {
    pub percent: f64,
    pub cpu_ns: u64,
}

#[derive(Debug, Deserialize)]
pub struct Guardrails {
    pub memory_bytes_highest: Option<u64>,
    pub reached: Vec<Reached>,
}

#[derive(Debug, Deserialize)]
pub struct Reached {
    pub unix_ns: u64,
    pub limit: String,
    pub action: String,
    pub pid: Option<u32>,
    pub bytes: Option<u64>,
    pub percent: Option<f64>,
}

#[derive(Debug, Deserialize)]
pub struct IntervalChange {
    pub unix_ns: u64,
    pub heap: String,
    pub from_bytes: u64,
    pub to_bytes: u64,
    pub reason: String,
}

/// Integers where exact, floats where estimated.
#[derive(Clone, Debug, Deserialize)]
pub struct Totals {
    pub inherited_count: Number,
    pub inherited_bytes: Number,
    pub alloc_count: Number,
    pub alloc_bytes: Number,
    pub free_count: Number,
    pub free_bytes: Number,
    pub live_count: Number,
    pub live_bytes: Number,
    pub live_samples: Option<u64>,
    pub peak_bytes: Number,
    pub peak_unix_ns: Option<u64>,
    /// Present where amounts are estimates.
    pub live_bytes_95: Option<[f64; 2]>,
    pub alloc_bytes_95: Option<[f64; 2]>,
    pub live_start_bytes: Option<Number>,
    pub live_start_count: Option<Number>,
    pub delta_bytes: Option<Number>,
}

impl Report {
    #[track_caller]
    pub fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("`{}`: {error}", path.display()));
        let report: Self = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text:.4000}"));
        assert_eq!(report.version, 1);
        assert!(report.started_unix_ns <= report.ended_unix_ns, "the session ends before it starts");
        report
    }

    #[track_caller]
    pub fn process(&self, pid: u32) -> &Process {
        let pids: Vec<u32> = self.targets.iter().map(|target| target.pid).collect();
        self.targets.iter().find(|target| target.pid == pid).unwrap_or_else(|| panic!("no {pid} among {pids:?}"))
    }

    /// The only forked child of a process.
    #[track_caller]
    pub fn child_of(&self, parent: u32) -> &Process {
        let children = self.targets.iter().filter(|process| process.beginning.parent == Some(parent));
        let children: Vec<&Process> = children.collect();
        let [child] = children.as_slice() else { panic!("{parent} has children {children:?}") };
        assert_eq!(child.beginning.origin, "fork");
        child
    }

    /// Fails unless nothing was dropped and every hook is attached.
    #[track_caller]
    pub fn assert_complete(&self) {
        self.assert_nothing_lost_but(&[]);
    }

    /// As [`assert_complete`](Self::assert_complete), for targets that execute programs: these may have run before their probes were
    /// attached.
    #[track_caller]
    pub fn assert_complete_but_for_programs(&self) {
        self.assert_nothing_lost_but(&["program_missed", "program_late"]);
    }

    /// Fails unless nothing was dropped but for these reasons, and every hook is attached.
    #[track_caller]
    pub fn assert_nothing_lost_but(&self, permitted: &[&str]) {
        let is_lost = |reason: &str, count: u64| count > 0 && !permitted.contains(&reason);
        let lost: BTreeMap<_, _> = self.health.lost.iter().filter(|(reason, count)| is_lost(reason, **count)).collect();
        assert!(lost.is_empty(), "dropped: {lost:?}");
        let hooks = || self.targets.iter().flat_map(|target| &target.heaps).flat_map(|heap| &heap.hooks);
        assert!(hooks().count() > 0, "no hooks at all");
        for hook in hooks() {
            assert!(hook.attached && hook.error.is_none(), "not attached: {hook:?}");
        }
    }
}

impl Process {
    #[track_caller]
    pub fn heap(&self, name: &str) -> &Heap {
        let heap = self.heaps.iter().find(|heap| heap.name == name);
        heap.unwrap_or_else(|| panic!("no heap `{name}` among {:?}", self.heap_names()))
    }

    pub fn heap_names(&self) -> Vec<&str> {
        self.heaps.iter().map(|heap| heap.name.as_str()).collect()
    }

    /// Exact counts by the function of the leaf frame.
    pub fn exact_by_leaf(&self) -> BTreeMap<String, Counts> {
        let mut functions = BTreeMap::<String, Counts>::new();
        for callsite in &self.callsites {
            let leaf = callsite.stack.first().and_then(|frame| frame.function.clone()).unwrap_or_default();
            functions.entry(leaf).or_default().add(callsite.totals.exact());
        }
        functions
    }

    /// Exact counts of the stacks with a matching frame.
    pub fn exact_under(&self, is_function: impl Fn(&str) -> bool) -> Counts {
        let mut sum = Counts::default();
        for callsite in &self.callsites {
            if callsite.has(&is_function) {
                sum.add(callsite.totals.exact());
            }
        }
        sum
    }

    /// Estimates of the stacks with a matching frame.
    pub fn estimates_under(&self, is_function: impl Fn(&str) -> bool) -> Estimates {
        let mut sum = Estimates::default();
        for callsite in &self.callsites {
            if callsite.has(&is_function) {
                sum.add(callsite.totals.estimates());
            }
        }
        sum
    }

    /// Estimates by the function of the leaf frame.
    pub fn estimates_by_leaf(&self) -> BTreeMap<String, Estimates> {
        let mut functions = BTreeMap::<String, Estimates>::new();
        for callsite in &self.callsites {
            let leaf = callsite.stack.first().and_then(|frame| frame.function.clone()).unwrap_or_default();
            functions.entry(leaf).or_default().add(callsite.totals.estimates());
        }
        functions
    }

    /// Fails unless each function of the ledger has the same counts in the report.
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
    /// Whether the stack has a matching frame.
    pub fn has(&self, is_function: impl Fn(&str) -> bool) -> bool {
        self.stack.iter().any(|frame| frame.function.as_deref().is_some_and(&is_function))
    }
}

impl Totals {
    /// The totals of a session at an interval of 1: integers, and live = inherited + allocated − freed.
    #[track_caller]
    pub fn exact(&self) -> Counts {
        let integer = |number: &Number| number.as_u64().unwrap_or_else(|| panic!("`{number}` is not an integer"));
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

/// Fails unless all stacks are equal, with the same numbers and bytes. Of recorded ones that are not expected, only those that the
/// test is about count.
#[track_caller]
pub fn assert_equal_stacks<Stack: Ord + Debug>(
    case: &str,
    expected: &BTreeMap<Stack, Counts>,
    recorded: &BTreeMap<Stack, Counts>,
    is_meant: impl Fn(&Stack) -> bool,
) {
    let differing: Vec<_> = expected.iter().filter(|&(stack, sum)| recorded.get(stack) != Some(sum)).collect();
    let others: Vec<_> =
        recorded.iter().filter(|&(stack, _)| !expected.contains_key(stack) && is_meant(stack)).collect();
    assert!(
        differing.is_empty() && others.is_empty(),
        "{case}: {} of {} stacks differ; expected {:#?}\nnot expected {:#?}",
        differing.len(),
        expected.len(),
        &differing[..differing.len().min(3)],
        &others[..others.len().min(3)]
    );
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    pub alloc_count: u64,
    pub alloc_bytes: u64,
    pub free_count: u64,
    pub free_bytes: u64,
    pub live_count: u64,
    pub live_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimates {
    pub alloc_count: f64,
    pub alloc_bytes: f64,
    pub live_count: f64,
    pub live_bytes: f64,
}

/// The ledger that a target prints for a line of input.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ledger {
    /// Peak of the live bytes, of blocks allocated for this line.
    pub peak_bytes: u64,
    pub sites: Vec<Site>,
}

/// An allocating function of a target.
#[derive(Debug, Serialize, Deserialize)]
pub struct Site {
    pub function: String,
    /// Line of its call of the allocator; 0 where unknown.
    pub line: u32,
    #[serde(flatten)]
    pub counts: Counts,
}

impl Ledger {
    pub fn by_function(&self) -> BTreeMap<String, Counts> {
        self.sites.iter().map(|site| (site.function.clone(), site.counts)).collect()
    }

    #[track_caller]
    pub fn site(&self, function: &str) -> &Site {
        self.sites.iter().find(|site| site.function == function).unwrap_or_else(|| panic!("no site `{function}`"))
    }

    pub fn sum(&self) -> Counts {
        self.sum_of(|_| true)
    }

    pub fn sum_of(&self, matches: impl Fn(&str) -> bool) -> Counts {
        let mut sum = Counts::default();
        self.sites.iter().filter(|site| matches(&site.function)).for_each(|site| sum.add(site.counts));
        sum
    }
}

impl Counts {
    /// Counts of blocks that are allocated and not freed.
    pub const fn kept(count: u64, bytes: u64) -> Self {
        Self {
            alloc_count: count,
            alloc_bytes: bytes,
            free_count: 0,
            free_bytes: 0,
            live_count: count,
            live_bytes: bytes,
        }
    }

    pub fn add(&mut self, other: Self) {
        self.alloc_count += other.alloc_count;
        self.alloc_bytes += other.alloc_bytes;
        self.free_count += other.free_count;
        self.free_bytes += other.free_bytes;
        self.live_count += other.live_count;
        self.live_bytes += other.live_bytes;
    }
}

impl Estimates {
    fn add(&mut self, other: Self) {
        self.alloc_count += other.alloc_count;
        self.alloc_bytes += other.alloc_bytes;
        self.live_count += other.live_count;
        self.live_bytes += other.live_bytes;
    }
}
