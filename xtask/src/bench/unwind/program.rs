//! What a program to be profiled is made of. The programs themselves are `programs`'.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::bench::process::Guarded;

/// How long a program may take until it works.
pub(super) const READY_WITHIN: Duration = Duration::from_secs(60);

/// A real program under load.
pub(super) struct Program {
    /// Its name.
    pub(super) name: &'static str,
    /// What it is given to do.
    pub(super) load: &'static str,
    /// Mean bytes between samples: such that there are enough.
    pub(super) interval_bytes: u32,
    /// How long it is profiled, in seconds.
    pub(super) seconds: u32,
    /// Starts it and its load in an empty folder. When it returns the program does its work.
    pub(super) start: fn(&Path) -> Result<Running>,
}

/// A program at work. Ends when dropped.
pub(super) struct Running {
    /// The processes to be profiled.
    pub(super) pids: Vec<u32>,
    /// All that was started for it, by the order in which it is to end.
    #[expect(dead_code, reason = "held until dropped")]
    pub(super) guards: Vec<Guarded>,
}

impl Running {
    /// A single process that needs nobody else.
    pub(super) fn alone(guarded: Guarded) -> Self {
        Self { pids: vec![guarded.pid()], guards: vec![guarded] }
    }
}
