//! Agent and keeper are the same binary, so there are no versions. Each command has one answer, [`Command::Start`] two.

use std::time::Duration;

use serde::{Deserialize, Serialize};

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
    /// Passed to the programs (`bpf_get_attach_cookie`).
    pub cookie: u64,
    pub returns: bool,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// The descriptors are the file's and the programs'. Without a PID: in all processes.
    Attach { kind: LinkKind, sites: Vec<Site>, pid: Option<Pid> },
    /// Has no reply.
    Detach(LinkId),
    /// Wait until all links to be detached are closed.
    Settle,
    /// Start a tracing thread; the reply is [`Reply::Settled`]. The descriptor is its channel.
    Trace,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Attached(LinkId),
    Refused(String),
    Settled,
}

/// Maximum size of a command: a process has at most 65,530 mappings by default.
pub(super) const COMMAND_BYTES_MAX: usize = 64 << 20;

/// Maximum size of an answer: the registers of 100,000 threads.
pub(super) const ANSWER_BYTES_MAX: usize = 512 << 20;

/// Maximum number of code mappings that are sent: the first ones contain a system call instruction.
const CODE_MAX: usize = 100_000;

/// From the agent to the tracing thread. For commands about a program see [`Launch`](crate::process::launch::Launch).
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Command {
    Stop(Pid),
    /// The descriptor is one end of a pipe; the copy exits when the agent closes the other.
    Fork(Vec<Region>),
    Resume,
    /// Trace a waiting child of the agent; answered when it is traced, and when it is at its exec. Has an eventfd.
    Start(Pid, String),
    Hold(Pid),
    HoldAtExit,
    /// Answered by any number of [`Answer::NewCode`], each followed by `Continue` or `Abandon`, and by the outcome.
    Step,
    Continue,
    Abandon,
    FollowExecs,
    NextStop,
    StopAll,
    Release,
    Reap,
}

/// A traced program is held or followed. Its status is the wait status after its exit: the tracer has reaped it, its
/// parent has not.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Stopped { living: Pid, threads: Vec<ThreadState> },
    Forked(Pid),
    Resumed(Duration),
    Failed(String),
    NewCode { at_exec: bool },
    Launch { is_traced: bool, status: Option<i32>, outcome: Outcome },
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Outcome {
    Done,
    StartUp(StartUp),
    Stop(Option<ProgramStop>),
    AllStopped(bool),
    Unstoppable(Pid),
    Failed(String),
}

/// Selects the code among all mappings of a process, without the names, which a process may make long.
pub(super) fn code_regions(mapped: &[Region]) -> Vec<Region> {
    let code = mapped.iter().filter(|region| region.executable && region.readable);
    let (kernel, others): (Vec<_>, Vec<_>) = code.partition(|region| region.kind == RegionKind::Kernel);
    let unnamed = |region: &Region| Region { kind: RegionKind::Anonymous { name: None }, ..region.clone() };
    // Mappings of the kernel are last, at the highest addresses, and are the best choice.
    let mut code: Vec<Region> = others.into_iter().take(CODE_MAX).map(unnamed).collect();
    code.extend(kernel.into_iter().cloned());
    code.sort_unstable_by_key(|region| region.start);
    code
}
