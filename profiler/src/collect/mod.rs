//! Everything of a process that says which of its blocks can be reached, as it was at one instant: threads, registers, mappings, memory.
//!
//! ```text
//! seize all threads ─▶ stopped ─▶ registers, mappings ─▶ memory: read now, or kept still by a fork ─▶ let run
//!                                 └──────────────────── pause ────────────────────┘
//! ```

use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::address::TargetAddr;
use crate::ids::{Pid, Tid};
use crate::linux::deferral::Deferral;
use crate::linux::proc::kept::Keepers;
use crate::linux::proc::regions::{Region, regions};
use crate::linux::proc::stat::Stat;
use crate::memory::Memory;

pub(crate) mod copy;
mod error;
pub(crate) mod fork;
pub(crate) mod pages;
pub(crate) mod roots;
pub(crate) mod spans;
mod still;
pub(crate) mod stop;

pub(crate) use error::CollectError;
pub(crate) use still::{ProcessCopy, Still};

use copy::{Copy, Room};
use fork::{ForkMemory, left_out};
use pages::Touched;

/// How memory is kept from changing while it is looked through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// It is copied while the process is stopped.
    #[default]
    Read,
    /// The process is made to fork, and the copy, which never runs, is read after it runs on.
    Fork,
}

/// A process at one instant.
pub struct Collected {
    /// The process.
    pub pid: Pid,
    /// All of its threads.
    pub threads: Vec<ThreadState>,
    /// What it has mapped, by rising address.
    pub regions: Vec<Region>,
    /// What is in there.
    pub memory: Box<dyn Memory>,
    /// Words that the kernel keeps for it, which may be the only pointers to blocks.
    pub kernel_words: Vec<u64>,
    /// How long it was stopped, all times together.
    pub pause: Duration,
    /// How memory was kept.
    pub method: Method,
    /// Bytes that are mapped, were touched, and could not be read.
    pub unread_bytes: u64,
}

/// A thread that is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadState {
    /// The thread.
    pub tid: Tid,
    /// All words that its general and vector registers hold.
    pub registers: Vec<u64>,
    /// Next instruction.
    pub instruction: TargetAddr,
    /// Where its stack ends now.
    pub stack_pointer: TargetAddr,
    /// Its control block and, below it, its thread-local storage (`fs_base`).
    pub thread_pointer: TargetAddr,
}

/// Bytes below the stack pointer that a leaf function may use
/// (<https://gitlab.com/x86-psABIs/x86-64-ABI>, "The Stack Frame").
pub(crate) const RED_ZONE_BYTES: u64 = 128;

/// A range of addresses.
pub(crate) type Span = Range<TargetAddr>;

/// Stops a process, calls `while_stopped` while it is stopped, reads it and resumes it. `stop` stops it.
///
/// # Errors
///
/// When it cannot be stopped or read, or exits. It runs on then too, if it still exists.
pub(crate) fn collect(
    pid: Pid,
    method: Method,
    stop: impl FnOnce() -> Result<Box<dyn Still>, CollectError>,
    while_stopped: &mut dyn FnMut(&[ThreadState]),
) -> Result<Collected, CollectError> {
    // What takes long and can be done before is not done while it is stopped. What it has mapped may change until then.
    let living = stop::living(pid)?;
    let started = Stat::read(pid)?.start_ticks;
    let room = match method {
        Method::Read => Some(Room::of(pid, Touched::of(living, &regions(living)?)?.bytes())?),
        Method::Fork => None,
    };
    let keepers = Keepers::of(living);
    let _deferral = Deferral::begin();
    let stopped = stop()?;
    if Stat::read(pid)?.start_ticks != started {
        return Err(CollectError::Ended(pid));
    }
    let threads = stopped.states()?;
    while_stopped(&threads);
    let living = stopped.living();
    let kernel_words = keepers.words(living);
    let regions = regions(living)?;
    let (memory, unread_bytes, pause): (Box<dyn Memory>, _, _) = match room {
        Some(room) => {
            let touched = Touched::of(living, &regions)?;
            let memory = Copy::take(living, &touched.spans, room)?;
            let unread_bytes = memory.unread_bytes.saturating_add(touched.unread_bytes);
            (Box::new(memory), unread_bytes, stopped.release()?)
        }
        None => forked(stopped, &regions)?,
    };
    Ok(Collected { pid, threads, regions, memory, kernel_words, pause, method, unread_bytes })
}

/// Memory of a copy of a stopped process, which is resumed; the bytes missing from the copy, and the duration of the stop.
fn forked(mut stopped: Box<dyn Still>, regions: &[Region]) -> Result<(Box<dyn Memory>, u64, Duration), CollectError> {
    let (shared, own): (Vec<Region>, Vec<Region>) = regions.iter().cloned().partition(|region| region.shared);
    // The copy has none of the pages that it shares until they are asked for.
    let shared = Touched::of(stopped.living(), &shared)?;
    let copy = stopped.fork(regions)?;
    let pause = stopped.release()?;
    let own = Touched::of(copy.pid(), &own)?;
    let left_out: u64 = left_out(copy.pid(), regions)?.iter().map(|span| span.end.0 - span.start.0).sum();
    let unread_bytes = left_out.saturating_add(own.unread_bytes).saturating_add(shared.unread_bytes);
    let mut spans = own.spans;
    spans.extend(shared.spans);
    spans.sort_unstable_by_key(|span| span.start);
    Ok((Box::new(ForkMemory::new(copy, spans)), unread_bytes, pause))
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
