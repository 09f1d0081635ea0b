//! Programs that follow the protocol of `tests/targets/attacked.h`.

use std::fmt;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Timeout of an answer: a round of work takes milliseconds.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);

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
pub(super) struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

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
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("`{}`", crate::command::line(command)))?;
        let stdout = BufReader::new(child.stdout.take().context("stdout is piped")?);
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let stdin = child.stdin.take();
        let mut worker = Self { child, stdin, lines };
        worker.expect("ready")?;
        Ok(worker)
    }

    /// Waits for a line that starts so.
    fn expect(&mut self, start: &str) -> Result<String> {
        let deadline = Instant::now() + ANSWERS_WITHIN;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with(start) => return Ok(line),
                Ok(line) if line.starts_with("skipped: ") || line.starts_with("failed: ") => bail!("{line}"),
                Ok(_) => {}
                Err(mpsc::RecvTimeoutError::Timeout) => bail!("it does not answer `{start}`"),
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Died(self.child.wait()?.to_string()).into());
                }
            }
        }
    }

    fn send(&mut self, line: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("it was asked to end")?;
        writeln!(stdin, "{line}").context("it does not read")
    }

    /// Waits until it, or the heapbpf that has started it, has exited with one of these codes.
    fn expect_exit(&mut self, codes: &[i32]) -> Result<()> {
        let deadline = Instant::now() + ANSWERS_WITHIN;
        loop {
            if let Some(status) = self.child.try_wait()? {
                if status.code().is_some_and(|code| codes.contains(&code)) {
                    return Ok(());
                }
                return Err(Died(status.to_string()).into());
            }
            if Instant::now() > deadline {
                bail!("it does not exit");
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends it when heapbpf has started it.
    pub(super) fn finish_launched(&mut self) -> Result<String> {
        self.send("stop")?;
        let result = result(&self.expect("result ")?)?;
        self.expect_exit(&[0, 3])?;
        Ok(result)
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
        vec![self.child.id()]
    }

    fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let last = self.lines.try_iter().last().unwrap_or_default();
            return Err(Died(format!("{status}, after `{last}`")).into());
        }
        Ok(())
    }

    fn pause(&mut self) -> Result<()> {
        self.send("idle")?;
        self.expect("idle").map(drop)
    }

    fn resume(&mut self) -> Result<()> {
        self.send("go")
    }

    fn finish(&mut self) -> Result<String> {
        self.send("stop")?;
        let result = result(&self.expect("result ")?)?;
        self.expect_exit(&[0])?;
        Ok(result)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
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
