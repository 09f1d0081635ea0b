//! All threads of a process, stopped, and let run again whatever happens: at the end of [`Stopped`], on an error, on a panic; when
//! the tracing process is killed, the kernel does it. What is done meanwhile is the caller's.

use std::io;
use std::time::{Duration, Instant};

use rustix::process::{WaitId, WaitIdOptions, waitid};

pub(crate) use living::living;
use reaping::{Reaping, own_tid};

use super::fork::{ForkError, Forked, Lender};
use super::{CollectError, ThreadState};
use crate::address::TargetAddr;
use crate::ids::{Pid, Tid};
use crate::linux::proc::process::thread_name;
use crate::linux::proc::regions::Region;
use crate::linux::proc::stat::Stat;
use crate::linux::proc::tasks;
use crate::linux::ptrace::{Options, Stop, Tracee};

mod living;
mod reaping;

/// How long threads are waited for. One that waits for a disk stops when the disk has answered.
const STOP_SECONDS_MAX: u64 = 2;

/// How long those are waited for that have not stopped, before they are given up.
const RELEASE_LIMIT: Duration = Duration::from_millis(500);

/// A thread that is held by ptrace, and stands still.
#[derive(Debug)]
pub(crate) struct Held {
    /// The thread.
    pub tracee: Tracee,
    /// Where it was stopped.
    pub stop: Stop,
    /// What becomes of it.
    pub release: Release,
}

/// What becomes of a thread that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// It is let go of, as if nothing had been.
    Detach,
    /// It was held before, and whoever holds it lets it run.
    Leave,
}

/// A process that stands still. It runs on when this is dropped.
#[derive(Debug)]
pub(crate) struct Stopped {
    pid: Pid,
    held: Vec<Held>,
    /// Asked to stop, and not seen to have done so.
    running: Vec<Tracee>,
    /// Threads that have ended and are listed still: the first one waits there for the others.
    ended: Vec<Tid>,
    /// It is a child of this process, whose end is somebody else's to be told.
    is_child: bool,
    /// As soon as there are several threads, until all have stopped.
    reaping: Option<Reaping>,
    since: Instant,
}

impl Stopped {
    /// Stops all threads of a process but those that are held already, which stand still and are left so.
    ///
    /// # Errors
    ///
    /// When one cannot be stopped; then all run on.
    #[cfg(test)]
    pub(crate) fn new(pid: Pid, held: Vec<Held>) -> Result<Self, CollectError> {
        Self::new_while(pid, held, &|| true)
    }

    /// As [`new`](Self::new), as long as somebody wants it. `is_wanted` is called while a thread takes long to stop.
    ///
    /// # Errors
    ///
    /// As of [`new`](Self::new), and [`CollectError::Interrupted`].
    pub(crate) fn new_while(pid: Pid, held: Vec<Held>, is_wanted: &dyn Fn() -> bool) -> Result<Self, CollectError> {
        living(pid)?;
        let is_child = tasks::status(pid, Tid(pid.0)).is_some_and(|status| status.parent.0 == std::process::id());
        let (running, ended, since) = (Vec::new(), Vec::new(), Instant::now());
        let mut stopped = Self { pid, held, running, ended, is_child, reaping: None, since };
        stopped.stop_all(stopped.since + Duration::from_secs(STOP_SECONDS_MAX), is_wanted)?;
        Ok(stopped)
    }

    /// As of [`living`], while it is stopped.
    pub(crate) fn living(&self) -> Pid {
        let first = self.held.iter().find(|held| held.tracee.tid().0 == self.pid.0).or(self.held.first());
        first.map_or(self.pid, |held| held.tracee.pid())
    }

    /// The threads.
    #[cfg(test)]
    pub(crate) fn held(&self) -> &[Held] {
        &self.held
    }

    /// What the threads' registers hold.
    ///
    /// # Errors
    ///
    /// When the process was killed meanwhile, or is one of 32 bits.
    pub(crate) fn states(&self) -> Result<Vec<ThreadState>, CollectError> {
        self.held.iter().map(|held| self.state(&held.tracee)).collect()
    }

    fn state(&self, tracee: &Tracee) -> Result<ThreadState, CollectError> {
        let registers = tracee.registers().map_err(|source| match source.raw_os_error() {
            Some(libc::EINVAL) => CollectError::Narrow(self.pid),
            _ => CollectError::refused(self.pid, "read the registers of")(source),
        })?;
        let registers = registers.ok_or(CollectError::Ended(self.pid))?;
        let mut words = registers.general().to_vec();
        // Compilers keep pointers in vector registers too, two or more at a time. A processor without has none to lose.
        words.extend(tracee.extended_words().unwrap_or_default());
        Ok(ThreadState {
            tid: tracee.tid(),
            registers: words,
            instruction: TargetAddr(registers.rip),
            stack_pointer: TargetAddr(registers.rsp),
            thread_pointer: TargetAddr(registers.fs_base),
        })
    }

    /// Makes the process fork. `mapped` is what it has mapped. The threads are stopped as before when this returns.
    pub(crate) fn fork(&self, mapped: &[Region]) -> Result<Forked, ForkError> {
        let lender = |held: &Held| Lender {
            tracee: held.tracee.clone(),
            stop: held.stop,
            traces_threads: held.release == Release::Leave,
        };
        let lenders: Vec<Lender> = self.held.iter().map(lender).collect();
        Forked::make(self.pid, &lenders, mapped)
    }

    /// Lets the process run, and tells how long it stood still.
    pub(crate) fn release(mut self) -> Duration {
        self.let_go()
    }

    /// Stops what is listed until nothing new is: a thread that is not stopped yet can make others.
    fn stop_all(&mut self, deadline: Instant, is_wanted: &dyn Fn() -> bool) -> Result<(), CollectError> {
        loop {
            let listed = tasks::threads(self.pid)?;
            let known = |tid| self.ended.contains(&tid) || self.held.iter().any(|held| held.tracee.tid() == tid);
            let new: Vec<Tid> = if self.held.len() + self.ended.len() < 64 {
                listed.into_iter().filter(|&tid| !known(tid)).collect()
            } else {
                let mut known: Vec<Tid> = self.held.iter().map(|held| held.tracee.tid()).collect();
                known.extend(&self.ended);
                known.sort_unstable();
                listed.into_iter().filter(|tid| known.binary_search(tid).is_err()).collect()
            };
            if new.is_empty() {
                if let Some(reaping) = self.reaping.take() {
                    self.held.retain(|held| !reaping.has_reaped(held.tracee.tid()));
                }
                return if self.held.is_empty() { Err(CollectError::Ended(self.pid)) } else { Ok(()) };
            }
            if self.reaping.is_none() && self.held.len() + new.len() > 1 {
                self.reaping =
                    Some(Reaping::begin(self.pid).map_err(CollectError::refused(self.pid, "start a thread to stop"))?);
            }
            for tid in new {
                self.seize(tid)?;
            }
            self.wait(deadline, is_wanted)?;
            if Instant::now() >= deadline {
                return Err(CollectError::Restless { pid: self.pid, seconds: STOP_SECONDS_MAX });
            }
        }
    }

    fn seize(&mut self, tid: Tid) -> Result<(), CollectError> {
        let mut tries_left = 3;
        let tracee = loop {
            tries_left -= 1;
            match Tracee::seize_thread(tid, Options::default()) {
                Ok(tracee) => break tracee,
                // It has ended since it was listed.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => match self.why_not(tid) {
                    // That may have been a first thread that had ended, whose number another has now by its exec.
                    Err(CollectError::NotPermitted(_)) if tries_left > 0 => {}
                    result => return result,
                },
                Err(error) => return Err(CollectError::refused(self.pid, "trace")(error)),
            }
        };
        // From here on it is let go of by `Drop`.
        self.running.push(tracee.clone());
        tracee.interrupt().map_err(CollectError::refused(self.pid, "stop"))
    }

    /// Why a thread may not be traced.
    fn why_not(&mut self, tid: Tid) -> Result<(), CollectError> {
        let Some(status) = tasks::status(self.pid, tid) else { return Ok(()) };
        if matches!(status.state, 'Z' | 'X') {
            self.ended.push(tid);
            return Ok(());
        }
        let Some(tracer) = status.tracer else { return Err(CollectError::NotPermitted(self.pid)) };
        if tracer == own_tid() {
            // Whoever holds the others has let this one go to its end.
            self.ended.push(tid);
            return Ok(());
        }
        let name = thread_name(Pid(tracer.0), tracer).unwrap_or_default();
        Err(CollectError::Traced { pid: self.pid, tid, tracer, name })
    }

    /// Waits for all that were asked to stop.
    fn wait(&mut self, deadline: Instant, is_wanted: &dyn Fn() -> bool) -> Result<(), CollectError> {
        let mut idle_since = Instant::now();
        loop {
            if self.gather()? {
                idle_since = Instant::now();
            }
            let Some(first) = self.running.first() else { return Ok(()) };
            let now = Instant::now();
            if now >= deadline {
                let tid = first.tid();
                let state = tasks::status(self.pid, tid).map_or('?', |status| status.state);
                return Err(CollectError::Stuck { pid: self.pid, tid, state, seconds: STOP_SECONDS_MAX });
            }
            match now.duration_since(idle_since).as_micros() {
                0..2000 => std::thread::yield_now(),
                2000..20_000 => std::thread::sleep(Duration::from_micros(100)),
                // The end of a child is not waited for here, and shows in its state alone.
                _ if self.held.is_empty() && Stat::read(self.pid).map_or(true, |stat| stat.has_ended()) => {
                    return Err(CollectError::Ended(self.pid));
                }
                _ if !is_wanted() => return Err(CollectError::Interrupted(self.pid)),
                _ => {
                    self.set_ended_aside();
                    self.forget_killed()?;
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// The first thread's end is told when the others have ended too: it is not waited for.
    fn set_ended_aside(&mut self) {
        let has_ended = |tid| tasks::status(self.pid, tid).is_some_and(|status| matches!(status.state, 'Z' | 'X'));
        let ended = self.running.extract_if(.., |tracee| has_ended(tracee.tid()));
        self.ended.extend(ended.map(|tracee| tracee.tid()));
    }

    /// Threads that stood still and were killed since, by an exec of another thread, which waits until their end was seen.
    fn forget_killed(&mut self) -> Result<(), CollectError> {
        let mut held = std::mem::take(&mut self.held);
        held.retain_mut(|held| match self.stop_of(&held.tracee) {
            // Others are asked for those that are theirs.
            _ if held.release == Release::Leave => true,
            Ok(None) => true,
            Ok(Some(Stop::Ended(_))) | Err(_) => false,
            Ok(Some(stop)) => {
                held.stop = stop;
                true
            }
        });
        self.held = held;
        Ok(())
    }

    /// Takes note of what has stopped or ended; whether anything has.
    fn gather(&mut self) -> Result<bool, CollectError> {
        let (mut has_moved, mut has_ended) = (false, false);
        for tracee in std::mem::take(&mut self.running) {
            let stop = self.stop_of(&tracee);
            has_moved |= !matches!(stop, Ok(None));
            match stop {
                Ok(None) => self.running.push(tracee),
                // It is delivered first: where heapbpf ended before the thread is let go of, it would be lost.
                Ok(Some(stop @ Stop::Signal(_))) => {
                    let stops = tracee.interrupt().and_then(|()| tracee.run(stop));
                    self.running.push(tracee);
                    stops.map_err(CollectError::refused(self.pid, "stop"))?;
                }
                Ok(Some(Stop::Ended(_))) => has_ended |= tracee.tid().0 == self.pid.0,
                Ok(Some(stop)) => self.held.push(Held { tracee, stop, release: Release::Detach }),
                Err(_) if self.reaping.as_ref().is_some_and(|reaping| reaping.has_reaped(tracee.tid())) => {}
                Err(_) => self.follow_exec(),
            }
        }
        if has_ended { Err(CollectError::Ended(self.pid)) } else { Ok(has_moved) }
    }

    /// A thread that is not there any more without having ended has called exec: it is the first one now, and about to stop.
    fn follow_exec(&mut self) {
        let first = Tracee::of(Tid(self.pid.0));
        if tasks::status(self.pid, first.tid()).is_some_and(|status| status.tracer == Some(own_tid())) {
            self.ended.retain(|&tid| tid != first.tid());
            self.held.retain(|held| held.tracee.tid() != first.tid());
            self.running.retain(|tracee| tracee.tid() != first.tid());
            // It may have been held of only since.
            let _ = first.interrupt();
            self.running.push(first);
        }
    }

    /// Why a thread does not run, if it does not.
    fn stop_of(&self, tracee: &Tracee) -> io::Result<Option<Stop>> {
        if self.is_child && tracee.tid().0 == self.pid.0 {
            // The end is left for whoever started it.
            let Some(pid) = crate::linux::pid::raw(self.pid) else { return Ok(None) };
            let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if !matches!(waitid(WaitId::Pid(pid), options), Ok(Some(_))) {
                return Ok(None);
            }
        }
        tracee.stopped()
    }

    fn let_go(&mut self) -> Duration {
        let mut tracees = self.detach_held();
        let pause = self.since.elapsed();
        // One that has not stopped cannot be let go of: it is asked to, and will.
        let deadline = Instant::now() + RELEASE_LIMIT;
        while !self.running.is_empty() && self.gather().is_ok() && Instant::now() < deadline {
            tracees.extend(self.detach_held());
            std::thread::yield_now();
        }
        tracees.extend(self.detach_held());
        for tracee in tracees {
            self.make_sure(&tracee);
        }
        for tracee in std::mem::take(&mut self.running) {
            tracing::warn!("thread {} of process {} is held until its tracer ends", tracee.tid().0, self.pid);
        }
        pause
    }

    fn detach_held(&mut self) -> Vec<Tracee> {
        let held = std::mem::take(&mut self.held);
        held.into_iter().filter(|held| held.release == Release::Detach).map(|held| detach(&held)).collect()
    }

    /// A thread whose process has called exec is another one than was stopped, and is traced still; one that was killed waits
    /// for its end to be seen.
    fn make_sure(&self, tracee: &Tracee) {
        let is_ours = || tasks::status(self.pid, tracee.tid()).is_some_and(|status| status.tracer == Some(own_tid()));
        let deadline = Instant::now() + RELEASE_LIMIT;
        while is_ours() && Instant::now() < deadline {
            let _ = tracee.interrupt();
            match self.stop_of(tracee) {
                Err(_) | Ok(Some(Stop::Ended(_))) => return,
                Ok(Some(stop)) => drop(tracee.detach(stop)),
                Ok(None) => std::thread::yield_now(),
            }
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if !self.held.is_empty() || !self.running.is_empty() {
            self.let_go();
        }
    }
}

/// Lets go of a thread. What it did when it was stopped goes on.
fn detach(held: &Held) -> Tracee {
    let Held { tracee, stop, .. } = held;
    if *stop == Stop::Trap
        && let Ok(Some(registers)) = tracee.registers()
        && let Some(undisturbed) = registers.undisturbed()
    {
        let _ = tracee.set_registers(&undisturbed);
    }
    if let Err(error) = tracee.detach(*stop) {
        tracing::warn!("thread {} cannot be let go of: {error}", tracee.tid().0);
    }
    tracee.clone()
}

#[cfg(test)]
mod tests;
