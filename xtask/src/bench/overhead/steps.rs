//! tests/targets/steps.c: a program that makes and frees blocks when it is told.

use anyhow::{Result, ensure};

use super::program::{Output, Program, bound};
use super::{Bench, churn};

/// The running target.
pub(super) struct Steps(Program);

impl Steps {
    /// Compiles and starts it.
    pub(super) fn start(bench: &Bench) -> Result<Self> {
        let program = churn::build(&bench.repository.root, "steps", &bench.folder)?;
        let program = Program::start(&mut bound(program), Output::Standard)?;
        program.line_after("ready")?;
        Ok(Self(program))
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Has it make so many blocks of 64 bytes, and keep them.
    pub(super) fn allocate(&mut self, blocks: u32) -> Result<()> {
        self.step(&format!("alloc {blocks}"))
    }

    /// Has it free all.
    pub(super) fn free(&mut self) -> Result<()> {
        self.step("free")
    }

    fn step(&mut self, line: &str) -> Result<()> {
        self.0.tell(line)?;
        let answer = self.0.line()?;
        ensure!(answer == "done", "the target answers `{answer}` to `{line}`");
        Ok(())
    }
}
