//! Builds the unwind tables of the modules given as arguments, and prints a line of JSON for each with its size and the time
//! to build it. `cargo xtask bench unwind` reads this.

#![expect(clippy::print_stdout, reason = "another program reads the output")]

use std::fs::File;
use std::time::Instant;

use anyhow::{Context, Result};
use heapbpf::internals::{Image, build_unwind_table};
use profiler_common::unwind::Rule;

/// Number of builds per module; the median is printed.
const ROUNDS: usize = 5;

fn main() -> Result<()> {
    for path in std::env::args().skip(1) {
        let file = File::open(&path).with_context(|| format!("cannot open `{path}`"))?;
        let file = Image::new(file)?;
        // Loads the file into the page cache, and skips files without code.
        let Ok(table) = build_unwind_table(&file) else { continue };
        let mut times = [0; ROUNDS];
        for time in &mut times {
            let started = Instant::now();
            std::hint::black_box(build_unwind_table(&file))?;
            *time = started.elapsed().as_nanos();
        }
        times.sort_unstable();
        let line = serde_json::json!({
            "file": path,
            "rows_read": table.stats.rows_read,
            "rows": table.rows.len(),
            "rules": table.rules.len(),
            "kernel_bytes": table.kernel_bytes() + table.rules.len() * size_of::<Rule>(),
            "build_ns": u64::try_from(times[ROUNDS / 2])?,
        });
        println!("{line}");
    }
    Ok(())
}
