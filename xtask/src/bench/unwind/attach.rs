//! How long attaching to a backend of postgres takes: without tables, with tables from the cache, and with tables to be
//! built. From the start of heapbpf until it records.

use std::path::Path;

use anyhow::Result;

use super::{Bench, programs};
use crate::bench::document;
use crate::bench::recording::Recording;
use crate::bench::spread::Spread;

/// Rounds of all three, one after the other.
const ROUNDS: usize = 7;

/// A way to attach.
#[derive(Clone, Copy, Debug)]
enum Way {
    WithoutTables,
    Cached,
    Cold,
}

/// What is measured, and how long it may take, in milliseconds.
const WAYS: [(Way, &str, f64); 3] = [
    (Way::WithoutTables, "without tables (`--unwind fp`)", f64::INFINITY),
    (Way::Cached, "tables from the cache", 200.0),
    (Way::Cold, "tables built, empty cache", 1000.0),
];

/// Attaches time and again.
pub(super) fn measure(bench: &Bench) -> Result<String> {
    let running = (programs::POSTGRES.start)(&bench.folder("attach-postgres")?)?;
    let cache = bench.folder("attach-cache")?;
    let pids = &running.pids[..1];
    let mut times = [const { Vec::new() }; WAYS.len()];
    // Fills the cache, and brings files into memory.
    attach(bench, pids, Way::Cold, &cache)?;
    for _ in 0..ROUNDS {
        for ((way, ..), times) in WAYS.iter().zip(&mut times) {
            times.push(attach(bench, pids, *way, &cache)?);
        }
    }
    let spreads = times.map(Spread::new);
    let base = spreads[0].median();
    let rows = WAYS.iter().zip(&spreads).map(|((_, name, limit), spread)| {
        let (bar, met) = if limit.is_finite() {
            (format!("{limit:.0}"), if spread.median() <= *limit { "yes" } else { "no" })
        } else {
            (String::new(), "")
        };
        let tables = (spread.median() - base).max(0.0);
        vec![(*name).to_owned(), format!("{spread:.0}"), format!("{tables:.0}"), bar, met.to_owned()]
    });
    let head = ["attaching to a postgres backend", "ms, median (extremes)", "of which tables, ms", "at most", "met"];
    Ok(document::table(&head, &rows.collect::<Vec<_>>()))
}

/// One attach, in milliseconds.
fn attach(bench: &Bench, pids: &[u32], way: Way, cache: &Path) -> Result<f64> {
    if let Way::Cold = way {
        for entry in std::fs::read_dir(cache)? {
            std::fs::remove_dir_all(entry?.path())?;
        }
    }
    let mut command = bench.heapbpf.command(pids, cache)?;
    command.args(["--duration", "100ms", "-o"]).arg(bench.folder.join("attach.folded"));
    command.args(["--unwind", if let Way::WithoutTables = way { "fp" } else { "auto" }]);
    let recording = Recording::start(&mut command)?;
    let milliseconds = recording.attached_after.as_secs_f64() * 1e3;
    recording.finish()?;
    Ok(milliseconds)
}
