//! Test programs of tests/targets that benches control: they allocate as commanded, and report what they did.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use rustix::time::{ClockId, clock_gettime};

use super::Bench;
use super::figures::Spread;
use crate::command;
use crate::process::{PATIENCE, Program, bound};

const BATCHES_MIN: usize = 5;
const POLL_PERIOD: Duration = Duration::from_millis(20);

pub(super) fn build(bench: &Bench, name: &str) -> Result<PathBuf> {
    let program = bench.folder.join(name);
    let flags = "-O2 -g -fno-omit-frame-pointer -fno-optimize-sibling-calls -fno-builtin -pthread";
    let source = bench.repository.root.join("tests/targets").join(name).with_extension("c");
    command::compile("gcc", flags, &source, &program)?;
    Ok(program)
}

/// Compiles and starts a C target, and waits until it is ready: steps.c, turnover.c or nested.c.
pub(super) fn start(bench: &Bench, name: &str, arguments: &[u32]) -> Result<Program> {
    let mut command = bound(build(bench, name)?);
    Ok(Program::ready(command.args(arguments.iter().map(u32::to_string)))?.0)
}

pub(super) fn numbers<const N: usize>(line: &str) -> Result<[u64; N]> {
    let numbers: Vec<u64> = line.split(' ').map_while(|number| number.parse().ok()).collect();
    let count = numbers.len();
    numbers.try_into().map_err(|_| anyhow::anyhow!("`{line}` has {count} numbers instead of {N}"))
}

/// A program that calls the allocator in a loop, and times each batch of calls: churn.c, documents.py or words.cpp.
pub(super) struct Churn {
    program: Program,
    calls_per_batch: f64,
}

/// Times of a batch in nanoseconds, the first two of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Batch {
    started: u64,
    ended: u64,
    cpu: u64,
}

impl Churn {
    pub(super) fn start(bench: &Bench, operation: &str, threads: u32) -> Result<Self> {
        Self::run(bound(build(bench, "churn")?).args([operation, &threads.to_string()]))
    }

    pub(super) fn run(command: &mut Command) -> Result<Self> {
        let (program, calls_per_batch) = Program::ready(command)?;
        Ok(Self { program, calls_per_batch: calls_per_batch.parse()? })
    }

    pub(super) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Batches that start from now on and end within `window`; waits longer for the minimum number.
    fn batches(&self, window: Duration) -> Result<Vec<Batch>> {
        let _ = self.program.lines_so_far();
        let started = now_ns();
        let mut batches = Vec::new();
        while batches.len() < BATCHES_MIN || now_ns() < started + ns(window) {
            if now_ns() > started + ns(PATIENCE) {
                bail!("fewer than {BATCHES_MIN} batches in {PATIENCE:?}");
            }
            thread::sleep(POLL_PERIOD);
            for line in self.program.lines_so_far() {
                let [batch_started, ended, cpu] = numbers(&line)?;
                if batch_started >= started {
                    batches.push(Batch { started: batch_started, ended, cpu });
                }
            }
        }
        ensure!(batches.iter().all(|batch| batch.ended >= batch.started), "a batch ended before it started");
        Ok(batches)
    }

    /// CPU time of one call in nanoseconds: the median batch of a window.
    pub(super) fn call_ns(&self, window: Duration) -> Result<f64> {
        Ok(self.batch_seconds(window)?.1 * 1e9 / self.calls_per_batch)
    }

    /// Calls per second of all threads together.
    pub(super) fn calls_per_second(&self, window: Duration) -> Result<f64> {
        let batches = self.batches(window)?;
        let started = batches.iter().map(|batch| batch.started).min().unwrap_or(0);
        let ended = batches.iter().map(|batch| batch.ended).max().unwrap_or(0);
        Ok(self.calls_per_batch * batches.len() as f64 / Duration::from_nanos(ended - started).as_secs_f64())
    }

    /// Wall-clock time and CPU time in seconds: the median batch of a window.
    pub(super) fn batch_seconds(&self, window: Duration) -> Result<(f64, f64)> {
        let batches = self.batches(window)?;
        let median = |ns: fn(&Batch) -> u64| {
            Spread::of(batches.iter().map(|batch| Duration::from_nanos(ns(batch)).as_secs_f64())).median()
        };
        Ok((median(|batch| batch.ended - batch.started), median(|batch| batch.cpu)))
    }
}

/// `CLOCK_MONOTONIC`, as the targets print it.
fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Of hoard.c: `structures` of this number of bytes, or this number of `blocks` of 48 to 64 bytes.
pub(super) type Heap = (&'static str, u64);

/// hoard.c: has a heap, of which a known part has leaked, and serves a request each millisecond.
pub(super) struct Hoard {
    program: Program,
    pub(super) truth: Truth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Truth {
    pub(super) held_bytes: u64,
    pub(super) held_count: u64,
    pub(super) leaked_bytes: u64,
    pub(super) leaked_count: u64,
}

impl Hoard {
    pub(super) fn arguments(heap: Heap, threads: u32) -> [String; 3] {
        [heap.0.to_owned(), heap.1.to_string(), threads.to_string()]
    }

    pub(super) fn start(program: &std::path::Path, heap: Heap, threads: u32) -> Result<Self> {
        let (program, truth) = Program::ready(bound(program).args(Self::arguments(heap, threads)))?;
        let [held_bytes, held_count, leaked_bytes, leaked_count] = numbers(&truth)?;
        Ok(Self { program, truth: Truth { held_bytes, held_count, leaked_bytes, leaked_count } })
    }

    pub(super) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// The longest delay of an answer since the previous call, from the time that the request was due.
    pub(super) fn delay_max(&mut self) -> Result<Duration> {
        let [delay_ns, served] = numbers(&self.program.ask("")?)?;
        ensure!(served > 0, "no request was served");
        Ok(Duration::from_nanos(delay_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_an_exact_count_of_numbers() {
        assert_eq!(numbers::<3>("7 9 1").expect("three numbers"), [7, 9, 1]);
        assert!(numbers::<3>("7 9").is_err());
        assert!(numbers::<2>("ready 7").is_err());
        assert_eq!(Hoard::arguments(("blocks", 7), 2), ["blocks", "7", "2"]);
    }
}
