//! Targets in the kernel side's maps, and the tracepoints for forks, execs and exits.

use std::time::Duration;

use aya::maps::{HashMap, MapData, MapError};
use aya::programs::{ProgramError, RawTracePoint};
use heapbpf_base::ids::Pid;
use heapbpf_linux::bpf::{LOADS_MAX, is_interrupted, recursion_misses};
use profiler_common::counter::Counter;
use profiler_common::target::{REPORTS_FREES, SAMPLED_CALLS, SHARES_PROBES, TRAPPED_CALLS};
use profiler_common::unwind::ProcessMappings;
use thiserror::Error;
use tracing::debug;

use super::counters::Counters;
use super::kernel_types::LayoutError;
use super::load::{Kernel, LoadError, loaded};
use super::program::refuse_private_stack;

const TARGETS: &str = "TARGETS";
const STUB_CALLS: &str = "STUB_CALLS";
pub(super) const PROCESSES: &str = "PROCESSES";
/// Names of programs, and their tracepoint. Several programs are copies with a recursion guard each: see
/// `profiler-ebpf/src/process.rs`.
const FORK: (&[&str], &str) = (&["process_fork"], "sched_wakeup_new");
const EXEC: (&[&str], &str) =
    (&["process_exec_0", "process_exec_1", "process_exec_2", "process_exec_3"], "sched_process_exec");
const EXIT: (&[&str], &str) = (&["process_exit_0", "process_exit_1"], "sched_process_exit");
const MAPPED: (&[&str], &str) = (&["area_mapped_0", "area_mapped_1"], "vm_unmapped_area");
/// The program for page faults, at the tracepoints for those of user space and of the kernel. It never meets itself.
const FAULT: (&str, [&str; 2]) = ("page_fault", ["page_fault_user", "page_fault_kernel"]);
/// Time that a preempted program gets to count an exec.
const EXEC_PATIENCE: Duration = Duration::from_millis(5);

/// Allocating calls of a process with stubs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StubCalls {
    /// Number of calls that met a probe in the function.
    pub trapped: u64,
    /// Number of sampled calls that met the probe in a stub.
    pub sampled: u64,
}

/// Kind of events of processes that the kernel reports by tracepoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEvents {
    Exits,
    Execs,
    Forks,
}

impl std::fmt::Display for ProcessEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Self::Exits => "monitor exits",
            Self::Execs => "monitor execs",
            Self::Forks => "follow forks",
        })
    }
}

/// Failure of a tracepoint. `events` is the first kind that is not monitored; those before it in [`ProcessEvents`] are monitored.
#[derive(Debug, Error)]
#[error("cannot {events}: {reason}")]
pub struct TracepointError {
    pub events: ProcessEvents,
    pub reason: TracepointReason,
}

#[derive(Debug, Error)]
pub enum TracepointReason {
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("tracepoint `{tracepoint}`: {reason}; run `uname -r` and see docs/kernel-support.md")]
    Attach { tracepoint: &'static str, reason: String },
}

/// Loads a program by aya, which repeats a failed verification once, with a log: a second signal fails it.
fn load(program: &mut RawTracePoint) -> Result<(), ProgramError> {
    let is_interrupted =
        |error: &ProgramError| matches!(error, ProgramError::LoadError { io_error, .. } if is_interrupted(io_error));
    let mut loads = std::iter::repeat_with(|| program.load()).take(LOADS_MAX - 1);
    match loads.find(|load| !load.as_ref().is_err_and(is_interrupted)) {
        Some(load) => load,
        None => program.load(),
    }
}

impl Kernel {
    /// Attaches the tracepoints: from now on targets report forks and execs, and calls interrupted by a thread's exit are
    /// removed. Must be called once, before targets are set and probes attached. If it fails, everything else still works.
    pub fn attach_tracepoints(&mut self) -> Result<(), TracepointError> {
        let failed = |events| move |reason| TracepointError { events, reason };
        let layout = self.task_layout.clone();
        self.attach_copies(EXIT).map_err(failed(ProcessEvents::Exits))?;
        // A copy recognises an exec that another has handled by the process's `mm`.
        let (programs, tracepoint) = EXEC;
        let execs = if layout.is_ok() { EXEC } else { (&programs[..1], tracepoint) };
        self.attach_copies(execs).map_err(failed(ProcessEvents::Execs))?;
        // Without the layout the fork program would read at wrong offsets.
        let forks = layout.map_err(TracepointReason::from).and_then(|_| self.attach_copies(FORK));
        forks.map_err(failed(ProcessEvents::Forks))?;
        // Last: where descriptors are few, the others matter more.
        self.watch_mappings();
        Ok(())
    }

    /// Attaches the tracepoints for page faults. Must precede setting targets. If it fails, pages are not recorded.
    pub fn attach_faults(&mut self) -> Result<(), TracepointReason> {
        let attached = self.attach_both_faults();
        self.records_pages &= attached.is_ok();
        attached
    }

    fn attach_both_faults(&mut self) -> Result<(), TracepointReason> {
        let (name, tracepoints) = FAULT;
        let program: &mut RawTracePoint = self.program(name)?;
        load(program).map_err(|error| LoadError::program(name, &error.to_string()))?;
        refuse_private_stack(name, loaded(name, program.fd())?)?;
        for tracepoint in tracepoints {
            let attached = program.attach(tracepoint);
            attached.map_err(|error| TracepointReason::Attach { tracepoint, reason: error.to_string() })?;
        }
        Ok(())
    }

    /// Has the kernel side see what targets map where they had code. If it cannot, code at a used address is noticed when the
    /// mappings are read the next time.
    fn watch_mappings(&mut self) {
        if self.watches_mappings
            && let Err(error) = self.attach_copies(MAPPED)
        {
            debug!("mappings are not watched: {error}");
            self.watches_mappings = false;
        }
    }

    /// Whether the kernel side sees what targets map where they had code.
    pub(crate) fn watches_mappings(&self) -> bool {
        self.watches_mappings
    }

    /// Upper bound of the mappings that all copies of the program have missed.
    pub(crate) fn mappings_missed(&self) -> u64 {
        if !self.watches_mappings {
            return 0;
        }
        let missed = |name: &&'static str| self.own_program(name).and_then(|program| recursion_misses(program).ok());
        MAPPED.0.iter().filter_map(missed).min().unwrap_or(0)
    }

    fn attach_copies(
        &mut self,
        (names, tracepoint): (&'static [&'static str], &'static str),
    ) -> Result<(), TracepointReason> {
        for name in names {
            let program: &mut RawTracePoint = self.program(name)?;
            load(program).map_err(|error| LoadError::program(name, &error.to_string()))?;
            refuse_private_stack(name, loaded(name, program.fd())?)?;
            let attached = program.attach(tracepoint);
            attached.map_err(|error| TracepointReason::Attach { tracepoint, reason: error.to_string() })?;
        }
        Ok(())
    }

    /// Number of calls, forks and execs that the kernel counts as missed because the program was running on that CPU already; 0
    /// before Linux 5.12, which does not count. The kernel does not count other misses, such as returns of calls nested deeper
    /// than 64.
    pub fn probes_missed(&self) -> u64 {
        let hooks = self.hook_programs().unwrap_or_default();
        let of_hooks = hooks.into_iter().filter_map(|program| recursion_misses(program).ok());
        of_hooks.sum::<u64>() + self.tracepoints_missed()
    }

    /// Number of forks that the program missed, and of execs that all copies missed. A missed exit does not affect the profile:
    /// the agent removes the targets that it knows, and the next call of a thread with the same id removes an unfinished call.
    fn tracepoints_missed(&self) -> u64 {
        let missed = self.tracepoints_missed_now();
        if missed == 0 {
            return 0;
        }
        // An exec counts as missed while its program is preempted.
        std::thread::sleep(EXEC_PATIENCE);
        missed.min(self.tracepoints_missed_now())
    }

    fn tracepoints_missed_now(&self) -> u64 {
        let skipped = |(names, _): (&'static [&'static str], _)| {
            self.own_program(names[0]).and_then(|program| recursion_misses(program).ok()).unwrap_or(0)
        };
        let counted = |counter| Counters::read_one(self, counter).unwrap_or(0);
        // The counters are read in this order: an exec in between is counted as seen, but not as run.
        let execs = skipped(EXEC) + counted(Counter::ExecRuns);
        skipped(FORK) + execs.saturating_sub(counted(Counter::ExecsSeen))
    }

    /// Makes a process a target, which reports its execs. With [`FOLLOWS_FORKS`](profiler_common::target::FOLLOWS_FORKS), it also
    /// reports its forks, which become targets in the same way. Fails if the map is full.
    pub fn set_target(&mut self, pid: Pid, flags: u32) -> Result<(), LoadError> {
        self.targets()?.insert(pid.0, flags, 0).map_err(failed)
    }

    /// Makes the kernel side report frees of blocks that are not in the live set, or ends that. Has no effect on processes that
    /// are not targets.
    pub fn report_frees(&mut self, pid: Pid, is_on: bool) -> Result<(), LoadError> {
        self.change_flags(pid, |flags| if is_on { flags | REPORTS_FREES } else { flags & !REPORTS_FREES })
    }

    fn change_flags(&mut self, pid: Pid, change: impl Fn(u32) -> u32) -> Result<(), LoadError> {
        let mut targets = self.targets()?;
        match targets.get(&pid.0, 0) {
            Ok(flags) => targets.insert(pid.0, change(flags), 0).map_err(failed),
            Err(error) if is_missing(&error) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Makes shared probes record a target from now on, instead of its own ones. Has no effect on processes that are not targets.
    pub fn share_probes(&mut self, pid: Pid) -> Result<(), LoadError> {
        self.change_flags(pid, |flags| flags | SHARES_PROBES)
    }

    /// Removes a target: its calls are not sampled from now on. Succeeds for processes that are not targets.
    pub fn forget_target(&mut self, pid: Pid) -> Result<(), LoadError> {
        let forgotten = self.targets()?.remove(&pid.0);
        self.forget_probes(pid)?;
        // The kernel side adds the mappings of forks, so the table store may not know them.
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

    /// Counts the allocating calls of a process with stubs, from 0.
    pub fn count_stub_calls(&mut self, pid: Pid) -> Result<(), LoadError> {
        self.stub_calls_mut()?.insert(pid.0, [0, 0], 0).map_err(failed)
    }

    /// Allocating calls of a process with stubs; 0 for processes that are not counted.
    pub fn stub_calls(&self, pid: Pid) -> Result<StubCalls, LoadError> {
        let failed = |source| LoadError::Map { name: STUB_CALLS, source };
        let calls: HashMap<_, u32, [u64; 2]> = HashMap::try_from(self.map(STUB_CALLS)?).map_err(failed)?;
        match calls.get(&pid.0, 0) {
            Err(error) if is_missing(&error) => Ok(StubCalls::default()),
            result => {
                let calls = result.map_err(failed)?;
                Ok(StubCalls { trapped: calls[TRAPPED_CALLS], sampled: calls[SAMPLED_CALLS] })
            }
        }
    }

    pub fn forget_stub_calls(&mut self, pid: Pid) -> Result<(), LoadError> {
        let removed = self.stub_calls_mut()?.remove(&pid.0);
        removed.or_else(|error| if is_missing(&error) { Ok(()) } else { Err(failed(error)) })
    }

    fn stub_calls_mut(&mut self) -> Result<HashMap<&mut MapData, u32, [u64; 2]>, LoadError> {
        HashMap::try_from(self.map_mut(STUB_CALLS)?).map_err(|source| LoadError::Map { name: STUB_CALLS, source })
    }

    fn targets(&mut self) -> Result<HashMap<&mut MapData, u32, u32>, LoadError> {
        HashMap::try_from(self.map_mut(TARGETS)?).map_err(failed)
    }
}

fn failed(source: MapError) -> LoadError {
    LoadError::Map { name: TARGETS, source }
}

pub(super) fn is_missing(error: &MapError) -> bool {
    match error {
        MapError::KeyNotFound => true,
        MapError::SyscallError(error) => error.io_error.raw_os_error() == Some(libc::ENOENT),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
