//! How fast tables are built of the programs' modules, and what a row of them takes.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use super::Bench;
use crate::bench::document;
use crate::command;
use crate::repository;

/// Modules that are listed by themselves: those with most rows.
const LISTED: usize = 8;

/// Rows per second that building must reach.
const ROWS_PER_SECOND_MIN: f64 = 1e6;

/// Bytes that a row may take in the kernel, with its share of pages and rules.
const ROW_BYTES_MAX: f64 = 16.0;

/// What `unwind_tables` says of one module.
#[derive(Debug, Deserialize)]
struct Built {
    file: String,
    /// As the module has them.
    rows_read: u64,
    /// After equal neighbours were merged.
    rows: u64,
    rules: u64,
    /// In the kernel, rules included.
    kernel_bytes: u64,
    /// Median of several rounds.
    build_ns: u64,
}

/// Builds the tables of these modules.
pub(super) fn measure(bench: &Bench, modules: &BTreeSet<String>) -> Result<String> {
    let mut cargo = Command::new(repository::cargo());
    let example = ["build", "--release", "--package", "heapbpf", "--example", "unwind_tables"];
    command::run(cargo.current_dir(&bench.repository.root).args(example))?;
    let program = bench.repository.target.join("release/examples/unwind_tables");
    let files = modules.iter().filter(|module| Path::new(module).exists());
    let output = command::output(Command::new(program).args(files))?;
    let built: Vec<Built> =
        output.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("`unwind_tables` wrote no JSON")?;
    report(built)
}

#[expect(clippy::cast_precision_loss, reason = "rates for display")]
fn report(mut built: Vec<Built>) -> Result<String> {
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
    let rows: Vec<_> = built.iter().take(LISTED).chain([&total]).map(cells).collect();
    let head = ["module", "rows read", "rows kept", "rules", "ms", "rows kept per s", "bytes per row"];
    let met = |met: bool| if met { "met" } else { "not met" };
    Ok(format!(
        "{}\nOf {:.0} rows per second at least 1,000,000 are asked for: {}. Of {row_bytes:.2} bytes per row at most 16: {}.\n",
        document::table(&head, &rows),
        rate,
        met(rate >= ROWS_PER_SECOND_MIN),
        met(row_bytes <= ROW_BYTES_MAX),
    ))
}

#[expect(clippy::cast_precision_loss, reason = "rates for display")]
fn cells(module: &Built) -> Vec<String> {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_rates() {
        let module = |rows, build_ns| Built {
            file: "/usr/lib/a.so".to_owned(),
            rows_read: rows * 2,
            rows,
            rules: 10,
            kernel_bytes: rows * 4 + 80,
            build_ns,
        };
        let text = report(vec![module(1000, 1_000_000), module(3000, 1_000_000)]).expect("there are two");
        assert!(text.contains("| a.so | 6000 | 3000 | 10 | 1.0 | 3.0 M | 4.03 |\n| a.so | 2000 | 1000 |"), "{text}");
        assert!(text.contains("| all 2 modules | 8000 | 4000 | 20 | 2.0 | 2.0 M | 4.04 |"), "{text}");
        assert!(text.contains("2000000 rows per second at least 1,000,000 are asked for: met."), "{text}");
        assert!(report(Vec::new()).is_err());
    }
}
