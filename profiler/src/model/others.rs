//! Processes that match a selection and have no profile of their own.

use serde::{Deserialize, Serialize};

use crate::ids::Pid;
use crate::ledger::totals::Totals;

/// A process that was meant and is not in the profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// The process.
    pub pid: Pid,
    /// `argv[0]`.
    pub command: String,
    /// Why.
    pub reason: String,
}

/// Processes that were meant and are not in the profile one by one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Others {
    /// Those that could not be profiled: the first ones. How many there were is in `skipped_count`.
    pub skipped: Vec<Skipped>,
    /// How many could not be profiled.
    pub skipped_count: u64,
    /// How many ended before they could be watched.
    pub short_lived_count: u64,
    /// How many began as copies of a process whose blocks the live set had no room to copy.
    pub not_inherited_count: u64,
    /// How many ended processes are kept as sums alone.
    pub folded_count: u64,
    /// What those did together.
    pub folded_totals: Totals,
    /// The largest interval of their heaps, in bytes; `None` where they had none.
    pub folded_interval_bytes: Option<u64>,
}
