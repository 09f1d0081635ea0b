//! `bench overhead`: the cost of an allocator call under each tool, and the run time of heapbpf's BPF programs. Tools
//! are attached in turn to the same running process, and ratios are taken within a round.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result};

use super::figures::{self, Spread, alternate, ratios, verdict};
use super::programs::{self, Churn};
use super::tool::{self, Setup, Tool, Variant};
use crate::process::Program;

const DEPTH: usize = 5;

const NOTHING: Variant = ("nothing attached", Tool::Nothing);
const FLOOR: Variant = ("**empty programs at the same places (the floor)**", Tool::Floor);
const UNSAMPLED: Variant = ("`--interval 1GiB`: practically nothing sampled", Tool::Heapbpf(&["--interval", "1GiB"]));
const DEFAULT: Variant = ("default (`--interval 4KiB`)", Tool::Heapbpf(&[]));
const EVERYTHING: Variant = ("`--interval 1`: everything, stacks by tables", Tool::Heapbpf(&["--interval", "1"]));
const EVERYTHING_FP: Variant = (
    "`--interval 1 --unwind fp`: everything, stacks by frame pointers",
    Tool::Heapbpf(&["--interval", "1", "--unwind", "fp"]),
);
const MEMLEAK: Variant = ("bcc memleak (libbpf-tools)", Tool::Memleak(&[]));

const MALLOC: &[Variant] = &[
    NOTHING,
    FLOOR,
    ("the floor with session probes for frees, too", Tool::SessionFloor),
    UNSAMPLED,
    ("`--interval 512KiB`", Tool::Heapbpf(&["--interval", "512KiB"])),
    DEFAULT,
    EVERYTHING_FP,
    EVERYTHING,
    ("`--interval 1GiB --backend multi`", Tool::Heapbpf(&["--interval", "1GiB", "--backend", "multi"])),
    ("`--interval 1GiB --backend perf`", Tool::Heapbpf(&["--interval", "1GiB", "--backend", "perf"])),
    ("`--interval 1GiB --placement entry`", Tool::Heapbpf(&["--interval", "1GiB", "--placement", "entry"])),
    MEMLEAK,
    ("bcc memleak `-s 100`", Tool::Memleak(&["-s", "100"])),
];

const OTHERS: &[Variant] = &[NOTHING, FLOOR, UNSAMPLED, DEFAULT, EVERYTHING_FP];

const OPERATIONS: [(&str, &str); 3] =
    [("calloc", "calloc and free"), ("realloc", "realloc"), ("posix_memalign", "posix_memalign and free")];

struct Costs {
    variants: Vec<Variant>,
    ns: Vec<Vec<f64>>,
}

pub(super) fn measure(setup: &Setup) -> Result<String> {
    let costs = Costs::measure(setup, "malloc", MALLOC)?;
    let mut text = costs.malloc_table();
    text.push_str(&costs.limits());
    for reason in MALLOC.iter().filter_map(|(_, tool)| tool.missing(setup)) {
        text.push_str(&format!("- Not measured: {reason}.\n"));
    }
    let mut rows = Vec::new();
    for (operation, name) in OPERATIONS {
        let costs = Costs::measure(setup, operation, OTHERS)?;
        let mut row = vec![name.to_owned()];
        row.extend(costs.ns.iter().map(|ns| format!("{:.0}", Spread::of(ns.iter().copied()).median())));
        row.push(costs.ratio(UNSAMPLED, FLOOR).map_or_else(String::new, |ratio| format!("{ratio:.2}")));
        rows.push(row);
    }
    let head = ["CPU ns, median", "nothing", "floor", "`1GiB`", "default", "`1`, fp", "`1GiB` ÷ floor"];
    Ok(format!("{text}\n{}", figures::table(&head, &rows)))
}

impl Costs {
    fn measure(setup: &Setup, operation: &str, variants: &[Variant]) -> Result<Self> {
        let churn = Churn::start(&setup.bench, operation, 1)?;
        let variants: Vec<_> = variants.iter().copied().filter(|(_, tool)| tool.missing(setup).is_none()).collect();
        let ns = tool::compare(setup, churn.pid(), &variants, |(name, _), attached| {
            let cost = churn.call_ns(setup.window)?;
            let report = attached.detach(churn.pid())?;
            let dropped = report.as_ref().map_or(0, tool::dropped);
            eprintln!("{operation}: {cost:>8.0} ns, {dropped} dropped: {name}");
            if let Some(report) = report.filter(|_| name.contains("everything")) {
                tool::check_depth(&report, DEPTH)?;
            }
            Ok(cost)
        })?;
        Ok(Self { variants, ns })
    }

    fn of(&self, variant: Variant) -> Option<&[f64]> {
        let index = self.variants.iter().position(|&measured| measured == variant)?;
        Some(&self.ns[index])
    }

    /// Ratios within rounds; `None` for tools that are not available.
    fn ratio(&self, variant: Variant, to: Variant) -> Option<Spread> {
        Some(ratios(self.of(variant)?, self.of(to)?))
    }

    fn malloc_table(&self) -> String {
        let mut rows: Vec<Vec<String>> = Vec::new();
        for (&variant, ns) in self.variants.iter().zip(&self.ns) {
            let over = |to| self.ratio(variant, to).map_or_else(String::new, |ratio| format!("{ratio:.2}"));
            let spread = Spread::of(ns.iter().copied());
            rows.push(vec![variant.0.to_owned(), format!("{spread:.0}"), over(FLOOR), over(MEMLEAK)]);
        }
        let head = ["one malloc (64 to 1087 bytes) and its free", "CPU ns, median (extremes)", "÷ floor", "÷ memleak"];
        figures::table(&head, &rows)
    }

    fn limits(&self) -> String {
        let limits = [
            ("unsampled ÷ floor", self.ratio(UNSAMPLED, FLOOR), 1.25),
            ("unsampled ÷ memleak", self.ratio(UNSAMPLED, MEMLEAK), 0.15),
            ("everything, 5 frames by frame pointers ÷ floor", self.ratio(EVERYTHING_FP, FLOOR), 3.0),
        ];
        let lines = limits.into_iter().filter_map(|(name, ratio, limit)| {
            let ratio = ratio?;
            Some(format!("- {name}: {ratio:.2}, limit {limit}: {}.\n", verdict(ratio.median(), limit)))
        });
        format!("\n{}", lines.collect::<String>())
    }
}

const CALLS: u32 = 100_000;

/// Names of the calls, and options of heapbpf.
const HOT_PATHS: [(&str, &str, &[&str]); 3] = [
    ("malloc, not sampled", "free, not in the live set", &["--interval", "1GiB"]),
    (
        "malloc, sampled, 5 frames by frame pointers, entry and return",
        "free, in the live set",
        &["--interval", "1", "--on-overload", "drop", "--unwind", "fp"],
    ),
    (
        "malloc, sampled, 5 frames by tables, entry and return",
        "free, in the live set",
        &["--interval", "1", "--on-overload", "drop"],
    ),
];

/// Enables the kernel's run-time statistics of BPF programs.
const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Enables them until the value is dropped.
pub(super) fn statistics() -> Result<impl Drop> {
    let before = fs::read_to_string(STATISTICS)?;
    fs::write(STATISTICS, "1")?;
    Ok(scopeguard::guard(before, |before| drop(fs::write(STATISTICS, before.trim()))))
}

/// Nanoseconds in the programs, and runs of them, for a malloc and for a free.
type HotPath = [(f64, f64); 2];

pub(super) fn measure_hot_path(setup: &Setup) -> Result<String> {
    let mut target = programs::start(&setup.bench, "steps", &[])?;
    let _statistics = statistics()?;
    // Of this heapbpf, and of the other one.
    let measured = alternate(setup.bench.rounds, &HOT_PATHS, |(_, _, options)| {
        let tools = [Tool::Heapbpf(options), Tool::Against(options)];
        let available = tools.into_iter().filter(|tool| tool.missing(setup).is_none());
        available.map(|tool| hot_path(setup, &mut target, tool)).collect::<Result<Vec<HotPath>>>()
    })?;
    let mut head = vec!["one call", "ns in the programs, median (extremes)", "runs per call"];
    if setup.against.is_some() {
        head.extend(["of the other heapbpf", "ratio to the other, median (extremes)"]);
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    for ((alloc, free, _), rounds) in HOT_PATHS.iter().zip(&measured) {
        for (call, name) in [alloc, free].into_iter().enumerate() {
            let ns = |tool: usize| -> Vec<f64> {
                rounds.iter().filter_map(|measured| Some(measured.get(tool)?[call].0)).collect()
            };
            let runs = Spread::of(rounds.iter().map(|measured| measured[0][call].1)).median();
            let mut row = vec![(*name).to_owned(), format!("{:.0}", Spread::of(ns(0))), format!("{runs:.1}")];
            if setup.against.is_some() {
                row.extend([format!("{:.0}", Spread::of(ns(1))), format!("{:.2}", ratios(&ns(0), &ns(1)))]);
            }
            rows.push(row);
        }
    }
    Ok(figures::table(&head, &rows))
}

fn hot_path(setup: &Setup, target: &mut Program, tool: Tool) -> Result<HotPath> {
    let attached = tool.attach(setup, target.pid(), &[])?;
    let agent = attached.agent()?;
    let before = runs(agent)?;
    target.order(&format!("alloc {CALLS}"))?;
    let between = runs(agent)?;
    target.order("free")?;
    let after = runs(agent)?;
    attached.detach(target.pid())?;
    let per_call = |before: (u64, u64), after: (u64, u64)| {
        let of_calls = |before: u64, after: u64| after.saturating_sub(before) as f64 / f64::from(CALLS);
        (of_calls(before.0, after.0), of_calls(before.1, after.1))
    };
    Ok([per_call(before, between), per_call(between, after)])
}

/// `BPF_PROG_TYPE_KPROBE`, the type of uprobe programs.
const UPROBE_PROGRAM: u64 = 2;

/// Run time in nanoseconds and number of runs of a process's uprobe programs.
pub(super) fn runs(pid: u32) -> Result<(u64, u64)> {
    let mut runs = (0, 0);
    for facts in bpf_objects(pid, "prog_id", "run_cnt")? {
        let fact = |name: &str| facts.get(name).copied().unwrap_or(0);
        if fact("prog_type") == UPROBE_PROGRAM {
            runs.0 += fact("run_time_ns");
            runs.1 += fact("run_cnt");
        }
    }
    Ok(runs)
}

pub(super) type Facts = BTreeMap<String, u64>;

/// The numbers in `/proc/PID/fdinfo/N` of each BPF object with this fact. Several descriptors of an object, and links, which
/// name their program's ID, too, count once.
pub(super) fn bpf_objects(pid: u32, id: &str, fact: &str) -> Result<Vec<Facts>> {
    let folder = format!("/proc/{pid}/fdinfo");
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("process {pid} has exited"))? {
        // A descriptor may have been closed since.
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        let facts = parse_facts(&text);
        if let Some(&number) = facts.get(id).filter(|_| facts.contains_key(fact)) {
            found.insert(number, facts);
        }
    }
    Ok(found.into_values().collect())
}

/// Lines of `name:\tnumber`.
fn parse_facts(text: &str) -> Facts {
    let fact = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(fact).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_numbers_with_names() {
        let facts = parse_facts("pos:\t0\nflags:\t02000002\nprog_tag:\t5a1b\nrun_cnt:\t12\nprog_id:\t7\n");
        assert_eq!((facts["run_cnt"], facts["prog_id"]), (12, 7));
        assert!(!facts.contains_key("prog_tag"));
    }
}
