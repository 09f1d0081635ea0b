//! How long heapbpf's programs run in the kernel, without the traps that lead there: the kernel's own run-time statistics.

use anyhow::Result;

use super::Bench;
use super::descriptors::{RunStatistics, Runs, runs};
use super::steps::Steps;
use super::tool::Tool;
use crate::bench::document;
use crate::bench::spread::Spread;

/// Calls of each kind in a round.
const CALLS: u32 = 100_000;

/// What is called, and how heapbpf is told to watch.
const CASES: [(&str, &str, &[&str]); 3] = [
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

/// Measures all cases by turns.
pub(super) fn measure(bench: &Bench) -> Result<String> {
    let mut target = Steps::start(bench)?;
    let statistics = RunStatistics::enable()?;
    let mut figures = vec![[Vec::new(), Vec::new()]; CASES.len()];
    for _ in 0..bench.rounds {
        for ((.., arguments), [allocs, frees]) in CASES.iter().zip(&mut figures) {
            let attached = Tool::Heapbpf(arguments).attach(bench, target.pid(), &[])?;
            let agent = attached.tool_pid()?;
            let before = runs(agent)?;
            target.allocate(CALLS)?;
            let between = runs(agent)?;
            target.free()?;
            let after = runs(agent)?;
            allocs.push(per_call(before, between));
            frees.push(per_call(between, after));
            let _ = attached.detach()?;
        }
    }
    drop(statistics);
    let mut rows: Vec<Vec<String>> = Vec::new();
    for ((alloc, free, _), [allocs, frees]) in CASES.iter().zip(figures) {
        for (name, figures) in [(alloc, allocs), (free, frees)] {
            let ns: Vec<_> = figures.iter().map(|&(ns, _)| ns).collect();
            let runs: Vec<_> = figures.iter().map(|&(_, runs)| runs).collect();
            let spread = Spread::new(ns);
            rows.push(vec![(*name).to_owned(), format!("{spread:.0}"), format!("{:.1}", Spread::new(runs).median())]);
        }
    }
    let head = ["one call", "ns in the programs, median (extremes)", "runs per call"];
    Ok(document::table(&head, &rows))
}

/// Nanoseconds in programs, and runs, for one of the calls between.
fn per_call(before: Runs, after: Runs) -> (f64, f64) {
    let seconds = std::time::Duration::from_nanos(after.ns.saturating_sub(before.ns)).as_secs_f64();
    let runs = u32::try_from(after.count.saturating_sub(before.count)).unwrap_or(u32::MAX);
    (seconds * 1e9 / f64::from(CALLS), f64::from(runs) / f64::from(CALLS))
}
