//! tests/targets/turnover.c: a program that holds blocks and turns them over.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::bench::process::{Guarded, bound};
use crate::command;

/// How long it may say nothing: it fills a million blocks first, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The running program.
pub(super) struct Turnover {
    guarded: Guarded,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Turnover {
    /// Compiles and starts it. It waits to [`begin`](Self::begin).
    pub(super) fn start(root: &Path, folder: &Path, blocks: u32, rate: u32) -> Result<Self> {
        let program = folder.join("turnover");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-builtin", "-o"]);
        command::run(gcc.arg(&program).arg(root.join("tests/targets/turnover.c")))?;
        let mut command = bound(program);
        command.args([blocks.to_string(), rate.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut guarded = Guarded::spawn(&mut command)?;
        let input = guarded.child().stdin.take();
        let output = BufReader::new(guarded.child().stdout.take().context("it was asked for above")?);
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let turnover = Self { guarded, input, lines };
        let line = turnover.line()?;
        ensure!(line == "ready", "the program begins with `{line}`");
        Ok(turnover)
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.guarded.pid()
    }

    /// Has it fill its blocks and turn them over for a second.
    pub(super) fn begin(&mut self) -> Result<()> {
        let input = self.input.as_mut().context("it has been ended")?;
        writeln!(input).context("the program does not listen")?;
        self.next_second()
    }

    /// Waits until it says that it has turned blocks over for another second. On a machine that is too busy for its rate, these
    /// seconds are longer.
    pub(super) fn next_second(&mut self) -> Result<()> {
        self.line().map(drop)
    }

    /// Ends it. Returns how many blocks it has turned over since it was full, and how many bytes it held in the end.
    pub(super) fn end(mut self) -> Result<(u64, u64)> {
        self.input = None;
        let status = self.guarded.child().wait()?;
        ensure!(status.success(), "the program ended with {status}");
        let last = self.lines.iter().last().context("the program said nothing in the end")?;
        let mut numbers = last.split(' ').map(str::parse);
        let (Some(Ok(turned)), Some(Ok(held_bytes))) = (numbers.next(), numbers.next()) else {
            anyhow::bail!("the program ends with `{last}`");
        };
        Ok((turned, held_bytes))
    }

    fn line(&self) -> Result<String> {
        self.lines.recv_timeout(PATIENCE).context("the program says nothing more")
    }
}
