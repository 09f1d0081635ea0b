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
    let mut of_other = figures.clone();
    for _ in 0..bench.rounds {
        for ((.., arguments), (own, other)) in CASES.iter().zip(figures.iter_mut().zip(&mut of_other)) {
            for (tool, [allocs, frees]) in [(Tool::Heapbpf(arguments), own), (Tool::Against(arguments), other)] {
                if tool.missing(bench).is_some() {
                    continue;
                }
                let [alloc, free] = one_turn(bench, &mut target, tool)?;
                allocs.push(alloc);
                frees.push(free);
            }
        }
    }
    drop(statistics);
    let mut head = vec!["one call", "ns in the programs, median (extremes)", "runs per call"];
    if bench.against.is_some() {
        head.extend(["of the other heapbpf", "ratio to the other, median (extremes)"]);
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    for ((alloc, free, _), (own, other)) in CASES.iter().zip(figures.into_iter().zip(of_other)) {
        for (name, (own, other)) in [alloc, free].into_iter().zip(own.into_iter().zip(other)) {
            let ns = |figures: &[(f64, f64)]| figures.iter().map(|&(ns, _)| ns).collect::<Vec<_>>();
            let runs: Vec<_> = own.iter().map(|&(_, runs)| runs).collect();
            let (own, other) = (ns(&own), ns(&other));
            let mut row = vec![(*name).to_owned(), format!("{:.0}", Spread::new(own.clone()))];
            row.push(format!("{:.1}", Spread::new(runs).median()));
            if bench.against.is_some() {
                let ratios = own.iter().zip(&other).map(|(own, other)| own / other).collect();
                row.extend([format!("{:.0}", Spread::new(other)), format!("{:.2}", Spread::new(ratios))]);
            }
            rows.push(row);
        }
    }
    Ok(document::table(&head, &rows))
}

/// What an allocation and a free cost under this tool.
fn one_turn(bench: &Bench, target: &mut Steps, tool: Tool) -> Result<[(f64, f64); 2]> {
    let attached = tool.attach(bench, target.pid(), &[])?;
    let agent = attached.tool_pid()?;
    let before = runs(agent)?;
    target.allocate(CALLS)?;
    let between = runs(agent)?;
    target.free()?;
    let after = runs(agent)?;
    let _ = attached.detach()?;
    Ok([per_call(before, between), per_call(between, after)])
}

/// Nanoseconds in programs, and runs, for one of the calls between.
fn per_call(before: Runs, after: Runs) -> (f64, f64) {
    let seconds = std::time::Duration::from_nanos(after.ns.saturating_sub(before.ns)).as_secs_f64();
    let runs = u32::try_from(after.count.saturating_sub(before.count)).unwrap_or(u32::MAX);
    (seconds * 1e9 / f64::from(CALLS), f64::from(runs) / f64::from(CALLS))
}
