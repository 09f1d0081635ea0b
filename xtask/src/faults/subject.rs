//! Programs that follow the protocol of `tests/targets/attacked.h`.

use std::fmt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::process::{Output, Program};

/// Timeout of the end: a round of work takes milliseconds.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// Time in which a worker has to write an expected line, whatever others it writes.
const ANSWERS_WITHIN: Duration = Duration::from_secs(300);

/// A running program. Killed when dropped.
pub(super) trait Subject {
    /// Processes to attach to.
    fn pids(&self) -> Vec<u32>;
    /// Fails when it has exited or does wrong work.
    fn check(&mut self) -> Result<()>;
    /// Waits until it does nothing.
    fn pause(&mut self) -> Result<()>;
    fn resume(&mut self) -> Result<()>;
    /// Ends it, and returns its result.
    fn finish(&mut self) -> Result<String>;
}

/// A program that does rounds of work and reads commands.
pub(super) struct Worker(Program);

/// Reports that a program has exited, and how.
#[derive(Debug)]
pub(super) struct Died(String);

impl fmt::Display for Died {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "it died: {}", self.0)
    }
}

impl std::error::Error for Died {}

impl Worker {
    /// Starts it, and waits until it works.
    pub(super) fn spawn(command: &mut Command) -> Result<Self> {
        let mut worker = Self(Program::start(command.stderr(Stdio::null()), Output::Standard)?);
        worker.expect("ready")?;
        Ok(worker)
    }

    /// Waits for a line that starts so.
    fn expect(&mut self, start: &str) -> Result<String> {
        let begun = Instant::now();
        loop {
            ensure!(begun.elapsed() < ANSWERS_WITHIN, "no line that starts with `{start}` within {ANSWERS_WITHIN:?}");
            match self.0.line() {
                Ok(line) if line.starts_with(start) => return Ok(line),
                Ok(line) if line.starts_with("skipped: ") || line.starts_with("failed: ") => bail!("{line}"),
                Ok(_) => {}
                Err(error) => {
                    let status = self.0.wait_for(ENDS_WITHIN)?;
                    return Err(status.map_or(error, |status| Died(status.to_string()).into()));
                }
            }
        }
    }

    /// Ends it, and fails unless it, or the heapbpf that has started it, exits with one of these codes.
    fn end(&mut self, codes: &[i32]) -> Result<String> {
        self.0.send("stop")?;
        let result = result(&self.expect("result ")?)?;
        match self.0.wait_for(ENDS_WITHIN)? {
            Some(status) if status.code().is_some_and(|code| codes.contains(&code)) => Ok(result),
            Some(status) => Err(Died(status.to_string()).into()),
            None => bail!("it does not exit"),
        }
    }

    /// Ends it when heapbpf has started it.
    pub(super) fn finish_launched(&mut self) -> Result<String> {
        self.end(&[0, 3])
    }
}

/// Checks the last line, and returns the result.
fn result(line: &str) -> Result<String> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let ["result", result, "wrong", wrong, "rounds", rounds] = words.as_slice() else { bail!("it printed `{line}`") };
    if *wrong != "0" {
        bail!("{wrong} of {rounds} rounds had another result");
    }
    Ok((*result).to_owned())
}

impl Subject for Worker {
    fn pids(&self) -> Vec<u32> {
        vec![self.0.pid()]
    }

    fn check(&mut self) -> Result<()> {
        if let Some(status) = self.0.wait_for(Duration::ZERO)? {
            let last = self.0.lines_so_far().pop().unwrap_or_default();
            return Err(Died(format!("{status}, after `{last}`")).into());
        }
        Ok(())
    }

    fn pause(&mut self) -> Result<()> {
        self.0.send("idle")?;
        self.expect("idle").map(drop)
    }

    fn resume(&mut self) -> Result<()> {
        self.0.send("go")
    }

    fn finish(&mut self) -> Result<String> {
        self.end(&[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_with_wrong_rounds_are_faults() {
        assert_eq!(result("result 0af wrong 0 rounds 7").ok().as_deref(), Some("0af"));
        assert!(result("result 0af wrong 1 rounds 7").is_err());
        assert!(result("").is_err());
    }
}
