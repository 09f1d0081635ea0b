//! What a session knows at an instant, without names: a plain value that goes to whoever names and writes it, so that the
//! session goes on meanwhile. Owns no clock, file or map of its own; the modules in it are the session's, shared.

use std::sync::Arc;
use std::time::Duration;

use crate::ids::{HeapId, Pid};
use crate::leak::growth::Growths;
use crate::ledger::snapshot::TargetSnapshot;
use crate::ledger::totals::Amounts;
use crate::object::module::Modules;
use crate::report::guardrails::Overhead;
use crate::report::profile::{Beginning, Health, HookStatus, Others, Window};
use crate::target::address_space::AddressSpace;
use crate::units::MonotonicNanos;

/// A session at an instant.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The interval asked for, in bytes.
    pub interval_bytes: u64,
    /// When recording began, in nanoseconds since the Unix epoch.
    pub started_unix_ns: u64,
    /// The value of `CLOCK_MONOTONIC` that belongs to `started_unix_ns`.
    pub started_monotonic_ns: u64,
    /// When this was taken, in nanoseconds since the Unix epoch.
    pub ended_unix_ns: u64,
    /// The part of the recording that the books are about; `None` where they are about all of it.
    pub window: Option<Window>,
    /// How old live blocks are that are counted apart.
    pub older_than: Option<Duration>,
    /// The processes, those that began first before the others.
    pub targets: Vec<TargetState>,
    /// Processes that were meant and are not among them.
    pub others: Others,
    /// What the targets execute; address spaces refer to it.
    pub modules: Modules,
    /// What was lost and what it cost.
    pub health: Health,
}

/// One process at an instant.
#[derive(Clone, Debug)]
pub struct TargetState {
    /// Who it is.
    pub facts: TargetFacts,
    /// Where its code lies.
    pub space: Arc<AddressSpace>,
    /// Its heaps; every heap of its books is among them.
    pub heaps: Vec<HeapFacts>,
    /// Its books.
    pub books: Arc<TargetSnapshot>,
    /// How its callsites have grown.
    pub growths: Growths,
    /// What of their blocks is older than was asked, by the callsites' indices; `None` where nothing was.
    pub older: Option<Vec<Amounts>>,
}

/// What is known of a process beside its books.
#[derive(Clone, Debug)]
pub struct TargetFacts {
    /// The process.
    pub pid: Pid,
    /// `argv[0]`.
    pub command: String,
    /// The kernel's name for it (`/proc/PID/comm`), at most 15 bytes.
    pub comm: String,
    /// Since when it was watched.
    pub beginning: Beginning,
    /// It ended while it was profiled.
    pub exited: bool,
    /// It became another program by exec, which is a target of its own.
    pub replaced: bool,
    /// Its exit status, where the kernel tells.
    pub exit_code: Option<i32>,
    /// When its probes were taken away because they cost too much.
    pub detached: Option<MonotonicNanos>,
    /// What its probes cost it, where that is known.
    pub overhead: Option<Overhead>,
}

/// What is known of a heap beside its totals.
#[derive(Clone, Debug)]
pub struct HeapFacts {
    /// Its number in the books.
    pub id: HeapId,
    /// Its name (`libc`, `jemalloc`, …).
    pub name: String,
    /// Its interval, in bytes: its own, or the recording's.
    pub interval_bytes: u64,
    /// Functions that were to be watched.
    pub hooks: Vec<HookStatus>,
}

const _: fn() = || {
    fn is_send<T: Send + Sync + 'static>() {}
    is_send::<Snapshot>();
};
