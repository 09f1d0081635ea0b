//! tests/targets/hoard.c: a program that holds a heap, has leaked a known part, and serves requests.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::bench::process::{Guarded, bound};
use crate::command;

/// How long it may say nothing: it fills a gibibyte first, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// What it is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heap {
    /// Linked structures of so many bytes together.
    Structures(u64),
    /// So many blocks of 48 to 64 bytes.
    Blocks(u64),
}

/// What it says that it has leaked and holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Truth {
    pub(super) held_bytes: u64,
    pub(super) held_count: u64,
    pub(super) leaked_bytes: u64,
    pub(super) leaked_count: u64,
}

/// The running program.
pub(super) struct Hoard {
    guarded: Guarded,
    input: ChildStdin,
    lines: Receiver<String>,
    /// What it holds.
    pub(super) truth: Truth,
}

/// Compiles it.
pub(super) fn build(root: &Path, folder: &Path) -> Result<PathBuf> {
    let program = folder.join("hoard");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-builtin", "-pthread", "-o"]);
    command::run(gcc.arg(&program).arg(root.join("tests/targets/hoard.c")))?;
    Ok(program)
}

/// What follows the program's name.
pub(super) fn arguments(heap: Heap, threads: u32) -> [String; 3] {
    let (kind, size) = match heap {
        Heap::Structures(bytes) => ("structures", bytes),
        Heap::Blocks(count) => ("blocks", count),
    };
    [kind.to_owned(), size.to_string(), threads.to_string()]
}

impl Hoard {
    /// Starts it and waits until it serves.
    pub(super) fn start(program: &Path, heap: Heap, threads: u32) -> Result<Self> {
        let mut command = bound(program);
        command.args(arguments(heap, threads)).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut guarded = Guarded::spawn(&mut command)?;
        let input = guarded.child().stdin.take().context("it was asked for above")?;
        let output = BufReader::new(guarded.child().stdout.take().context("it was asked for above")?);
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let line = lines.recv_timeout(PATIENCE).context("the program says nothing")?;
        let truth = Truth::parse(&line).with_context(|| format!("the program begins with `{line}`"))?;
        Ok(Self { guarded, input, lines, truth })
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.guarded.pid()
    }

    /// How late the latest answer was since this was asked last, from when the request was due.
    pub(super) fn latest(&mut self) -> Result<Duration> {
        writeln!(self.input).context("the program does not listen")?;
        let line = self.lines.recv_timeout(PATIENCE).context("the program says nothing more")?;
        let (late_ns, served) = line.split_once(' ').with_context(|| format!("the program says `{line}`"))?;
        ensure!(served != "0", "no request was served");
        Ok(Duration::from_nanos(late_ns.parse()?))
    }
}

impl Truth {
    fn parse(line: &str) -> Option<Self> {
        let mut numbers = line.strip_prefix("ready ")?.split(' ').map_while(|number| number.parse().ok());
        let mut next = || numbers.next();
        Some(Self { held_bytes: next()?, held_count: next()?, leaked_bytes: next()?, leaked_count: next()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_with_what_it_holds() {
        let truth = Truth { held_bytes: 1, held_count: 2, leaked_bytes: 3, leaked_count: 4 };
        assert_eq!(Truth::parse("ready 1 2 3 4"), Some(truth));
        assert_eq!(Truth::parse("ready 1 2 3"), None);
        assert_eq!(arguments(Heap::Blocks(7), 2), ["blocks", "7", "2"]);
    }
}
