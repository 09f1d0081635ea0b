//! Everything of a process that says which of its blocks can be reached, as it was at one instant: threads, registers, mappings, memory.
//!
//! ```text
//! seize all threads ─▶ stopped ─▶ registers, mappings ─▶ memory: read now, or kept still by a fork ─▶ let run
//!                                 └──────────────────── pause ────────────────────┘
//! ```

use std::ops::Range;
use std::sync::mpsc;
use std::time::Duration;

use crate::address::TargetAddr;
use crate::ids::{Pid, Tid};
use crate::memory::Memory;
use crate::proc::regions::{Region, regions};

pub mod copy;
mod error;
pub mod pages;
pub mod roots;
pub mod stop;

pub use error::CollectError;
pub use roots::root_spans;

use copy::{Copy, Room};
use pages::Touched;
use stop::{Held, Stopped};

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
    /// How long it was stopped.
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
    std::thread::scope(|scope| {
        let tracer = std::thread::Builder::new().name("collect".to_owned()).spawn_scoped(scope, move || {
            collect_held(pid, Vec::new(), method, &mut |threads| {
                // The other thread has panicked if it does not answer, and this one's result goes nowhere.
                if tell.send(threads.to_vec()).is_ok() {
                    let _ = answered.recv();
                }
            })
        });
        let tracer = tracer.map_err(CollectError::refused(pid, "start a thread to stop"))?;
        // Moved here, so that a panic drops it and the other thread goes on.
        let answer = answer;
        for threads in told {
            while_stopped(&threads);
            let _ = answer.send(());
        }
        tracer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
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
    // What takes long and can be done before is not done while it is stopped. What it has mapped may change until then.
    let living = stop::living(pid)?;
    let room = Room::of(pid, Touched::of(living, &regions(living)?)?.bytes())?;
    let stopped = Stopped::new(pid, held)?;
    let threads = stopped.states()?;
    while_stopped(&threads);
    let living = stopped.living();
    let regions = regions(living)?;
    let touched = Touched::of(living, &regions)?;
    let memory = Copy::take(living, &touched.spans, room)?;
    let unread_bytes = memory.unread_bytes.saturating_add(touched.unread_bytes);
    let pause = stopped.release();
    Ok(Collected { pid, threads, regions, memory: Box::new(memory), pause, method, unread_bytes })
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
