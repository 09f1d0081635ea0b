//! Messages between agent and keeper, and between the agent and a tracing thread of the keeper. Both are the same
//! binary, so there are no versions. Each command has one answer, [`LaunchCommand::Start`] two.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::address::{FileOffset, TargetAddr};
use crate::bpf::load::LinkKind;
use crate::collect::ThreadState;
use crate::ids::Pid;
use crate::linux::proc::maps::{Region, RegionKind};
use crate::process::launch::{ProgramStop, StartUp};

/// The hidden command that runs the keeper.
pub const COMMAND: &str = "keeper";

/// Maximum size of a request: a module with about 100,000 hooks.
pub(super) const REQUEST_BYTES_MAX: usize = 4 << 20;

/// Maximum size of a reply: an identifier or an error message.
pub(super) const REPLY_BYTES_MAX: usize = 64 << 10;

/// Identifies the links of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct LinkId(pub(super) u64);

/// An instruction to probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Site {
    /// File offset in bytes.
    pub offset: u64,
    /// Passed to the programs (`bpf_get_attach_cookie`).
    pub cookie: u64,
    /// Also probe the return.
    pub returns: bool,
}

/// From the agent to the keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// Attach; has a reply. The descriptors are the file's and the programs'.
    Attach {
        kind: LinkKind,
        sites: Vec<Site>,
        /// `None` for all processes.
        pid: Option<Pid>,
    },
    /// Start detaching; has no reply.
    Detach(LinkId),
    /// Wait for all detachments.
    Settle,
    /// Start a tracing thread; the reply is [`Reply::Settled`]. The descriptor is its channel.
    Trace,
}

/// From the keeper to the agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Attached(LinkId),
    /// The kernel's error.
    Refused(String),
    Settled,
}

/// Maximum size of a command: a process has at most 65,530 mappings by default.
pub(super) const COMMAND_BYTES_MAX: usize = 64 << 20;

/// Maximum size of an answer: the registers of 100,000 threads.
pub(super) const ANSWER_BYTES_MAX: usize = 512 << 20;

/// Maximum number of code mappings that are sent: the first ones contain a system call instruction.
const CODE_MAX: usize = 100_000;

/// From the agent to the tracing thread.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Command {
    /// Stop all threads of a process.
    Stop(Pid),
    /// Make the stopped process fork. The descriptor is one end of a pipe; the copy exits when the agent closes the
    /// other.
    Fork(Vec<CodeRange>),
    /// Resume the stopped process.
    Resume,
    Launch(LaunchCommand),
}

/// Commands about a program: see [`Launch`](crate::process::launch::Launch).
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum LaunchCommand {
    /// Trace a child of the agent that waits for this; answered when it is traced, and again when it is held at its
    /// exec. The descriptor is an eventfd for notifications.
    Start {
        pid: Pid,
        program: String,
    },
    Hold(Pid),
    HoldAtExit,
    /// Answered by any number of [`Answer::NewCode`], each to be followed by `Continue` or `Abandon`, and by the
    /// outcome.
    Step,
    Continue,
    Abandon,
    FollowExecs,
    NextStop,
    StopAll,
    Release,
    /// Update the state of the program.
    Reap,
}

/// From the tracing thread to the agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Stopped {
        /// The thread through which the memory of the process can be read.
        living: Pid,
        threads: Vec<ThreadState>,
    },
    /// PID of the copy.
    Forked(Pid),
    /// Duration of the stop.
    Resumed(Duration),
    /// Error message.
    Failed(String),
    /// The program is stopped, and has mapped new code.
    NewCode {
        at_exec: bool,
    },
    Launch {
        state: ProgramState,
        outcome: Outcome,
    },
}

/// State of a program after a command.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum ProgramState {
    /// Held or followed.
    Traced,
    Free,
    /// Wait status. The tracer has reaped it, its parent has not.
    Ended(i32),
}

/// Result of a command about a program.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Outcome {
    Done,
    StartUp(StartUp),
    Stop(Option<ProgramStop>),
    AllStopped(bool),
    Failed(LaunchFailure),
}

/// Why a command about a program failed.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum LaunchFailure {
    Unstoppable(Pid),
    Other(String),
}

/// An executable and readable mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CodeRange {
    start: TargetAddr,
    end: TargetAddr,
    is_kernel: bool,
}

impl CodeRange {
    /// Selects the code among all mappings of a process.
    pub(super) fn of(mapped: &[Region]) -> Vec<Self> {
        let code = mapped.iter().filter(|region| region.executable && region.readable);
        let reduced = |region: &Region| Self {
            start: region.start,
            end: region.end,
            is_kernel: region.kind == RegionKind::Kernel,
        };
        // Mappings of the kernel are last, at the highest addresses, and are the best choice.
        let (kernel, others): (Vec<Self>, Vec<Self>) = code.map(reduced).partition(|code| code.is_kernel);
        let mut code: Vec<Self> = others.into_iter().take(CODE_MAX).chain(kernel).collect();
        code.sort_unstable_by_key(|code| code.start);
        code
    }

    pub(super) fn region(self) -> Region {
        let kind = if self.is_kernel { RegionKind::Kernel } else { RegionKind::Anonymous { name: None } };
        Region {
            start: self.start,
            end: self.end,
            readable: true,
            writable: false,
            executable: true,
            shared: false,
            offset: FileOffset(0),
            kind,
        }
    }
}
