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

    /// Has it fill its blocks and turn them over for a second. Returns how many it has turned over by then.
    pub(super) fn begin(&mut self) -> Result<u64> {
        let input = self.input.as_mut().context("it has been ended")?;
        writeln!(input).context("the program does not listen")?;
        self.next_second()
    }

    /// Waits until it says that it has turned blocks over for another second. On a machine that is too busy for its rate, these
    /// seconds are longer. Returns how many it has turned over since it was full.
    pub(super) fn next_second(&mut self) -> Result<u64> {
        Ok(numbers(&self.line()?)?.0)
    }

    /// Ends it. Returns how many bytes it held in the end.
    pub(super) fn end(mut self) -> Result<u64> {
        self.input = None;
        let status = self.guarded.child().wait()?;
        ensure!(status.success(), "the program ended with {status}");
        let last = self.lines.iter().last().context("the program said nothing in the end")?;
        Ok(numbers(&last)?.1)
    }

    fn line(&self) -> Result<String> {
        self.lines.recv_timeout(PATIENCE).context("the program says nothing more")
    }
}

/// What a line says: blocks turned over so far, and bytes held.
fn numbers(line: &str) -> Result<(u64, u64)> {
    let numbers = line.split_once(' ').and_then(|(turned, held)| Some((turned.parse().ok()?, held.parse().ok()?)));
    numbers.with_context(|| format!("the program says `{line}`"))
}
