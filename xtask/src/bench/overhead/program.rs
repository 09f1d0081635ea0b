//! A program that a measurement starts: spoken to by lines, waited for, interrupted, and killed when it goes out of scope
//! or when we end, however we end. Measures nothing.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use rustix::time::{ClockId, clock_gettime};

use crate::command;

/// How long something may take that takes a second on an idle machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// `CLOCK_MONOTONIC` in nanoseconds, as the targets tell it.
pub(super) fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// A command for a program that the kernel kills when we end.
pub(super) fn bound(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Which of a program's outputs is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// Standard output; errors are thrown away.
    Standard,
    /// Standard error; output is thrown away.
    Errors,
}

/// A running program. Killed with its process group when dropped.
pub(super) struct Program {
    child: Child,
    name: String,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Program {
    /// Starts a command made by [`bound`].
    pub(super) fn start(command: &mut Command, output: Output) -> Result<Self> {
        let name = command::line(command);
        command.stdin(Stdio::piped());
        match output {
            Output::Standard => command.stdout(Stdio::piped()).stderr(Stdio::null()),
            Output::Errors => command.stdout(Stdio::null()).stderr(Stdio::piped()),
        };
        let mut child = command.process_group(0).spawn().with_context(|| format!("could not start `{name}`"))?;
        let said: Box<dyn Read + Send> = match output {
            Output::Standard => Box::new(child.stdout.take().context("it was asked for above")?),
            Output::Errors => Box::new(child.stderr.take().context("it was asked for above")?),
        };
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || BufReader::new(said).lines().map_while(Result::ok).try_for_each(|it| sender.send(it)));
        let input = child.stdin.take();
        Ok(Self { child, name, input, lines })
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it says.
    pub(super) fn line(&self) -> Result<String> {
        self.lines.recv_timeout(PATIENCE).with_context(|| format!("`{}` says nothing more", self.name))
    }

    /// The rest of the first line that begins so.
    pub(super) fn line_after(&self, beginning: &str) -> Result<String> {
        let mut said = String::new();
        loop {
            let Ok(line) = self.line() else {
                bail!("`{}` did not say `{beginning}`, but: {}", self.name, said.trim());
            };
            if let Some(rest) = line.strip_prefix(beginning) {
                return Ok(rest.to_owned());
            }
            said.push_str(&line);
            said.push('\n');
        }
    }

    /// What it has said and nobody has read.
    pub(super) fn lines_so_far(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// Has it read a line.
    pub(super) fn tell(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().with_context(|| format!("the input of `{}` is closed", self.name))?;
        writeln!(input, "{line}").with_context(|| format!("`{}` does not listen", self.name))
    }

    /// Ends its input.
    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    /// Interrupts it, as Ctrl-C does.
    pub(super) fn interrupt(&self) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).context("it has a process")?;
        kill_process(pid, Signal::INT).with_context(|| format!("`{}` has ended", self.name))
    }

    /// Waits for its end.
    pub(super) fn wait(&mut self) -> Result<ExitStatus> {
        self.child.wait().with_context(|| format!("cannot wait for `{}`", self.name))
    }

    /// Whether it runs.
    pub(super) fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
            && self.runs()
        {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_spoken_to_by_lines() {
        let mut cat = Program::start(&mut bound("cat"), Output::Standard).expect("cat is everywhere");
        cat.tell("one").expect("it listens");
        cat.tell("two 2").expect("it listens");
        assert_eq!(cat.line_after("two ").expect("it repeats"), "2");
        cat.close_input();
        assert!(cat.wait().expect("it is our child").success());
        assert!(cat.line_after("three").is_err());
    }
}
