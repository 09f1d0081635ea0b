//! One run of `heapbpf leaks`: how long it takes, how much memory, and what it finds.

use std::fs::{self, File};
use std::io::BufReader;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use super::Bench;
use super::hoard::Truth;
use crate::bench::formats::highest_kib;
use crate::bench::process::bound;
use crate::command;

/// Exit codes: no leaks, leaks.
const LOOKED: [i32; 2] = [0, 4];

/// How often its memory is looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(5);

/// Part of the leaked bytes that may be missed: words that look like pointers hide blocks.
const MISSED_PART_MAX: f64 = 0.01;

/// What a run took, and what it found.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) seconds: f64,
    /// Its largest resident size.
    pub(super) resident_mib: f64,
    pub(super) found: Found,
}

/// What is read of a report.
#[derive(Debug, Deserialize)]
pub(super) struct Found {
    pub(super) pause_ns: u64,
    pub(super) known: Sum,
    pub(super) leaked: Sum,
    pub(super) caveats: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Sum {
    pub(super) count: u64,
    pub(super) bytes: u64,
}

/// Runs it with these arguments.
pub(super) fn look(bench: &Bench, arguments: &[String]) -> Result<Look> {
    let report = bench.folder.join("leaks.json");
    let mut command = bound(&bench.heapbpf);
    command.env("XDG_CACHE_HOME", bench.folder.join("cache")).args(["leaks", "--quiet", "-o"]).arg(&report);
    command.args(arguments).stderr(Stdio::inherit());
    let began = Instant::now();
    let resident_mib = run(&mut command)?;
    let seconds = began.elapsed().as_secs_f64();
    let file = File::open(&report).with_context(|| format!("`{}` wrote no report", command::line(&command)))?;
    let found = serde_json::from_reader(BufReader::new(file)).context("its report cannot be read")?;
    fs::remove_file(&report)?;
    Ok(Look { seconds, resident_mib, found })
}

/// Its largest resident size in MiB.
fn run(command: &mut Command) -> Result<f64> {
    let mut child = command.spawn().with_context(|| format!("could not start `{}`", command::line(command)))?;
    let status = format!("/proc/{}/status", child.id());
    let mut resident_kib = 0.0;
    let ended = loop {
        if let Some(ended) = child.try_wait()? {
            break ended;
        }
        // It can end before it is looked at.
        let now = fs::read_to_string(&status).ok().and_then(|status| highest_kib(&status));
        resident_kib = now.unwrap_or(resident_kib);
        std::thread::sleep(LOOK_PERIOD);
    };
    if !ended.code().is_some_and(|code| LOOKED.contains(&code)) {
        bail!("`{}` failed: {ended}", command::line(command));
    }
    Ok(resident_kib / 1024.0)
}

impl Found {
    pub(super) fn pause(&self) -> Duration {
        Duration::from_nanos(self.pause_ns)
    }

    /// Fails unless it has found what was leaked, and nothing else: figures of something that does not work are none.
    pub(super) fn check(&self, truth: &Truth) -> Result<()> {
        let (leaked, known) = (self.leaked.bytes, self.known.bytes);
        let missed = truth.leaked_bytes.saturating_sub(leaked);
        #[expect(clippy::cast_precision_loss, reason = "a part of few bytes")]
        let missed_part = missed as f64 / truth.leaked_bytes as f64;
        ensure!(missed_part <= MISSED_PART_MAX, "{leaked} bytes are told as leaked, of {}", truth.leaked_bytes);
        // A walked block counts with the bytes that may be used, at most 16 more than were asked for.
        let most = truth.leaked_bytes + 16 * truth.leaked_count;
        ensure!(leaked <= most, "{leaked} bytes are told as leaked, and {most} is the most");
        ensure!(self.known.count >= truth.held_count && known >= truth.held_bytes, "{known} bytes are known");
        Ok(())
    }
}
