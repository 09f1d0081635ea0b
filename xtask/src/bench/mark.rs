//! `cargo xtask bench mark`: time and memory for marking and folding the blocks of synthetic heaps.
//!
//! Runs the example `marking` of heapbpf, a process for each heap. Times are CPU time.

use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::figures::{Spread, alternate};
use super::{Page, document};
use crate::command;
use crate::repository::Repository;

/// Minimum rate of marking in GiB/s of each CPU.
const GIB_PER_SECOND_MIN: f64 = 1.0;
/// Limit for 10 million blocks, in GiB: copied memory, blocks, marks and the result of folding.
const RESIDENT_GIB_MAX: f64 = 2.0;

/// A heap, and the arguments of `marking`: MiB, minimum and maximum bytes of a block, percent of words that are pointers, percent
/// of pointers to near blocks, threads, percent of leaked blocks.
const HEAPS: [(&str, [u32; 7]); 9] = [
    ("1 GiB, buffers of 4 to 64 KiB, 1 % pointers", [1024, 4096, 65536, 1, 90, 1, 0]),
    ("1 GiB, blocks of 64 to 256 bytes, 10 % pointers, 90 % of them near", [1024, 64, 256, 10, 90, 1, 0]),
    ("the same, 25 % pointers", [1024, 64, 256, 25, 90, 1, 0]),
    ("the same, 50 % pointers", [1024, 64, 256, 50, 90, 1, 0]),
    ("the same, 25 % pointers, two threads", [1024, 64, 256, 25, 90, 2, 0]),
    ("the same, 25 % pointers, all of them anywhere", [1024, 64, 256, 25, 0, 1, 0]),
    ("10 million blocks of 64 bytes, 25 % pointers", [640, 64, 64, 25, 90, 1, 0]),
    ("the same, half of them leaked", [640, 64, 64, 25, 90, 1, 50]),
    ("the same, all of them leaked", [640, 64, 64, 25, 90, 1, 100]),
];

/// Measures marking and folding of synthetic heaps of 1 GiB and of 10 million blocks.
#[derive(clap::Parser)]
pub(super) struct Arguments {
    /// Write the table into docs/leaks.md.
    #[arg(long)]
    write: bool,

    /// Number of runs of each heap.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    rounds: usize,
}

/// The output of `marking`.
#[derive(Debug, Deserialize)]
struct Marked {
    blocks: u64,
    footprint_bytes: u64,
    sorted_seconds: f64,
    reached_bytes: u64,
    marked_seconds: f64,
    leaked_count: u64,
    root_count: u64,
    lower_bounds: u64,
    folded_seconds: f64,
    resident_bytes_max: u64,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let repository = Repository::find()?;
    let program = repository.example("marking")?;
    let runs = alternate(arguments.rounds, &HEAPS, |(_, numbers)| {
        let output = command::output(Command::new(&program).args(numbers.iter().map(u32::to_string)))?;
        serde_json::from_str::<Marked>(&output).context("`marking` wrote no JSON")
    })?;
    let (table, missed) = table(&runs);
    let rounds = arguments.rounds.max(1);
    let text = format!("Medians of {rounds} runs, in CPU time.\n\n{table}");
    Page::new(&repository, "docs/leaks.md", arguments.write).publish("mark", &text)?;
    if !missed.is_empty() {
        bail!("below {GIB_PER_SECOND_MIN} GiB/s or above {RESIDENT_GIB_MAX} GiB: {}", missed.join("; "));
    }
    Ok(())
}

/// The table, and the heaps that exceed a limit.
fn table(runs: &[Vec<Marked>]) -> (String, Vec<&'static str>) {
    let (mut rows, mut missed) = (Vec::new(), Vec::new());
    for ((heap, _), runs) in HEAPS.iter().zip(runs) {
        let of = |value: fn(&Marked) -> f64| Spread::of(runs.iter().map(value)).median();
        let rate = of(|run| gib(run.reached_bytes) / run.marked_seconds.max(f64::MIN_POSITIVE));
        let resident = of(|run| gib(run.resident_bytes_max));
        let has_reached = runs[0].reached_bytes > 0;
        if has_reached && rate < GIB_PER_SECOND_MIN || resident > RESIDENT_GIB_MAX {
            missed.push(*heap);
        }
        let bounds = match runs[0].lower_bounds {
            0 => String::new(),
            count => format!(", {count} of them at least"),
        };
        rows.push(vec![
            (*heap).to_owned(),
            runs[0].blocks.to_string(),
            format!("{:.1}", of(|run| run.footprint_bytes as f64 / run.blocks as f64)),
            format!("{:.2} s", of(|run| run.sorted_seconds)),
            format!("{:.2} s", of(|run| run.marked_seconds)),
            if has_reached { format!("{rate:.2} GiB/s") } else { String::new() },
            format!("{} in {}{bounds}", runs[0].leaked_count, runs[0].root_count),
            format!("{:.2} s", of(|run| run.folded_seconds)),
            format!("{resident:.2} GiB"),
        ]);
    }
    let head = [
        "heap",
        "blocks",
        "bytes a block",
        "sorting",
        "marking",
        "of reached memory",
        "leaked, in root leaks",
        "folding",
        "memory, with the heap",
    ];
    (document::table(&head, &rows), missed)
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heaps_that_exceed_a_limit_are_listed() {
        let run = |reached_bytes, resident_bytes_max| Marked {
            blocks: 10,
            footprint_bytes: 200,
            sorted_seconds: 0.1,
            reached_bytes,
            marked_seconds: 1.0,
            leaked_count: 3,
            root_count: 2,
            lower_bounds: 1,
            folded_seconds: 0.1,
            resident_bytes_max,
        };
        let mut runs: Vec<Vec<Marked>> = HEAPS.iter().map(|_| vec![run(2 << 30, 1 << 30)]).collect();
        runs[2] = vec![run(1 << 29, 1 << 30)];
        runs[7] = vec![run(2 << 30, 3 << 30)];
        runs[8] = vec![run(0, 1 << 30)];
        let (text, missed) = table(&runs);
        assert_eq!(missed, [HEAPS[2].0, HEAPS[7].0]);
        assert!(text.contains("| 20.0 | 0.10 s | 1.00 s | 2.00 GiB/s | 3 in 2, 1 of them at least |"), "{text}");
    }
}
