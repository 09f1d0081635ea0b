//! Messages between the agent and a tracing thread of the keeper. Each order has one answer, and [`LaunchOrder::Start`] two.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::address::{FileOffset, TargetAddr};
use crate::collect::ThreadState;
use crate::ids::Pid;
use crate::linux::proc::regions::{Region, RegionKind};
use crate::process::launch::{StartUp, Stir};

/// Maximum size of an order: a process has 65,530 mappings at most unless its system is tuned.
pub(super) const ORDER_BYTES_MAX: usize = 64 << 20;

/// Maximum size of an answer: the registers of 100,000 threads.
pub(super) const ANSWER_BYTES_MAX: usize = 512 << 20;

/// Maximum number of mappings of code that are sent: an instruction is found in the first ones.
const CODE_MAX: usize = 100_000;

/// From the agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Stop all threads of a process.
    Stop(Pid),
    /// Make the stopped process fork. The descriptor is one end of a pipe, and the copy ends when the agent closes the other.
    Fork(Vec<Code>),
    /// Resume the stopped process.
    Resume,
    Launch(LaunchOrder),
}

/// What is to be done with a program: see [`Launch`](crate::process::launch::Launch).
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum LaunchOrder {
    /// Trace a child of the agent that waits for that; answered when it is traced, and when it is held at its exec. The descriptor is
    /// written to when there is news.
    Start {
        pid: Pid,
        program: String,
    },
    Hold(Pid),
    HoldAtExit,
    /// Answered by [`Answer::NewCode`] any number of times, to be answered by `GoOn` or `Abandon`, and by the outcome.
    Step,
    GoOn,
    Abandon,
    FollowExecs,
    NextStir,
    StopAll,
    Release,
    /// Only to learn whether it has ended.
    Reap,
}

/// From the keeper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Stopped {
        /// The thread by whose number the memory of the process can be read.
        living: Pid,
        threads: Vec<ThreadState>,
    },
    /// The copy.
    Forked(Pid),
    /// The process was stopped for so long.
    Resumed(Duration),
    /// Why the order was not carried out.
    Failed(String),
    /// The program is stopped, and has mapped code.
    NewCode {
        at_exec: bool,
    },
    Launch {
        now: Now,
        outcome: Outcome,
    },
}

/// What a program does after an order.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Now {
    /// Held, or followed.
    Traced,
    Free,
    /// Its wait status. The tracer has reaped it, and its parent has not.
    Ended(i32),
}

/// What an order about a program has led to.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Outcome {
    Done,
    StartUp(StartUp),
    Stir(Option<Stir>),
    AllStopped(bool),
    Failed(LaunchFailure),
}

/// Why an order about a program was not carried out.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum LaunchFailure {
    Unstoppable(Pid),
    Other(String),
}

/// A mapping that can be executed and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Code {
    start: TargetAddr,
    end: TargetAddr,
    is_kernels: bool,
}

impl Code {
    /// Those among all mappings of a process.
    pub(super) fn of(mapped: &[Region]) -> Vec<Self> {
        let code = mapped.iter().filter(|region| region.executable && region.readable);
        let reduced = |region: &Region| Self {
            start: region.start,
            end: region.end,
            is_kernels: region.kind == RegionKind::Kernel,
        };
        // What the kernel maps itself comes last, at the highest addresses, and is the best place.
        let (kernels, others): (Vec<Self>, Vec<Self>) = code.map(reduced).partition(|code| code.is_kernels);
        let mut code: Vec<Self> = others.into_iter().take(CODE_MAX).chain(kernels).collect();
        code.sort_unstable_by_key(|code| code.start);
        code
    }

    pub(super) fn region(self) -> Region {
        let kind = if self.is_kernels { RegionKind::Kernel } else { RegionKind::Anonymous { name: None } };
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
