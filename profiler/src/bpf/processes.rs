//! Processes as the kernel side watches them: which are targets, and the tracepoints that tell of forks, execs and ends.

use std::time::Duration;

use aya::maps::{HashMap, MapData, MapError};
use aya::programs::RawTracePoint;
use profiler_common::counter::Counter;
use profiler_common::target::FOLLOWS_FORKS;
use profiler_common::unwind::ProcessMappings;
use thiserror::Error;

use super::counters::Counters;
use super::kernel_types::LayoutError;
use super::load::{Kernel, LoadError, loaded};
use super::private_stack;
use crate::ids::Pid;
use crate::linux::bpf::recursion_misses;

const TARGETS: &str = "TARGETS";
pub(super) const PROCESSES: &str = "PROCESSES";

/// Programs, and the tracepoint that they are for. Where there are several, each is a copy of the others, with a recursion
/// guard of its own: see `profiler-ebpf/src/process.rs`.
const FORK: (&[&str], &str) = (&["process_fork"], "sched_wakeup_new");
const EXEC: (&[&str], &str) =
    (&["process_exec_0", "process_exec_1", "process_exec_2", "process_exec_3"], "sched_process_exec");
const EXIT: (&[&str], &str) = (&["process_exit_0", "process_exit_1"], "sched_process_exit");

/// How long a preempted program may take to count an exec.
const EXEC_PATIENCE: Duration = Duration::from_millis(5);

/// Why processes are not watched, or not all that happens to them.
#[derive(Debug, Error)]
pub enum WatchError {
    /// Execs and ends are seen, forks are not.
    #[error("forks cannot be followed: {0}")]
    NoForks(#[from] LayoutError),
    /// A program cannot be loaded.
    #[error("processes cannot be watched: {0}")]
    Load(#[from] LoadError),
    /// A program cannot be attached.
    #[error(
        "processes cannot be watched: tracepoint `{tracepoint}`: {reason}; run `uname -r` and see docs/kernel-support.md"
    )]
    Attach {
        /// The tracepoint.
        tracepoint: &'static str,
        /// Why.
        reason: String,
    },
}

impl Kernel {
    /// Watches all processes of the machine from now on: those that are targets tell when they fork or execute, and calls
    /// that a thread's end cuts short are forgotten. To be called once, before targets are set and probes attached.
    ///
    /// # Errors
    ///
    /// See [`WatchError`]. Everything else works nevertheless.
    pub fn watch_processes(&mut self) -> Result<(), WatchError> {
        let layout = self.task_layout();
        self.watch(EXIT)?;
        // Copies know an exec that another has handled by the process's memory.
        let (programs, tracepoint) = EXEC;
        self.watch(if layout.is_ok() { EXEC } else { (&programs[..1], tracepoint) })?;
        // Without the layout the fork program would read at wrong places.
        layout?;
        self.watch(FORK)
    }

    fn watch(&mut self, (names, tracepoint): (&'static [&'static str], &'static str)) -> Result<(), WatchError> {
        for name in names {
            let program: &mut RawTracePoint = self.program(name)?;
            program.load().map_err(|error| LoadError::program(name, &error.to_string()))?;
            private_stack::refuse(name, loaded(name, program.fd())?)?;
            let attached = program.attach(tracepoint);
            attached.map_err(|error| WatchError::Attach { tracepoint, reason: error.to_string() })?;
        }
        Ok(())
    }

    /// Forks that the program has not seen, and execs that no copy of theirs has. A missed exit loses nothing of a profile:
    /// the agent removes the targets that it knows, and what is left of a thread that ended inside a hooked function is
    /// found by the next call of a thread with that number.
    pub(super) fn tracepoints_missed(&self) -> u64 {
        let missed = self.tracepoints_missed_now();
        if missed == 0 {
            return 0;
        }
        // An exec whose program is preempted counts as missed until the program goes on.
        std::thread::sleep(EXEC_PATIENCE);
        missed.min(self.tracepoints_missed_now())
    }

    fn tracepoints_missed_now(&self) -> u64 {
        let skipped = |(names, _): (&'static [&'static str], _)| {
            self.own_program(names[0]).and_then(|program| recursion_misses(program).ok()).unwrap_or(0)
        };
        let counted = |counter| Counters::read_one(self, counter).unwrap_or(0);
        // In this order: an exec in between is seen, and not yet counted as one that was to be seen.
        let execs = skipped(EXEC) + counted(Counter::ExecRuns);
        skipped(FORK) + execs.saturating_sub(counted(Counter::ExecsSeen))
    }

    /// Makes a process a target: its execs are told and, where wished, its forks, which become targets in the same way.
    ///
    /// # Errors
    ///
    /// When the map cannot be written, or is full.
    pub fn set_target(&mut self, pid: Pid, follow_forks: bool) -> Result<(), LoadError> {
        let flags = if follow_forks { FOLLOWS_FORKS } else { 0 };
        self.targets()?.insert(pid.0, flags, 0).map_err(failed)
    }

    /// Lets a process be: none of its calls is drawn from now on, and its stacks would end at once. One that is no target
    /// stays none.
    ///
    /// # Errors
    ///
    /// When a map cannot be written.
    pub fn forget_target(&mut self, pid: Pid) -> Result<(), LoadError> {
        let forgotten = self.targets()?.remove(&pid.0);
        // A fork's mappings are entered by the kernel side, so the store of tables may not know of them.
        let processes = HashMap::<_, u32, ProcessMappings>::try_from(self.map_mut(PROCESSES)?);
        let unmapped = processes.and_then(|mut processes| processes.remove(&pid.0));
        for (name, removed) in [(TARGETS, forgotten), (PROCESSES, unmapped)] {
            if let Err(source) = removed
                && !is_missing(&source)
            {
                return Err(LoadError::Map { name, source });
            }
        }
        Ok(())
    }

    fn targets(&mut self) -> Result<HashMap<&mut MapData, u32, u32>, LoadError> {
        HashMap::try_from(self.map_mut(TARGETS)?).map_err(failed)
    }
}

fn failed(source: MapError) -> LoadError {
    LoadError::Map { name: TARGETS, source }
}

/// Whether a map says that it has no such key.
pub(super) fn is_missing(error: &MapError) -> bool {
    match error {
        MapError::KeyNotFound => true,
        MapError::SyscallError(error) => error.io_error.raw_os_error() == Some(libc::ENOENT),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
