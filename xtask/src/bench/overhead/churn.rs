//! tests/targets/churn.c: a program that calls the allocator without end, and the batches that it times itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::program::{Output, PATIENCE, Program, bound, now_ns};
use crate::bench::spread::Spread;
use crate::command;

/// Fewest batches that make a figure.
const BATCHES_MIN: usize = 5;

/// How often the target's lines are looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// Compiles a target of tests/targets with frame pointers and with calls that stay calls.
pub(super) fn build(root: &Path, name: &str, folder: &Path) -> Result<PathBuf> {
    let program = folder.join(name);
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-builtin", "-pthread", "-o"]);
    gcc.arg(&program).arg(root.join("tests/targets").join(name).with_extension("c"));
    command::run(&mut gcc)?;
    Ok(program)
}

/// One batch of calls, in nanoseconds of `CLOCK_MONOTONIC` and of the thread's CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    began: u64,
    ended: u64,
    cpu: u64,
}

impl Batch {
    fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.split(' ').map_while(|number| number.parse().ok());
        Some(Self { began: numbers.next()?, ended: numbers.next()?, cpu: numbers.next()? })
    }
}

/// The running target.
pub(super) struct Churn {
    program: Program,
    calls_per_batch: u32,
}

impl Churn {
    /// Starts it with the name of its operation.
    pub(super) fn start(program: &Path, operation: &str, threads: u32) -> Result<Self> {
        Self::start_as(bound(program).args([operation, &threads.to_string()]))
    }

    /// Starts a command that runs it.
    pub(super) fn start_as(command: &mut Command) -> Result<Self> {
        let program = Program::start(command, Output::Standard)?;
        let calls_per_batch = program.line_after("ready ")?.parse()?;
        Ok(Self { program, calls_per_batch })
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Batches that begin from now on and end before `window` is over; waits longer where they are too few.
    pub(super) fn batches(&self, window: Duration) -> Result<Vec<Batch>> {
        let _ = self.program.lines_so_far();
        let (began, deadline) = (now_ns(), now_ns() + ns(PATIENCE));
        let end = began + ns(window);
        let mut batches = Vec::new();
        while batches.len() < BATCHES_MIN || now_ns() < end {
            if now_ns() > deadline {
                bail!("fewer than {BATCHES_MIN} batches in {PATIENCE:?}");
            }
            thread::sleep(LOOK_PERIOD);
            for line in self.program.lines_so_far() {
                let batch = Batch::parse(&line).with_context(|| format!("`{line}` is no batch"))?;
                if batch.began >= began {
                    batches.push(batch);
                }
            }
        }
        ensure!(batches.iter().all(|batch| batch.ended >= batch.began), "time went backwards");
        Ok(batches)
    }

    /// The median batch of a window: CPU time of one call in nanoseconds.
    pub(super) fn call_ns(&self, window: Duration) -> Result<f64> {
        let batches = self.batches(window)?;
        Ok(Spread::new(batches.iter().map(|batch| self.per_call(batch.cpu)).collect()).median())
    }

    /// Calls per second, of all threads together.
    pub(super) fn calls_per_second(&self, window: Duration) -> Result<f64> {
        let batches = self.batches(window)?;
        let began = batches.iter().map(|batch| batch.began).min().unwrap_or(0);
        let ended = batches.iter().map(|batch| batch.ended).max().unwrap_or(0);
        let calls = f64::from(self.calls_per_batch) * f64::from(u32::try_from(batches.len())?);
        Ok(calls / Duration::from_nanos(ended - began).as_secs_f64())
    }

    /// The median batch of a window: wall-clock and CPU time in seconds.
    pub(super) fn batch_seconds(&self, window: Duration) -> Result<(f64, f64)> {
        let batches = self.batches(window)?;
        let median = |ns: fn(&Batch) -> u64| {
            Spread::new(batches.iter().map(|batch| Duration::from_nanos(ns(batch)).as_secs_f64()).collect()).median()
        };
        Ok((median(|batch| batch.ended - batch.began), median(|batch| batch.cpu)))
    }

    fn per_call(&self, batch_ns: u64) -> f64 {
        Duration::from_nanos(batch_ns).as_secs_f64() * 1e9 / f64::from(self.calls_per_batch)
    }
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_three_numbers() {
        assert_eq!(Batch::parse("7 9 1"), Some(Batch { began: 7, ended: 9, cpu: 1 }));
        assert_eq!(Batch::parse("7 9"), None);
        assert_eq!(Batch::parse("ready 7 9"), None);
    }
}
