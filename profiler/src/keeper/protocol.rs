//! Messages between agent and keeper. They are the same binary, so there are no versions. Each command has one answer,
//! [`Command::Start`] has two.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::control;
use crate::bpf::load::LinkKind;
use crate::collect::ThreadState;
use crate::ids::Pid;
use crate::linux::proc::maps::{Region, RegionKind};
use crate::process::launch::{ProgramStop, StartUp};

pub const COMMAND: &str = "keeper";

/// Maximum size of a request: a module with about 100,000 hooks.
pub(super) const REQUEST_BYTES_MAX: usize = 4 << 20;

/// Maximum size of a reply: an identifier or an error message.
pub(super) const REPLY_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct LinkId(pub(super) u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Site {
    pub offset: u64,
    /// Value that is passed to the programs (`bpf_get_attach_cookie`). `None` where the kernel has no links with cookies, before
    /// Linux 5.15.
    pub cookie: Option<u64>,
    pub returns: bool,
}

/// Stubs of a process, and the slots that lead to them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Installation {
    pub pid: Pid,
    /// Address of the code; the countdowns and the filter follow it.
    pub address: u64,
    pub code_bytes: u64,
    /// Initial countdowns, and the words that switch stubs on and off. Empty if both are in the process already.
    pub data: Vec<u8>,
    /// Size of the data in whole pages.
    pub data_bytes: u64,
    pub filter_bytes: u64,
    /// List of stubs in the code, by which the code is recognized.
    pub list: Patch,
    pub functions: Vec<FunctionPlace>,
    /// Whether the same code is mapped at `address` already.
    pub is_mapped: bool,
    /// Slot changes; those of freeing functions come first.
    pub slots: Vec<SlotChange>,
}

impl Installation {
    /// Adds changed slots. They replace known ones at the same addresses: a module may have been mapped where another was.
    pub(crate) fn add_slots(&mut self, slots: Vec<SlotChange>) {
        self.slots.retain(|known| slots.iter().all(|slot| slot.address != known.address));
        self.slots.extend(slots);
    }

    pub(crate) fn data_address(&self) -> u64 {
        self.address + self.code_bytes
    }

    pub(crate) fn filter_address(&self) -> u64 {
        self.data_address() + self.data_bytes
    }

    /// Address of the words that switch stubs on and off.
    pub(crate) fn control_address(&self) -> u64 {
        self.filter_address() - control::BYTES as u64
    }
}

/// Assumptions of a stub about its function: where it is mapped from, and the code that the stub executes in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FunctionPlace {
    pub address: u64,
    /// Code from the entry to the end of the probed instruction: as in the file, and with a breakpoint.
    pub codes: [Vec<u8>; 2],
    /// Addresses of the mapping that contains the function, and its file's device and inode, if they may be read.
    pub mapping: (u64, u64),
    pub file: Option<(u64, u64)>,
}

/// Bytes at an address.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Patch {
    pub address: u64,
    pub bytes: Vec<u8>,
}

/// Result of an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Installed {
    /// Number of changed slots.
    pub slots: usize,
    /// Time for which the process was stopped.
    pub stopped: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SlotChange {
    pub address: u64,
    pub before: u64,
    pub after: u64,
    /// Value that a removal writes; differs from `before` if that is a former stub.
    pub restored: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Attach probes to these sites, in all processes if there is no PID. The descriptors are those of the file and of the
    /// programs.
    Attach { kind: LinkKind, sites: Vec<Site>, pid: Option<Pid> },
    /// Close a link. Has no reply.
    Detach(LinkId),
    /// Map stubs and change slots, or change more slots; the reply is [`Reply::Installed`]. The descriptors are those of the
    /// code and of the filter; none if the stubs are mapped.
    Install(Installation),
    /// Take over the stubs that a forked child has inherited. Has no reply.
    Adopt(Installation),
    /// Find the offset of `struct rseq` from the thread pointer; the reply is [`Reply::Rseq`].
    FindRseq(Pid),
    /// Restore slots that lead to stubs of another heapbpf, which was killed; the reply is [`Reply::Done`].
    RemoveLeft(Installation),
    /// Restore the slots of a process. Has no reply.
    Remove(Pid),
    /// Restore the slots of a process whose recording goes on; the reply is [`Reply::Done`].
    HandBack(Pid),
    /// Wait until all links to be detached are closed.
    FinishClosing,
    /// Start a tracing thread; the reply is [`Reply::Done`]. The descriptor is its channel.
    Trace,
    /// Own a program of the kernel side that stops a process at its execs; the reply is [`Reply::Done`]. The descriptors are
    /// those of its link and of its note.
    StopAtExecs(Pid),
    /// End the stops of a process at its execs, and resume it if it is stopped at one; the reply is [`Reply::Done`].
    RunAtExecs(Pid),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Attached(LinkId),
    Installed(Installed),
    Rseq(Option<i32>),
    Refused(String),
    /// Addresses for an installation that were free are occupied now.
    Occupied,
    Done,
}

/// Maximum size of a command: a process has at most 65,530 mappings by default.
pub(super) const COMMAND_BYTES_MAX: usize = 64 << 20;

/// Maximum size of an answer: the registers of 100,000 threads.
pub(super) const ANSWER_BYTES_MAX: usize = 512 << 20;

/// Maximum number of code mappings that are sent: the first ones contain a system call instruction.
const CODE_MAX: usize = 100_000;

/// Command from the agent to a tracing thread. For commands about a program see [`Launch`](crate::process::launch::Launch).
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Command {
    /// Stop a process, at most for this time if there is a limit.
    Stop(Pid, Option<Duration>),
    /// Copy these regions by a fork. The descriptor is one end of a pipe; the copy exits when the agent closes the other.
    Fork(Vec<Region>),
    Resume,
    /// Trace a waiting child of the agent; answered when it is traced, and when it is at its exec. The descriptor is an eventfd.
    Start(Pid, String),
    /// Hold a process; with an eventfd also at its exit, for a child of a program.
    Hold(Pid),
    /// Hold a process that is stopped at its exec. The descriptor is the note of whether it was stopped.
    HoldAtExec(Pid),
    HoldAtExit,
    /// Run the start-up; answered by any number of [`Answer::NewCode`], each followed by `Continue` or `Abandon`, and by the
    /// outcome.
    Step,
    Continue,
    Abandon,
    FollowExecs,
    NextStop,
    StopAll,
    Release,
    Reap,
}

/// Answer to a command. A status is the wait status of a program after its exit: the tracer has reaped it, its parent has not.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Stopped {
        living: Pid,
        threads: Vec<ThreadState>,
    },
    /// The time limit of a stop has passed.
    StoppedForLong,
    Forked(Pid),
    Resumed {
        pause: Duration,
        /// Whether the thread traces nothing any more and has no copies, so that it can stop another process.
        is_idle: bool,
    },
    Failed(String),
    NewCode {
        at_exec: bool,
    },
    Launch {
        is_traced: bool,
        status: Option<i32>,
        outcome: Outcome,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Outcome {
    Done,
    StartUp(StartUp),
    Stop(Option<ProgramStop>),
    AllStopped(bool),
    Unstoppable(Pid),
    Suspended(Pid),
    Failed(String),
}

/// Selects the mappings of a process that an injection reads: code, without the names, which a process may make long, and the
/// first thread's stack with the mapping below it.
pub(super) fn code_regions(mapped: &[Region]) -> Vec<Region> {
    let code = mapped.iter().filter(|region| region.executable && region.readable && region.kind != RegionKind::Stack);
    let (kernel, others): (Vec<_>, Vec<_>) = code.partition(|region| region.kind == RegionKind::Kernel);
    let unnamed = |region: &Region| Region { kind: RegionKind::Anonymous { name: None }, ..region.clone() };
    // Mappings of the kernel are last, at the highest addresses, and are the best choice.
    let mut selected: Vec<Region> = others.into_iter().take(CODE_MAX).map(unnamed).collect();
    selected.extend(kernel.into_iter().cloned());
    if let Some(stack) = mapped.iter().position(|region| region.kind == RegionKind::Stack) {
        let below = mapped[stack.saturating_sub(1)..stack].iter();
        let missing = below.filter(|below| selected.iter().all(|region| region.start != below.start)).map(unnamed);
        selected.extend(missing.collect::<Vec<_>>());
        selected.push(mapped[stack].clone());
    }
    selected.sort_unstable_by_key(|region| region.start);
    selected
}
