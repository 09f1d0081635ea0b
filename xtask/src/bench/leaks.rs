//! `cargo xtask bench leaks`: how long `heapbpf leaks` stops a process, and its duration and memory.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use heapbpf_tests::unreachable;

use super::figures::{self, Spread, ms, verdict};
use super::programs::{self, Heap, Hoard, Truth};
use super::{Bench, Measured, Page, tool};
use crate::packages;
use crate::process::run_measured;

const METHODS: [&str; 2] = ["read", "fork"];

/// Shows how long a process is stopped while it is checked for leaks, how much its latest answer is delayed, and how much time
/// and memory heapbpf takes.
///
/// A test program has linked structures and has leaked a known part. Figures count only where heapbpf finds exactly that.
/// Requires root.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask bench leaks                      everything: ten minutes
  cargo xtask bench leaks --write              and into docs/leaks.md
  cargo xtask bench leaks --part pause --rounds 9
HEAPBPF_BIN=PATH measures that binary instead of building one.")]
pub(super) struct Arguments {
    /// Part to measure. May be given several times. Default: all.
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// Number of rounds in which both methods alternate.
    #[arg(long, default_value_t = 5, value_name = "COUNT")]
    rounds: usize,
    /// Write the tables into docs/leaks.md.
    #[arg(long)]
    write: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A gibibyte of live heap.
    Pause,
    /// Small processes, with one thread and with many.
    Small,
    /// Ten million live blocks.
    Blocks,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let bench = Bench::new(packages::BENCH_C, arguments.rounds)?;
    let hoard = programs::build(&bench, "hoard")?;
    let setup = Setup { bench, hoard };
    let page = Page::new(&setup.bench.repository, "docs/leaks.md", arguments.write);
    page.run(&arguments.part, |part| match part {
        Part::Pause => pause(&setup),
        Part::Small => small(&setup),
        Part::Blocks => blocks(&setup),
    })
}

struct Setup {
    bench: Bench,
    hoard: PathBuf,
}

#[derive(Debug)]
struct Check {
    seconds: f64,
    resident_mib: f64,
    found: unreachable::Check,
}

/// Exit codes: no leaks, leaks.
const CHECKED: [i32; 2] = [0, 4];
/// Maximum part of the leaked bytes that may be missed: words that look like pointers hide blocks.
const MISSED_PART_MAX: f64 = 0.01;

impl Setup {
    fn check(&self, hoard: &Hoard, method: &str) -> Result<Check> {
        self.run(&["--pid", &hoard.pid().to_string(), "--snapshot", method].map(str::to_owned), &hoard.truth)
    }

    fn run(&self, arguments: &[String], truth: &Truth) -> Result<Check> {
        let report = self.bench.folder.join("leaks.json");
        let mut command = self.bench.command(&self.bench.heapbpf);
        command.args(["leaks", "--quiet", "-o"]).arg(&report).args(arguments).stderr(Stdio::inherit());
        let (status, seconds, resident_mib) = run_measured(&mut command)?;
        ensure!(status.code().is_some_and(|code| CHECKED.contains(&code)), "heapbpf failed: {status}");
        let found = tool::read(&report)?;
        fs::remove_file(&report)?;
        verify(&found, truth)?;
        Ok(Check { seconds, resident_mib, found })
    }
}

fn pause_ms(found: &unreachable::Check) -> f64 {
    ms(Duration::from_nanos(found.pause_ns))
}

/// Fails unless the leaked blocks, and no others, have been found: otherwise the figures are meaningless.
fn verify(found: &unreachable::Check, truth: &Truth) -> Result<()> {
    let (leaked, known) = (found.leaked.bytes, found.known.bytes);
    let missed_part = truth.leaked_bytes.saturating_sub(leaked) as f64 / truth.leaked_bytes as f64;
    ensure!(missed_part <= MISSED_PART_MAX, "{leaked} bytes are reported as leaked, of {}", truth.leaked_bytes);
    // A walked block counts with its usable size, at most 16 bytes more than the requested one.
    let limit = truth.leaked_bytes + 16 * truth.leaked_count;
    ensure!(leaked <= limit, "{leaked} bytes are reported as leaked, which exceeds {limit}");
    ensure!(found.known.count >= truth.held_count && known >= truth.held_bytes, "only {known} bytes are known");
    Ok(())
}

fn limit(measured: &mut Measured, what: &str, unit: &str, figure: f64, limit: f64) {
    let sentence = format!("{what}: {figure:.0} {unit}, limit {limit:.0} {unit}");
    measured.text.push_str(&format!("{sentence}: {}.\n", verdict(figure, limit)));
    if figure > limit {
        measured.missed.push(sentence);
    }
}

fn median_max(values: &[f64], digits: usize) -> String {
    let spread = Spread::of(values.iter().copied());
    format!("{:.digits$} ({:.digits$})", spread.median(), spread.max())
}

const PAUSE_HEAP_BYTES: u64 = 1 << 30;
/// Duration of serving requests without a check.
const UNCHECKED: Duration = Duration::from_secs(3);
/// Limits of the pause in milliseconds, by method.
const PAUSE_MS_MAX: [f64; 2] = [1000.0, 50.0];

fn pause(setup: &Setup) -> Result<Measured> {
    let mut hoard = Hoard::start(&setup.hoard, ("structures", PAUSE_HEAP_BYTES), 1)?;
    let mut checks: [Vec<(Check, f64)>; 2] = [Vec::new(), Vec::new()];
    let mut unchecked = Vec::new();
    for _ in 0..setup.bench.rounds {
        hoard.delay_max()?;
        thread::sleep(UNCHECKED);
        unchecked.push(ms(hoard.delay_max()?));
        for (method, checks) in METHODS.iter().zip(&mut checks) {
            let check = setup.check(&hoard, method)?;
            checks.push((check, ms(hoard.delay_max()?)));
        }
    }
    let mut rows = Vec::new();
    for (method, checks) in METHODS.iter().zip(&checks) {
        let column =
            |of: fn(&(Check, f64)) -> f64, digits| median_max(&checks.iter().map(of).collect::<Vec<_>>(), digits);
        rows.push(vec![
            format!("`--snapshot {method}`"),
            column(|(check, _)| pause_ms(&check.found), 1),
            column(|(_, delay)| *delay, 1),
            column(|(check, _)| check.seconds, 1),
            column(|(check, _)| check.resident_mib, 0),
        ]);
    }
    rows.push(vec!["no check".to_owned(), String::new(), median_max(&unchecked, 1), String::new(), String::new()]);
    let head = ["1 GiB of live heap", "pause, ms", "latest answer, ms", "until reported, s", "heapbpf's memory, MiB"];
    let mut measured = Measured::from(format!(
        "{} live blocks of 64 to 256 bytes, a third of whose words are pointers; {} further ones have leaked, and are found. \
         Medians of {} rounds, the maximum in parentheses. Requests are due each millisecond, and change the data they \
         read.\n\n{}\n",
        hoard.truth.held_count,
        hoard.truth.leaked_count,
        setup.bench.rounds,
        figures::table(&head, &rows),
    ));
    for ((method, checks), max) in METHODS.iter().zip(&checks).zip(PAUSE_MS_MAX) {
        let longest = checks.iter().map(|(check, _)| pause_ms(&check.found)).fold(0.0, f64::max);
        limit(&mut measured, &format!("Longest pause, `--snapshot {method}`"), "ms", longest, max);
    }
    Ok(measured)
}

const SMALL_HEAPS_MIB: [u64; 2] = [1, 64];
const SMALL_THREADS: [u32; 2] = [1, 1024];

fn small(setup: &Setup) -> Result<Measured> {
    let mut rows = Vec::new();
    for mib in SMALL_HEAPS_MIB {
        for threads in SMALL_THREADS {
            let hoard = Hoard::start(&setup.hoard, ("structures", mib << 20), threads)?;
            let checks = figures::alternate(setup.bench.rounds, &METHODS, |method| setup.check(&hoard, method))?;
            let mut row = vec![format!("{mib} MiB, {threads} thread{}", if threads == 1 { "" } else { "s" })];
            for of in [|check: &Check| pause_ms(&check.found), |check: &Check| check.seconds] {
                row.extend(checks.iter().map(|checks| median_max(&checks.iter().map(of).collect::<Vec<_>>(), 2)));
            }
            rows.push(row);
        }
    }
    let head = ["live heap", "pause by reading, ms", "by fork, ms", "until reported by reading, s", "by fork, s"];
    let table = figures::table(&head, &rows);
    let rounds = setup.bench.rounds;
    Ok(format!("Medians of {rounds} rounds, the maximum in parentheses. Threads sleep.\n\n{table}").into())
}

const BLOCKS: Heap = ("blocks", 10_000_000);
const BLOCKS_MIB_MAX: f64 = 2048.0;

/// Measures heapbpf's memory for ten million live blocks, once: it hardly depends on other work of the machine.
fn blocks(setup: &Setup) -> Result<Measured> {
    let hoard = Hoard::start(&setup.hoard, BLOCKS, 1)?;
    let truth = hoard.truth;
    let mut checks = Vec::new();
    for method in METHODS {
        checks.push((format!("`--pid`, `--snapshot {method}`"), setup.check(&hoard, method)?));
    }
    drop(hoard);
    let mut command = vec!["--".to_owned(), setup.hoard.display().to_string()];
    command.extend(Hoard::arguments(BLOCKS, 1));
    checks.push(("`-- COMMAND`: each block recorded".to_owned(), setup.run(&command, &truth)?));
    for (name, check) in &checks {
        let is_about_drops = |caveat: &&String| caveat.contains("lost") || caveat.contains("dropped");
        let dropped: Vec<&String> = check.found.caveats.iter().filter(is_about_drops).collect();
        ensure!(dropped.is_empty(), "{name}: {dropped:?}");
    }
    let row = |(name, check): &(String, Check)| {
        let Check { seconds, resident_mib, found } = check;
        vec![name.clone(), format!("{resident_mib:.0}"), format!("{:.1}", pause_ms(found)), format!("{seconds:.1}")]
    };
    let rows: Vec<_> = checks.iter().map(row).collect();
    let head = ["10 million live blocks of 48 to 64 bytes", "heapbpf's memory, MiB", "pause, ms", "until reported, s"];
    let mut measured = Measured::from(format!(
        "{} bytes in use, and the {} blocks that have leaked are found. Memory is the maximum resident size (VmHWM), \
         including the copied memory of the process.\n\n{}\n",
        truth.held_bytes,
        truth.leaked_count,
        figures::table(&head, &rows),
    ));
    let resident_mib = checks.iter().map(|(_, check)| check.resident_mib).fold(0.0, f64::max);
    limit(&mut measured, "heapbpf's memory for ten million blocks", "MiB", resident_mib, BLOCKS_MIB_MAX);
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_met_or_missed() {
        let mut measured = Measured::from(String::new());
        limit(&mut measured, "pause", "ms", 50.0, 50.0);
        assert_eq!((measured.text.as_str(), measured.missed.len()), ("pause: 50 ms, limit 50 ms: met.\n", 0));
        limit(&mut measured, "pause", "ms", 51.0, 50.0);
        assert!(measured.text.ends_with("**not met**.\n"));
        assert_eq!(measured.missed, ["pause: 51 ms, limit 50 ms"]);
        assert_eq!(median_max(&[3.0, 1.0, 2.0], 1), "2.0 (3.0)");
    }
}
