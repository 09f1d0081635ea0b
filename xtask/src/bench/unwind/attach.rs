//! How long attaching to a backend of postgres takes: without tables, with tables from the cache, and with tables to be
//! built. From the start of heapbpf until it records.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::{Bench, programs};
use crate::bench::document;
use crate::bench::recording::Recording;
use crate::bench::spread::Spread;

/// Rounds of all three, one after the other.
const ROUNDS: usize = 7;

/// A way to attach: its name, whether the cache is emptied before, and how long it may take, in milliseconds.
struct Way {
    name: &'static str,
    cold: bool,
    limit_ms: f64,
}

const WAYS: [Way; 2] = [
    Way { name: "tables from the cache", cold: false, limit_ms: 200.0 },
    Way { name: "tables built, empty cache", cold: true, limit_ms: 1000.0 },
];

/// One attach, in milliseconds.
#[derive(Clone, Copy)]
struct Times {
    total: f64,
    /// On a processor.
    processor: f64,
    /// To build or read tables.
    building: f64,
    /// To write them to the kernel.
    writing: f64,
}

/// Attaches time and again.
pub(super) fn measure(bench: &Bench) -> Result<String> {
    let running = (programs::POSTGRES.start)(&bench.folder("attach-postgres")?)?;
    let cache = bench.folder("attach-cache")?;
    let pids = &running.pids[..1];
    let mut times = [const { Vec::new() }; WAYS.len()];
    // Fills the cache, and brings files into memory.
    attach(bench, pids, true, &cache)?;
    for _ in 0..ROUNDS {
        for (way, times) in WAYS.iter().zip(&mut times) {
            times.push(attach(bench, pids, way.cold, &cache)?);
        }
    }
    let rows: Vec<_> = WAYS.iter().zip(&times).map(|(way, times)| cells(way, times)).collect();
    let head = [
        "attaching to a postgres backend",
        "ms in all",
        "on a processor",
        "tables: build or read",
        "write",
        "in all at most",
        "met",
    ];
    Ok(format!("{}\nMedians of {ROUNDS} turns, extremes in parentheses.\n", document::table(&head, &rows)))
}

fn cells(way: &Way, times: &[Times]) -> Vec<String> {
    let spread = |of: fn(&Times) -> f64| Spread::new(times.iter().map(of).collect());
    let total = spread(|times| times.total);
    vec![
        way.name.to_owned(),
        format!("{total:.0}"),
        format!("{:.0}", spread(|times| times.processor)),
        format!("{:.1}", spread(|times| times.building)),
        format!("{:.1}", spread(|times| times.writing)),
        format!("{:.0}", way.limit_ms),
        if total.median() <= way.limit_ms { "yes" } else { "no" }.to_owned(),
    ]
}

/// Attaches once.
fn attach(bench: &Bench, pids: &[u32], cold: bool, cache: &Path) -> Result<Times> {
    if cold {
        for entry in std::fs::read_dir(cache)? {
            std::fs::remove_dir_all(entry?.path())?;
        }
    }
    let mut command = bench.heapbpf.command(pids, cache)?;
    command.args(["--duration", "100ms", "-o"]).arg(bench.folder.join("attach.folded"));
    let recording = Recording::start(&mut command)?;
    let [building, writing] = recording.tables_ms;
    let times = Times {
        total: recording.attached_after.as_secs_f64() * 1e3,
        processor: recording.processor_ms.context("heapbpf ended before it was looked at")?,
        building,
        writing,
    };
    recording.finish()?;
    Ok(times)
}
