//! Finds harm after a kill: to the target, the system and the file system.

use std::fmt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::agent::{Agent, send};
use super::processes::{another_profiles_all, children, comm, held_threads, is_alive, orphans};
use super::subject::Subject;
use crate::kernel::changed_code_in;
use crate::stubs::slots_to_stubs;

use rustix::process::Signal;

/// Timeout of the exit of all processes of a killed heapbpf.
const GONE_WITHIN: Duration = Duration::from_secs(30);
/// From then until the target is restored.
const SETTLED_WITHIN: Duration = Duration::from_secs(2);
/// Timeout of the removal of foreign probes, while another heapbpf profiles all processes of the machine.
const OTHERS_GONE_WITHIN: Duration = Duration::from_secs(120);
const POLL_PERIOD: Duration = Duration::from_millis(10);

/// A kind of harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Harm {
    /// The target exited, or its verification failed.
    Died,
    /// Threads of the target make no progress.
    Stalled,
    /// The target's code differs from its files.
    Breakpoints,
    /// Slots of the target lead to stubs.
    Slots,
    /// Threads of the target are stopped or traced.
    Held,
    /// A copy of the target remains.
    Copies,
    /// The kernel could not remove a breakpoint.
    KernelLog,
    /// Processes of heapbpf remain.
    Processes,
    /// Files remain.
    Files,
    /// heapbpf did not exit as documented, or wrote no report.
    Ending,
}

impl Harm {
    /// All kinds, in the order of the tables' columns.
    pub(super) const ALL: [Self; 10] = [
        Self::Died,
        Self::Stalled,
        Self::Breakpoints,
        Self::Slots,
        Self::Held,
        Self::Copies,
        Self::KernelLog,
        Self::Processes,
        Self::Files,
        Self::Ending,
    ];
}

impl fmt::Display for Harm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(match self {
            Self::Died => "target died",
            Self::Stalled => "no progress",
            Self::Breakpoints => "breakpoints",
            Self::Slots => "slots",
            Self::Held => "stopped",
            Self::Copies => "copies",
            Self::KernelLog => "kernel log",
            Self::Processes => "processes",
            Self::Files => "files",
            Self::Ending => "ending",
        })
    }
}

/// Harms with their details.
pub(super) type Harms = Vec<(Harm, String)>;

/// Waits until all orphaned processes of heapbpf have exited; kills those that remain.
pub(super) fn await_processes(known: &[u32]) -> Harms {
    let of_heapbpf = || -> Vec<u32> {
        let is_one = |pid: &u32| comm(*pid).is_some_and(|name| name.starts_with("heapbpf"));
        orphans(known).into_iter().filter(is_one).collect()
    };
    let deadline = Instant::now() + GONE_WITHIN;
    loop {
        let left = of_heapbpf();
        if left.is_empty() {
            return Vec::new();
        }
        if Instant::now() > deadline {
            let names: Vec<String> =
                left.iter().map(|&pid| format!("{} {pid}", comm(pid).unwrap_or_default())).collect();
            left.iter().for_each(|&pid| send(pid, Signal::KILL));
            return vec![(Harm::Processes, format!("still running: {}", names.join(", ")))];
        }
        thread::sleep(POLL_PERIOD);
    }
}

/// Examines a target that must be unaffected.
pub(super) fn examine(subject: &mut Subject) -> Harms {
    let mut harms = Vec::new();
    let copies = children(subject.pid());
    let started = Instant::now();
    loop {
        if let Some(status) = subject.ended() {
            return vec![(Harm::Died, format!("{status}: {}", subject.errors()))];
        }
        harms.clear();
        let stays = |copy: &&u32| is_alive(**copy) && children(subject.pid()).contains(copy);
        harms.extend(copies.iter().find(stays).map(|copy| (Harm::Copies, format!("process {copy} remains"))));
        let family = std::iter::once(subject.pid()).chain(children(subject.pid()));
        harms.extend(family.flat_map(held_threads).map(|held| (Harm::Held, held)));
        let changed = changed(subject);
        harms.extend(changed.iter().map(|place| (Harm::Breakpoints, place.clone())));
        // An exit of the target is found by the next poll.
        let slots = slots_to_stubs(subject.pid()).unwrap_or_default();
        harms.extend(slots.into_iter().map(|slot| (Harm::Slots, slot)));
        if harms.is_empty() {
            break;
        }
        let others = !changed.is_empty() && another_profiles_all();
        if started.elapsed() > if others { OTHERS_GONE_WITHIN } else { SETTLED_WITHIN } {
            break;
        }
        thread::sleep(POLL_PERIOD);
    }
    if let Err(error) = subject.make_progress() {
        harms.push((if subject.ended().is_some() { Harm::Died } else { Harm::Stalled }, error));
    }
    // One entry of each kind.
    harms.dedup_by_key(|(harm, _)| *harm);
    harms
}

/// Code in the target's private libraries that differs from their files. The plugin is excluded: it is loaded and unloaded.
fn changed(subject: &Subject) -> Vec<String> {
    let is_private = |path: &Path| path.starts_with(subject.directory()) && !path.ends_with("plugin.so");
    // An exit of the target is found by the next poll.
    changed_code_in(subject.pid(), |path| is_private(Path::new(path))).unwrap_or_default()
}

/// Remaining files of heapbpf, and an incomplete output.
pub(super) fn files(agent: &Agent) -> Harms {
    let mut harms: Harms =
        agent.other_files().into_iter().map(|path| (Harm::Files, path.display().to_string())).collect();
    if agent.has_output() && !agent.keeps_partial_output() {
        harms.extend(agent.output_fault().map(|fault| (Harm::Files, fault)));
    }
    harms
}
