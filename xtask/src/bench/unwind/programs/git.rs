//! git log over a repository made for it.

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context as _, Result};
use std::process::Stdio;

use super::super::program::{Program, Running};
use crate::bench::process::{Guarded, bound};
use crate::command;

pub(in super::super) const PROGRAM: Program =
    Program { name: "git", load: "git log -p --stat -M -C", interval_bytes: 64, seconds: 4, start };

const COMMITS: usize = 30_000;
const FILES: usize = 300;
const LINES: usize = 120;

fn start(folder: &Path) -> Result<Running> {
    let git = || {
        let mut git = bound("git");
        git.arg("-C").arg(folder).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
        git
    };
    command::output(git().args(["init", "-q", "-b", "main"]))?;
    let mut import = Guarded::spawn(git().args(["fast-import", "--quiet"]).stdin(Stdio::piped()))?;
    let input = import.child().stdin.take().context("it was asked for above")?;
    let mut input = BufWriter::new(input);
    history(&mut input)?;
    drop(input.into_inner().map_err(std::io::IntoInnerError::into_error)?);
    let status = import.child().wait()?;
    anyhow::ensure!(status.success(), "git fast-import failed: {status}");
    let mut log = git();
    log.args(["--no-pager", "log", "-p", "--stat", "-M", "-C"]);
    Ok(Running::alone(Guarded::spawn(&mut log)?))
}

/// Commits that each change a few lines of a file, as `git fast-import` reads them.
fn history(out: &mut impl Write) -> Result<()> {
    let mut random = 1_u64;
    let mut draw = |below: usize| {
        // Knuth's MMIX generator: any will do, so long as each run makes the same repository.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(random >> 33).unwrap_or(0) % below
    };
    let mut files: Vec<Vec<u32>> = vec![vec![0; LINES]; FILES];
    for commit in 0..COMMITS {
        let file = if commit < FILES { commit } else { draw(FILES) };
        for _ in 0..4 {
            files[file][draw(LINES)] = u32::try_from(commit)?;
        }
        let lines = files[file].iter().enumerate();
        let text: String = lines.map(|(line, by)| format!("line {line} as commit {by} wrote it\n")).collect();
        let message = format!("change file {file}\n");
        writeln!(out, "commit refs/heads/main\ncommitter A <a@b> {} +0000", 1_700_000_000 + commit)?;
        write!(out, "data {}\n{message}", message.len())?;
        write!(out, "M 100644 inline d{}/file{file}.txt\ndata {}\n{text}\n", file % 20, text.len())?;
    }
    writeln!(out, "done")?;
    Ok(())
}
