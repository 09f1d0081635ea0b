//! `cargo xtask bench mark`: how fast blocks are marked and folded, and in how much memory, on heaps that are made up.
//!
//! Runs the example `marking` of heapbpf, a process for each heap. Times are processor time.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::spread::Spread;
use super::{document, machine};
use crate::command;
use crate::repository::{self, Repository};

/// Where `--write` writes.
const PAGE: &str = "docs/leaks.md";

/// What marking must reach on heaps of a realistic kind, in GiB/s of each processor.
const GIB_PER_SECOND_MIN: f64 = 1.0;
/// What 10 million blocks may take, in GiB: copied memory, blocks, marks and what is folded together.
const RESIDENT_GIB_MAX: f64 = 2.0;

/// A heap, and what `marking` is given to make it: MiB, bytes of blocks from and to, percent of words that are pointers, percent of
/// pointers that lead to neighbours, threads, percent of blocks that leak.
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

/// Measures marking and folding of made-up heaps of 1 GiB and of 10 million blocks.
#[derive(clap::Parser)]
pub(crate) struct Arguments {
    /// Put the table into docs/leaks.md.
    #[arg(long)]
    write: bool,

    /// Runs of each heap.
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    rounds: usize,
}

/// What `marking` says.
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

/// Runs the subject.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let repository = Repository::find()?;
    let mut cargo = Command::new(repository::cargo());
    let example = ["build", "--release", "--package", "heapbpf", "--example", "marking"];
    command::run(cargo.current_dir(&repository.root).args(example))?;
    let program = repository.target.join("release/examples/marking");
    let mut runs: Vec<Vec<Marked>> = HEAPS.iter().map(|_| Vec::new()).collect();
    for _ in 0..arguments.rounds.max(1) {
        for ((_, numbers), of_heap) in HEAPS.iter().zip(&mut runs) {
            of_heap.push(marked(&program, numbers)?);
        }
    }
    let (text, missed) = told(&runs);
    println!("{text}");
    if arguments.write {
        document::write(&repository.root.join(PAGE), "mark", &text)?;
    }
    if !missed.is_empty() {
        bail!("below {GIB_PER_SECOND_MIN} GiB/s or above {RESIDENT_GIB_MAX} GiB: {}", missed.join("; "));
    }
    Ok(())
}

fn marked(program: &Path, numbers: &[u32]) -> Result<Marked> {
    let output = command::output(Command::new(program).args(numbers.iter().map(u32::to_string)))?;
    serde_json::from_str(&output).context("`marking` wrote no JSON")
}

/// The table, and the heaps on which less was reached than must be.
fn told(runs: &[Vec<Marked>]) -> (String, Vec<&'static str>) {
    let (mut rows, mut missed) = (Vec::new(), Vec::new());
    for ((heap, _), runs) in HEAPS.iter().zip(runs) {
        let of = |what: fn(&Marked) -> f64| Spread::new(runs.iter().map(what).collect()).median();
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
            format!("{:.1}", of(|run| count(run.footprint_bytes) / count(run.blocks))),
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
    let text = format!(
        "Medians of {} runs, in processor time; {}.\n\n{}",
        runs.first().map_or(0, Vec::len),
        machine::describe(),
        document::table(&head, &rows)
    );
    (text, missed)
}

#[expect(clippy::cast_precision_loss, reason = "sizes for display")]
fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

#[expect(clippy::cast_precision_loss, reason = "counts for display")]
fn count(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missed_is_named() {
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
        let (text, missed) = told(&runs);
        assert_eq!(missed, [HEAPS[2].0, HEAPS[7].0]);
        assert!(text.contains("| 20.0 | 0.10 s | 1.00 s | 2.00 GiB/s | 3 in 2, 1 of them at least |"), "{text}");
    }
}
