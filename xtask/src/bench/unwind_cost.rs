//! Costs of unwinding by tables: building them, attaching with and without a cache of them, and a sampled call.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use heapbpf_tests::report::Callsite;
use serde::Deserialize;

use super::agent::{self, Agent};
use super::attach::ms;
use super::figures::{Spread, alternate, ratios, verdict};
use super::process::thread_cpu_ms;
use super::targets::{self, Nested};
use super::{Bench, document, programs};
use crate::command;

/// Number of modules with a line of their own: those with most rows.
const LISTED: usize = 8;

const ROWS_PER_SECOND_MIN: f64 = 1e6;

/// Limit for a row in the kernel, with its share of pages and rules.
const ROW_BYTES_MAX: f64 = 16.0;

/// Output of the example `unwind_tables` for one module.
#[derive(Debug, Deserialize)]
struct Built {
    file: String,
    /// Rows of the module's own table.
    rows_read: u64,
    /// After equal neighbours were merged.
    rows: u64,
    rules: u64,
    /// In the kernel, including rules.
    kernel_bytes: u64,
    /// Median of several rounds.
    build_ns: u64,
}

/// Builds the tables of these modules.
pub(super) fn tables(bench: &Bench, modules: &BTreeSet<String>) -> Result<String> {
    let program = bench.repository.example("unwind_tables")?;
    let files = modules.iter().filter(|module| Path::new(module).exists());
    let output = command::output(Command::new(program).args(files))?;
    let built: Result<Vec<Built>, _> = output.lines().map(serde_json::from_str).collect();
    tables_text(built.context("`unwind_tables` wrote no JSON")?)
}

fn tables_text(mut built: Vec<Built>) -> Result<String> {
    ensure!(!built.is_empty(), "no module has a table");
    built.sort_by_key(|module| std::cmp::Reverse(module.rows));
    let sum = |of: fn(&Built) -> u64| built.iter().map(of).sum::<u64>();
    let total = Built {
        file: format!("all {} modules", built.len()),
        rows_read: sum(|module| module.rows_read),
        rows: sum(|module| module.rows),
        rules: sum(|module| module.rules),
        kernel_bytes: sum(|module| module.kernel_bytes),
        build_ns: sum(|module| module.build_ns),
    };
    let rate = total.rows as f64 / (total.build_ns as f64 / 1e9);
    let row_bytes = total.kernel_bytes as f64 / total.rows as f64;
    let cells = |module: &Built| {
        let name = Path::new(&module.file).file_name().unwrap_or_default().to_string_lossy();
        vec![
            name.into_owned(),
            module.rows_read.to_string(),
            module.rows.to_string(),
            module.rules.to_string(),
            format!("{:.1}", module.build_ns as f64 / 1e6),
            format!("{:.1} M", module.rows as f64 * 1e3 / module.build_ns as f64),
            format!("{:.2}", module.kernel_bytes as f64 / module.rows.max(1) as f64),
        ]
    };
    let rows: Vec<_> = built.iter().take(LISTED).chain([&total]).map(cells).collect();
    let head = ["module", "rows read", "rows kept", "rules", "ms", "rows kept per s", "bytes per row"];
    Ok(format!(
        "{}\n{rate:.0} rows per second, at least 1,000,000 are required: {}. {row_bytes:.2} bytes per row, limit 16: {}.\n",
        document::table(&head, &rows),
        verdict(-rate, -ROWS_PER_SECOND_MIN),
        verdict(row_bytes, ROW_BYTES_MAX),
    ))
}

const ATTACH_ROUNDS: usize = 7;

/// Names, whether the cache is emptied before, and the limit in milliseconds.
const CACHES: [(&str, bool, f64); 2] =
    [("tables from the cache", false, 200.0), ("tables built, empty cache", true, 1000.0)];

/// Milliseconds of one attachment: from the start of heapbpf until it records, its CPU time, building or reading tables, and
/// writing them to the kernel.
type Times = [f64; 4];

/// Attaches to a backend of postgres.
pub(super) fn attach(bench: &Bench) -> Result<String> {
    let running = (programs::POSTGRES.start)(&bench.empty_folder("attach-postgres")?)?;
    let pid = running.pids[0];
    // Fills the cache, and brings files into memory.
    attach_once(bench, pid, true)?;
    let measured = alternate(ATTACH_ROUNDS, &CACHES, |(_, is_cold, _)| attach_once(bench, pid, *is_cold))?;
    let cells = |((name, _, limit), times): (&(&str, bool, f64), &Vec<Times>)| {
        let [total, cpu, building, writing] = [0, 1, 2, 3].map(|index| Spread::of(times.iter().map(|it| it[index])));
        vec![
            (*name).to_owned(),
            format!("{total:.0}"),
            format!("{cpu:.0}"),
            format!("{building:.1}"),
            format!("{writing:.1}"),
            format!("{limit:.0}"),
            if total.median() <= *limit { "yes" } else { "no" }.to_owned(),
        ]
    };
    let rows: Vec<_> = CACHES.iter().zip(&measured).map(cells).collect();
    let head =
        ["attaching to a postgres backend", "ms in all", "CPU time", "tables: build or read", "write", "limit", "met"];
    Ok(format!("{}\nMedians of {ATTACH_ROUNDS} rounds, extremes in parentheses.\n", document::table(&head, &rows)))
}

fn attach_once(bench: &Bench, pid: u32, is_cold: bool) -> Result<Times> {
    if is_cold {
        bench.empty_folder("cache")?;
    }
    let mut command = bench.record(pid);
    command.env("RUST_LOG", "heapbpf=info").args(["--duration", "100ms"]);
    let mut agent = Agent::start(&mut command, &bench.folder.join("attach.folded"))?;
    let [building, writing] = tables_ms(&agent.log);
    let times = [ms(agent.attached_after), thread_cpu_ms(agent.pid())?, building, writing];
    agent.wait()?;
    Ok(times)
}

/// Times for tables in heapbpf's log: the sums over all targets.
fn tables_ms(log: &[String]) -> [f64; 2] {
    let mut sums = [0.0; 2];
    for line in log.iter().filter(|line| line.contains("unwind tables of process")) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let times = words.windows(2).filter(|pair| pair[1] == "ms").filter_map(|pair| pair[0].parse::<f64>().ok());
        sums.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
    }
    sums
}

const COST_ROUNDS: usize = 9;

/// Frames of the stack, including the caller of malloc and the outermost one.
const FRAMES: usize = 20;

/// Limit for tables, as a multiple of frame pointers.
const RATIO_MAX: f64 = 3.0;

/// Names, and values of `--unwind`.
const UNWINDING: [(&str, Option<&str>); 3] = [
    ("not profiled", None),
    ("by frame pointers (`--unwind fp`)", Some("fp")),
    ("by tables (`--unwind dwarf`)", Some("dwarf")),
];

/// Measures a sampled malloc with a stack of 20 frames. The target has frame pointers, so that both methods find the same frames.
pub(super) fn cost(bench: &Bench) -> Result<String> {
    let target = targets::build(bench, "nested")?;
    let ns = alternate(COST_ROUNDS, &UNWINDING, |(_, unwinding)| {
        let mut nested = Nested::start(&target)?;
        let Some(unwinding) = unwinding else { return nested.call_ns() };
        let mut command = bench.record(nested.pid());
        command.args(["--interval", "1", "--unwind", unwinding]);
        let agent = Agent::start(&mut command, &bench.folder.join("cost.json"))?;
        let median = nested.call_ns()?;
        drop(nested);
        let report = agent.finish()?;
        let complete = report.health.unwind.get("complete").copied().unwrap_or(0);
        ensure!(complete * 2 > report.health.unwind.values().sum(), "most stacks by `{unwinding}` end early");
        let by_count = |a: &&Callsite, b: &&Callsite| agent::alloc_count(a).total_cmp(&agent::alloc_count(b));
        let depth = agent::callsites(&report).max_by(by_count).map_or(0, agent::depth);
        ensure!(depth == FRAMES, "stacks by `{unwinding}` have {depth} frames instead of {FRAMES}");
        Ok(median)
    })?;
    let row = |((name, _), ns): (&(&str, _), &Vec<f64>)| {
        vec![(*name).to_owned(), format!("{:.0}", Spread::of(ns.iter().copied()))]
    };
    let rows: Vec<_> = UNWINDING.iter().zip(&ns).map(row).collect();
    let ratio = ratios(&ns[2], &ns[1]);
    Ok(format!(
        "{}\nBy tables ÷ by frame pointers, round by round: {ratio:.2}; limit {RATIO_MAX}: {}.\n",
        document::table(&["one malloc with 20 frames above it", "ns, median of 9 rounds (extremes)"], &rows),
        verdict(ratio.median(), RATIO_MAX)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_sums_and_rates() {
        let module = |rows, build_ns| Built {
            file: "/usr/lib/a.so".to_owned(),
            rows_read: rows * 2,
            rows,
            rules: 10,
            kernel_bytes: rows * 4 + 80,
            build_ns,
        };
        let text = tables_text(vec![module(1000, 1_000_000), module(3000, 1_000_000)]).expect("there are two");
        assert!(text.contains("| a.so | 6000 | 3000 | 10 | 1.0 | 3.0 M | 4.03 |\n| a.so | 2000 | 1000 |"), "{text}");
        assert!(text.contains("| all 2 modules | 8000 | 4000 | 20 | 2.0 | 2.0 M | 4.04 |"), "{text}");
        assert!(text.contains("2000000 rows per second, at least 1,000,000 are required: met."), "{text}");
        assert!(tables_text(Vec::new()).is_err());
    }

    #[test]
    fn times_of_tables_are_read_from_the_log() {
        let log = " INFO heapbpf: unwind tables of process 1: 12.5 ms to build or read, 3.0 ms to write\n WARN other\n \
                   INFO heapbpf: unwind tables of process 2: 0.5 ms to build or read, 1.0 ms to write";
        assert_eq!(tables_ms(&log.lines().map(str::to_owned).collect::<Vec<_>>()), [13.0, 4.0]);
    }
}
