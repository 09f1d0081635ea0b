//! Small processes, with one thread and with many: what a pause takes that does not come from memory.

use anyhow::Result;

use super::hoard::{Heap, Hoard};
use super::look::look;
use super::{Bench, METHODS, Measured, told};
use crate::bench::document;

/// Heaps, in MiB.
const HEAPS_MIB: [u64; 2] = [1, 64];

/// Threads.
const THREADS: [u32; 2] = [1, 1024];

/// Measures all of them, both ways by turns.
pub(super) fn measure(bench: &Bench) -> Result<Measured> {
    let mut rows = Vec::new();
    for mib in HEAPS_MIB {
        for threads in THREADS {
            let hoard = Hoard::start(&bench.hoard, Heap::Structures(mib << 20), threads)?;
            let mut pauses = [Vec::new(), Vec::new()];
            let mut seconds = [Vec::new(), Vec::new()];
            for _ in 0..bench.rounds {
                for ((method, pauses), seconds) in METHODS.iter().zip(&mut pauses).zip(&mut seconds) {
                    let pid = hoard.pid().to_string();
                    let look = look(bench, &["--pid", &pid, "--snapshot", method].map(str::to_owned))?;
                    look.found.check(&hoard.truth)?;
                    pauses.push(look.found.pause().as_secs_f64() * 1e3);
                    seconds.push(look.seconds);
                }
            }
            let mut row = vec![format!("{mib} MiB, {threads} thread{}", if threads == 1 { "" } else { "s" })];
            row.extend(pauses.iter().map(|pauses| told(pauses, 2)));
            row.extend(seconds.iter().map(|seconds| told(seconds, 2)));
            rows.push(row);
        }
    }
    let head = ["live heap", "pause by reading, ms", "by fork, ms", "until reported by reading, s", "by fork, s"];
    let text = format!(
        "Medians of {} rounds, the worst in parentheses. Threads sleep.\n\n{}",
        bench.rounds,
        document::table(&head, &rows)
    );
    Ok(Measured { text, missed: Vec::new() })
}
