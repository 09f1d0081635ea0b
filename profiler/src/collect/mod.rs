//! Heap snapshots: threads, registers, mappings and memory of a process at one point in time.

use std::time::Duration;

use heapbpf_base::ids::Pid;
use heapbpf_base::memory::Memory;
use heapbpf_linux::proc::maps::{Region, regions};
use heapbpf_linux::proc::process::EpollSet;
use heapbpf_linux::proc::stat::Stat;
use heapbpf_linux::signals::Deferral;

pub(crate) mod fork;
pub(crate) mod inject;
pub(crate) mod memory;
pub(crate) mod pages;
pub(crate) mod process;
pub(crate) mod roots;
pub(crate) mod stop;

pub use process::ThreadState;
pub(crate) use process::{CollectError, ProcessCopy, StopLimit, StoppedProcess};

use memory::{Copy, ForkMemory, Reserved, left_out};
use pages::Touched;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// The process is copied while it is stopped.
    #[default]
    Read,
    /// The process is made to fork; the copy, which never runs, is read afterwards.
    Fork,
}

pub struct Collected {
    pub pid: Pid,
    pub threads: Vec<ThreadState>,
    /// Regions of the process by rising address.
    pub regions: Vec<Region>,
    pub memory: Box<dyn Memory>,
    /// User data that the kernel stores for the process, which may be the only pointers to blocks.
    pub kernel_words: Vec<u64>,
    pub pause: Duration,
    pub method: Method,
    pub unread_bytes: u64,
}

/// A process that has been read and is still stopped, unless it was copied. It is resumed when this value is dropped.
pub(crate) struct Held {
    stopped: Option<Box<dyn StoppedProcess>>,
    pause: Duration,
}

impl Held {
    /// Resumes the process. Returns how long it was stopped.
    pub(crate) fn release(self) -> Result<Duration, CollectError> {
        self.stopped.map_or(Ok(self.pause), |stopped| stopped.release())
    }
}

/// Stops a process with `stop`, calls `while_stopped`, reads the process and resumes it, on errors as well.
pub(crate) fn collect(
    pid: Pid,
    method: Method,
    stop: impl FnOnce() -> Result<Box<dyn StoppedProcess>, CollectError>,
    while_stopped: &mut dyn FnMut(&[ThreadState]),
) -> Result<Collected, CollectError> {
    let (collected, held) = collect_held(pid, method, stop, while_stopped)?;
    Ok(Collected { pause: held.release()?, ..collected })
}

/// Reads a process like [`collect`], but the process is not resumed yet, and its pause is not known.
pub(crate) fn collect_held(
    pid: Pid,
    method: Method,
    stop: impl FnOnce() -> Result<Box<dyn StoppedProcess>, CollectError>,
    while_stopped: &mut dyn FnMut(&[ThreadState]),
) -> Result<(Collected, Held), CollectError> {
    // Slow preparations are done before the stop. Mappings may change until then.
    let living = stop::living_thread(pid)?;
    let started = Stat::read(pid)?.start_ticks;
    let reserved = match method {
        Method::Read => Some(Reserved::of(pid, Touched::of(living, &regions(living)?)?.bytes())?),
        Method::Fork => None,
    };
    let epolls = EpollSet::of(living);
    let _deferral = Deferral::begin();
    let stopped = stop()?;
    if Stat::read(pid)?.start_ticks != started {
        return Err(CollectError::Ended(pid));
    }
    let threads = stopped.states()?;
    while_stopped(&threads);
    let limit = stopped.limit();
    limit.map_or(Ok(()), |limit| limit.check(pid))?;
    let living = stopped.living_thread();
    let kernel_words = epolls.user_data(living);
    let regions = regions(living)?;
    let (memory, unread_bytes, held): (Box<dyn Memory>, _, _) = match reserved {
        Some(reserved) => {
            let touched = Touched::of(living, &regions)?;
            let memory = Copy::take(living, &touched.spans, reserved, limit)?;
            let unread_bytes = memory.unread_bytes.saturating_add(touched.unread_bytes);
            (Box::new(memory), unread_bytes, Held { stopped: Some(stopped), pause: Duration::ZERO })
        }
        None => {
            let (memory, unread_bytes, pause) = forked(stopped, &regions)?;
            (memory, unread_bytes, Held { stopped: None, pause })
        }
    };
    let pause = Duration::ZERO;
    Ok((Collected { pid, threads, regions, memory, kernel_words, pause, method, unread_bytes }, held))
}

/// Copies the process by a fork. Also returns the bytes missing from the copy, and the duration of the stop.
fn forked(
    mut stopped: Box<dyn StoppedProcess>,
    regions: &[Region],
) -> Result<(Box<dyn Memory>, u64, Duration), CollectError> {
    let (shared, own): (Vec<Region>, Vec<Region>) = regions.iter().cloned().partition(|region| region.shared);
    // The copy has no page table entries for shared pages until it accesses them.
    let shared = Touched::of(stopped.living_thread(), &shared)?;
    let copy = stopped.fork(regions)?;
    let pause = stopped.release()?;
    let own = Touched::of(copy.pid(), &own)?;
    let left_out: u64 = left_out(copy.pid(), regions)?.iter().map(|span| span.end.0 - span.start.0).sum();
    let unread_bytes = left_out.saturating_add(own.unread_bytes).saturating_add(shared.unread_bytes);
    let spans = [own.spans, shared.spans].concat();
    Ok((Box::new(ForkMemory::new(copy, spans)), unread_bytes, pause))
}

#[cfg(test)]
pub(crate) mod tests;
