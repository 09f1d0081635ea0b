//! Everything of a process that says which of its blocks can be reached, as it was at one instant: threads, registers, mappings, memory.
//!
//! ```text
//! seize all threads ─▶ stopped ─▶ registers, mappings ─▶ memory: read now, or kept still by a fork ─▶ let run
//!                                 └──────────────────── pause ────────────────────┘
//! ```

use std::convert::Infallible;
use std::ops::Range;
use std::sync::mpsc;
use std::time::Duration;

use crate::address::TargetAddr;
use crate::ids::{Pid, Tid};
use crate::memory::Memory;
use crate::proc::kept::Keepers;
use crate::proc::regions::{Region, regions};
use crate::proc::stat::Stat;

pub mod copy;
mod error;
pub mod fork;
pub mod pages;
pub mod roots;
pub mod spans;
pub mod stop;

pub use error::CollectError;
pub use roots::root_spans;

use copy::{Copy, Room};
use fork::{Forked, Lender};
use pages::Touched;
use stop::{Held, Release, Stopped};

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
#[derive(Clone, Debug, PartialEq, Eq)]
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
pub const RED_ZONE_BYTES: u64 = 128;

/// A range of addresses.
pub type Span = Range<TargetAddr>;

/// Stops a process, lets `while_stopped` do what must be done at that instant, reads it and lets it run.
///
/// # Errors
///
/// When it cannot be stopped or read, or ends. It runs on then too, if it is still there.
pub fn collect(
    pid: Pid,
    method: Method,
    while_stopped: &mut dyn FnMut(&[ThreadState]),
) -> Result<Collected, CollectError> {
    // The kernel lets go of all that a thread traces when that thread ends: so nothing that could go wrong keeps the process.
    let (tell, told) = mpsc::channel();
    let (answer, answered) = mpsc::channel();
    let (finish, finished) = mpsc::channel();
    let tracer = std::thread::Builder::new().name("collect".to_owned()).spawn(move || {
        let (alive, needed) = mpsc::channel();
        let collected = collect_with(pid, Vec::new(), method, Some(alive), &mut |threads| {
            // The other thread has panicked if it does not answer, and this one's result goes nowhere.
            if tell.send(threads.to_vec()).is_ok() {
                let _ = answered.recv();
            }
        });
        drop(tell);
        let _ = finish.send(collected);
        drop(finish);
        // A copy ends with the thread that traces it.
        let _: Result<Infallible, _> = needed.recv();
    });
    let tracer = tracer.map_err(CollectError::refused(pid, "start a thread to stop"))?;
    let finished = Finished(finished);
    // Moved here, so that a panic drops it first and the other thread goes on.
    let answer = answer;
    for threads in told {
        while_stopped(&threads);
        let _ = answer.send(());
    }
    match finished.0.recv() {
        Ok(collected) => collected,
        Err(_) => match tracer.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => Err(CollectError::Ended(pid)),
        },
    }
}

/// What the thread that traces returns: waited for in any case, so that the process runs then.
struct Finished(mpsc::Receiver<Result<Collected, CollectError>>);

impl Drop for Finished {
    fn drop(&mut self) {
        let _ = self.0.recv();
    }
}

/// As [`collect`], of a process of which some threads are held already by the calling thread.
///
/// # Errors
///
/// As of [`collect`].
pub fn collect_held(
    pid: Pid,
    held: Vec<Held>,
    method: Method,
    while_stopped: &mut dyn FnMut(&[ThreadState]),
) -> Result<Collected, CollectError> {
    collect_with(pid, held, method, None, while_stopped)
}

/// As [`collect_held`]. A copy that is made keeps `alive` as long as it needs the calling thread.
fn collect_with(
    pid: Pid,
    held: Vec<Held>,
    method: Method,
    alive: Option<mpsc::Sender<Infallible>>,
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
    let stopped = Stopped::new(pid, held)?;
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
            (Box::new(memory), unread_bytes, stopped.release())
        }
        None => forked(stopped, &regions, alive)?,
    };
    Ok(Collected { pid, threads, regions, memory, kernel_words, pause, method, unread_bytes })
}

/// Memory of a copy of a stopped process, which runs on; how many bytes of it are not there, and how long it was stopped.
fn forked(
    stopped: Stopped,
    regions: &[Region],
    alive: Option<mpsc::Sender<Infallible>>,
) -> Result<(Box<dyn Memory>, u64, Duration), CollectError> {
    let (shared, own): (Vec<Region>, Vec<Region>) = regions.iter().cloned().partition(|region| region.shared);
    // The copy has none of the pages that it shares until they are asked for.
    let shared = Touched::of(stopped.living(), &shared)?;
    let lender = |held: &Held| Lender {
        tracee: held.tracee.clone(),
        stop: held.stop,
        traces_threads: held.release == Release::Leave,
    };
    let lenders: Vec<Lender> = stopped.held().iter().map(lender).collect();
    let mut copy = Forked::make(stopped.pid(), &lenders, regions)?;
    copy.needs(alive);
    let pause = stopped.release();
    let own = Touched::of(copy.pid(), &own)?;
    let left_out: u64 = copy.left_out(regions)?.iter().map(|span| span.end.0 - span.start.0).sum();
    let unread_bytes = left_out.saturating_add(own.unread_bytes).saturating_add(shared.unread_bytes);
    let mut spans = own.spans;
    spans.extend(shared.spans);
    spans.sort_unstable_by_key(|span| span.start);
    Ok((Box::new(copy.into_memory(spans)), unread_bytes, pause))
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
