//! Stops all threads of a process. They resume when [`Stopped`] is dropped, or the tracing process is killed.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heapbpf_base::address::TargetAddr;
use heapbpf_base::ids::{Pid, Tid};
use heapbpf_linux::arch;
use heapbpf_linux::pidfd::raw_pid;
use heapbpf_linux::proc::maps::Region;
use heapbpf_linux::proc::process::thread_name;
use heapbpf_linux::proc::stat::{self, Stat};
use heapbpf_linux::ptrace::{Options, Stop, Tracee};
use rustc_hash::FxHashSet;
use rustix::process::{WaitId, WaitIdOptions, waitid};

use super::fork::ForkCopy;
use super::inject::{self, InjectedThread};
use super::process::{CollectError, ForkError, Release, StopLimit, StoppedThread, ThreadState};

/// Time limit for threads to stop. A thread that waits for a disk stops when the disk has answered.
const STOP_SECONDS_MAX: u64 = 2;

/// Time limit for threads that have not stopped when the others resume. Later, the kernel detaches them when the tracing thread exits.
const RUNNING_LIMIT: Duration = Duration::from_millis(200);
/// Time limit for resuming threads that have stopped. On a busy machine, each has to be given a processor first.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);
/// Polling interval while threads resume, which leaves the processor to them.
const RELEASE_PERIOD: Duration = Duration::from_micros(50);

/// Result of resuming a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Released {
    /// How long the process was stopped.
    pub(crate) pause: Duration,
    /// Whether the calling thread traces none of its threads any more. The others are detached when the calling thread exits.
    pub(crate) is_complete: bool,
}

impl Default for Released {
    fn default() -> Self {
        Self { pause: Duration::ZERO, is_complete: true }
    }
}

#[derive(Debug)]
pub(crate) struct Stopped {
    pid: Pid,
    held: Vec<StoppedThread>,
    /// Threads whose stop is requested, but not confirmed.
    running: Vec<Tracee>,
    /// Exited threads that are still listed: an exited first thread waits for the others.
    ended: Vec<Tid>,
    /// Whether the process is a child of this process, whose exit status is left to others.
    is_child: bool,
    /// Thread that reaps killed threads. It runs while there are several threads, until all have stopped.
    reaper: Option<Reaper>,
    since: Instant,
    limit: Option<StopLimit>,
}

impl Stopped {
    /// Stops all threads of a process except those in `held`, which are stopped already. On errors, all resume.
    #[cfg(test)]
    pub(crate) fn new(pid: Pid, held: Vec<StoppedThread>) -> Result<Self, CollectError> {
        Self::new_within(pid, held, None, &|| true)
    }

    /// Stops all threads except those in `held`. Fails with [`CollectError::StoppedForLong`] when the time is up, for
    /// [`states`](Self::states) too. Calls `is_wanted` while a thread takes long, and fails with [`CollectError::Interrupted`]
    /// when it returns false.
    pub(crate) fn new_within(
        pid: Pid,
        held: Vec<StoppedThread>,
        limit: Option<StopLimit>,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Self, CollectError> {
        living_thread(pid)?;
        let is_child = stat::status(pid, Tid(pid.0)).is_some_and(|status| status.parent.0 == std::process::id());
        let (running, ended, since) = (Vec::new(), Vec::new(), Instant::now());
        let mut stopped = Self { pid, held, running, ended, is_child, reaper: None, since, limit };
        stopped.stop_all(stopped.since + Duration::from_secs(STOP_SECONDS_MAX), is_wanted)?;
        stopped.check_limit()?;
        Ok(stopped)
    }

    pub(crate) fn living_thread(&self) -> Pid {
        let first = self.held.iter().find(|held| held.tracee.tid().0 == self.pid.0).or(self.held.first());
        first.map_or(self.pid, |held| held.tracee.pid())
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> &[StoppedThread] {
        &self.held
    }

    /// State of all threads. Fails when the process was killed meanwhile, or runs 32-bit code.
    pub(crate) fn states(&self) -> Result<Vec<ThreadState>, CollectError> {
        self.held.iter().map(|held| self.state(held)).collect()
    }

    fn check_limit(&self) -> Result<(), CollectError> {
        self.limit.map_or(Ok(()), |limit| limit.check(self.pid))
    }

    fn state(&self, held: &StoppedThread) -> Result<ThreadState, CollectError> {
        self.check_limit()?;
        let tracee = &held.tracee;
        let registers = tracee.registers().map_err(|source| match source.raw_os_error() {
            Some(libc::EINVAL) => CollectError::Is32Bit(self.pid),
            _ => CollectError::refused(self.pid, "read the registers of")(source),
        })?;
        let registers = registers.ok_or(CollectError::Ended(self.pid))?;
        let mut words = registers.general().to_vec();
        // Compilers keep pointers in vector registers too. Reading them fails on processors without such registers.
        words.extend(arch::extended_words(tracee).unwrap_or_default());
        let status = if held.stop == Stop::Exiting { tracee.event_message().ok().flatten() } else { None };
        Ok(ThreadState {
            tid: tracee.tid(),
            registers: words,
            instruction: TargetAddr(registers.instruction()),
            stack_pointer: TargetAddr(registers.stack_pointer()),
            thread_pointer: TargetAddr(registers.thread_pointer()),
            in_syscall: tracee.is_in_syscall(&registers),
            exit_status: status.and_then(|status| i32::try_from(status).ok()),
        })
    }

    pub(crate) fn fork(&self, mapped: &[Region]) -> Result<ForkCopy, ForkError> {
        ForkCopy::make(self.pid, &self.held, mapped)
    }

    /// Makes a thread make system calls.
    pub(crate) fn inject(
        &self,
        mapped: &[Region],
        work: &mut dyn FnMut(&mut InjectedThread) -> io::Result<()>,
    ) -> Result<(), ForkError> {
        inject::inject(self.pid, &self.held, mapped, &mut |thread| {
            work(thread).map_err(|error| ForkError::Trace(self.pid, error))
        })
    }

    pub(crate) fn release(self) -> Duration {
        self.release_all().pause
    }

    pub(crate) fn release_all(mut self) -> Released {
        self.resume()
    }

    /// Stops listed threads until no new ones appear: a running thread can create others.
    fn stop_all(&mut self, deadline: Instant, is_wanted: &dyn Fn() -> bool) -> Result<(), CollectError> {
        loop {
            let listed = stat::threads(self.pid)?;
            let held = self.held.iter().map(|held| held.tracee.tid());
            let known: FxHashSet<Tid> = held.chain(self.ended.iter().copied()).collect();
            let new: Vec<Tid> = listed.into_iter().filter(|tid| !known.contains(tid)).collect();
            if new.is_empty() {
                if let Some(reaper) = self.reaper.take() {
                    self.held.retain(|held| !reaper.has_reaped(held.tracee.tid()));
                }
                return if self.held.is_empty() { Err(CollectError::Ended(self.pid)) } else { Ok(()) };
            }
            // The deadline holds on a busy machine, too: if the first threads have taken that long, there are others then.
            if !self.held.is_empty() && Instant::now() >= deadline {
                return Err(CollectError::StillForking { pid: self.pid, seconds: STOP_SECONDS_MAX });
            }
            if self.reaper.is_none() && self.held.len() + new.len() > 1 {
                self.reaper =
                    Some(Reaper::start(self.pid).map_err(CollectError::refused(self.pid, "start a thread to stop"))?);
            }
            // All threads are traced before any is stopped, so that they are stopped for a shorter time.
            let seized = new.into_iter().try_for_each(|tid| self.seize(tid));
            if self.held.is_empty() {
                self.since = Instant::now();
            }
            self.interrupt_running();
            seized?;
            self.wait(deadline, is_wanted)?;
        }
    }

    fn seize(&mut self, tid: Tid) -> Result<(), CollectError> {
        let mut tries_left = 3;
        let tracee = loop {
            tries_left -= 1;
            match Tracee::seize_thread(tid, Options::default()) {
                Ok(tracee) => break tracee,
                // The thread has exited since it was listed.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => match self.explain_refusal(tid) {
                    // This may have been an exited first thread, whose TID another thread has taken over by its exec.
                    Err(CollectError::NotPermitted(_)) if tries_left > 0 => {}
                    result => return result,
                },
                Err(error) => return Err(CollectError::refused(self.pid, "trace")(error)),
            }
        };
        self.running.push(tracee);
        Ok(())
    }

    /// Stops the traced threads. From here on, `Drop` detaches them. A thread that has exited is found by
    /// [`gather`](Self::gather).
    fn interrupt_running(&self) {
        for tracee in &self.running {
            if let Err(error) = tracee.interrupt() {
                tracing::debug!("cannot stop thread {} of process {}: {error}", tracee.tid().0, self.pid);
            }
        }
    }

    /// Determines why a thread cannot be traced. Returns `Ok` if it exits.
    fn explain_refusal(&mut self, tid: Tid) -> Result<(), CollectError> {
        let Some(status) = stat::status(self.pid, tid) else { return Ok(()) };
        if matches!(status.state, 'Z' | 'X') {
            self.ended.push(tid);
            return Ok(());
        }
        let Some(tracer) = status.tracer else { return Err(CollectError::NotPermitted(self.pid)) };
        if tracer == own_tid() {
            // The holder of the other threads has released this one to exit.
            self.ended.push(tid);
            return Ok(());
        }
        let name = thread_name(Pid(tracer.0), tracer).unwrap_or_default();
        Err(CollectError::Traced { pid: self.pid, tid, tracer, name })
    }

    fn wait(&mut self, deadline: Instant, is_wanted: &dyn Fn() -> bool) -> Result<(), CollectError> {
        let mut idle_since = Instant::now();
        loop {
            // Threads stop in about this order; polling each of many would take the CPU time that they need to stop.
            let only_next = idle_since.elapsed() < Duration::from_millis(1);
            if self.gather(only_next)? {
                idle_since = Instant::now();
            }
            let Some(first) = self.running.first() else { return Ok(()) };
            self.check_limit()?;
            let now = Instant::now();
            if now >= deadline {
                let tid = first.tid();
                let state = stat::status(self.pid, tid).map_or('?', |status| status.state);
                return Err(CollectError::Stuck { pid: self.pid, tid, state, seconds: STOP_SECONDS_MAX });
            }
            match now.duration_since(idle_since).as_micros() {
                // Sleeping leaves this CPU to the threads that are to stop, whatever its priority.
                0..20_000 => std::thread::sleep(Duration::from_micros(20)),
                // The exit of a child is not reaped here, and visible only in its state.
                // The first thread may have exited before others.
                _ if self.held.is_empty() && living_thread(self.pid).is_err() => {
                    return Err(CollectError::Ended(self.pid));
                }
                _ if !is_wanted() => return Err(CollectError::Interrupted(self.pid)),
                _ => {
                    self.set_aside_exited();
                    self.remove_killed()?;
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// Sets exited threads aside. The kernel reports the first thread's exit only after those of all others, so it is not
    /// awaited.
    fn set_aside_exited(&mut self) {
        let has_ended = |tid| stat::status(self.pid, tid).is_some_and(|status| matches!(status.state, 'Z' | 'X'));
        let ended = self.running.extract_if(.., |tracee| has_ended(tracee.tid()));
        self.ended.extend(ended.map(|tracee| tracee.tid()));
    }

    /// Removes stopped threads that were killed since by an exec of another thread, which waits until they are reaped.
    fn remove_killed(&mut self) -> Result<(), CollectError> {
        let mut held = std::mem::take(&mut self.held);
        held.retain_mut(|held| match self.stop_of(&held.tracee) {
            // The holder of these threads handles them.
            _ if held.release == Release::Keep => true,
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

    /// Takes the stops of threads. Returns whether any has stopped or ended. `only_next` leaves those after the first thread that
    /// has not.
    fn gather(&mut self, only_next: bool) -> Result<bool, CollectError> {
        let (mut has_moved, mut has_ended) = (false, false);
        let mut left = std::mem::take(&mut self.running).into_iter();
        for tracee in left.by_ref() {
            let stop = self.stop_of(&tracee);
            if only_next && matches!(stop, Ok(None)) {
                self.running.push(tracee);
                break;
            }
            has_moved |= !matches!(stop, Ok(None));
            match stop {
                Ok(None) => self.running.push(tracee),
                // The signal is delivered first: if heapbpf exited before the thread is detached, the signal would be lost.
                Ok(Some(stop @ Stop::Signal(_))) => {
                    let stops = tracee.interrupt().and_then(|()| tracee.run(stop));
                    self.running.push(tracee);
                    stops.map_err(CollectError::refused(self.pid, "stop"))?;
                }
                Ok(Some(Stop::Ended(_))) => has_ended |= tracee.tid().0 == self.pid.0,
                Ok(Some(stop)) => self.held.push(StoppedThread { tracee, stop, release: Release::Detach }),
                Err(_) if self.reaper.as_ref().is_some_and(|reaper| reaper.has_reaped(tracee.tid())) => {}
                Err(_) => self.follow_exec(),
            }
        }
        self.running.extend(left);
        if has_ended { Err(CollectError::Ended(self.pid)) } else { Ok(has_moved) }
    }

    /// Handles an exec: a thread that disappeared without exiting has called exec. It is the first thread now, and about to stop.
    fn follow_exec(&mut self) {
        let first = Tracee::of(Tid(self.pid.0));
        if stat::status(self.pid, first.tid()).is_some_and(|status| status.tracer == Some(own_tid())) {
            self.ended.retain(|&tid| tid != first.tid());
            self.held.retain(|held| held.tracee.tid() != first.tid());
            self.running.retain(|tracee| tracee.tid() != first.tid());
            // The first thread may have become traced only by the exec.
            let _ = first.interrupt();
            self.running.push(first);
        }
    }

    fn stop_of(&self, tracee: &Tracee) -> io::Result<Option<Stop>> {
        if self.is_child && tracee.tid().0 == self.pid.0 {
            // The exit status is left for the parent.
            let Some(pid) = heapbpf_linux::pidfd::raw_pid(self.pid) else { return Ok(None) };
            let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            if !matches!(waitid(WaitId::Pid(pid), options), Ok(Some(_))) {
                return Ok(None);
            }
        }
        tracee.stopped()
    }

    fn resume(&mut self) -> Released {
        let mut tracees = self.detach_held();
        let pause = self.since.elapsed();
        // Running threads cannot be detached before they stop, which was requested.
        let deadline = Instant::now() + RUNNING_LIMIT;
        while !self.running.is_empty() && self.gather(false).is_ok() && Instant::now() < deadline {
            tracees.extend(self.detach_held());
            std::thread::sleep(RELEASE_PERIOD);
        }
        tracees.extend(self.detach_held());
        let traced = tracees.iter().filter(|tracee| !self.ensure_detached(tracee)).count();
        let running = std::mem::take(&mut self.running);
        for tracee in &running {
            tracing::debug!("thread {} of process {} is detached when its tracer exits", tracee.tid().0, self.pid);
        }
        // An exited first thread may still be traced.
        Released { pause, is_complete: traced == 0 && running.is_empty() && self.ended.is_empty() }
    }

    fn detach_held(&mut self) -> Vec<Tracee> {
        let held = std::mem::take(&mut self.held);
        held.into_iter().filter(|held| held.release == Release::Detach).map(|held| detach(&held)).collect()
    }

    /// Detaches from a thread that may still be traced. After an exec, the TID belongs to another thread, which is still traced;
    /// a killed thread waits to be reaped. Returns whether the thread is not traced any more.
    fn ensure_detached(&self, tracee: &Tracee) -> bool {
        let is_ours = || stat::status(self.pid, tracee.tid()).is_some_and(|status| status.tracer == Some(own_tid()));
        let deadline = Instant::now() + RELEASE_LIMIT;
        while is_ours() {
            if Instant::now() >= deadline {
                return false;
            }
            let _ = tracee.interrupt();
            match self.stop_of(tracee) {
                Err(_) | Ok(Some(Stop::Ended(_))) => return true,
                Ok(Some(stop)) => drop(tracee.detach(stop)),
                Ok(None) => std::thread::sleep(RELEASE_PERIOD),
            }
        }
        true
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        if !self.held.is_empty() || !self.running.is_empty() {
            self.resume();
        }
    }
}

fn detach(held: &StoppedThread) -> Tracee {
    let StoppedThread { tracee, stop, .. } = held;
    let _ = tracee.restart_syscall(*stop);
    if let Err(error) = tracee.detach(*stop) {
        tracing::warn!("cannot detach from thread {}: {error}", tracee.tid().0);
    }
    tracee.clone()
}

/// Returns the first thread of a process, or another one if the first has exited. Fails for kernel threads, for heapbpf itself,
/// and for exited processes.
pub(crate) fn living_thread(pid: Pid) -> Result<Pid, CollectError> {
    if pid.0 == std::process::id() {
        return Err(CollectError::Itself(pid));
    }
    let own = std::fs::read_link("/proc/self").unwrap_or_default();
    if own.as_os_str() != std::process::id().to_string().as_str() {
        return Err(CollectError::Elsewhere(pid));
    }
    match Stat::read(pid)? {
        stat if stat.kernel_thread => Err(CollectError::Kernel(pid)),
        stat if !stat.has_ended() => Ok(pid),
        _ => stat::living_thread(pid).ok_or(CollectError::Ended(pid)),
    }
}

/// Polling interval of the reaper, coarse because threads often exit by themselves.
const PERIOD: Duration = Duration::from_millis(20);

/// Reaps stopped threads that were killed, in a second thread: an exec waits for that, and `PTRACE_SEIZE` of a thread that calls
/// exec waits in the kernel for the exec without a limit, which would be a deadlock. Stops when it is dropped.
#[derive(Debug)]
struct Reaper {
    reaped: Arc<Mutex<Vec<Tid>>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reaper {
    fn start(pid: Pid) -> io::Result<Self> {
        let reaped = Arc::new(Mutex::new(Vec::new()));
        let (list, tracer) = (Arc::clone(&reaped), own_tid());
        let (stop, stopped) = mpsc::channel();
        let work = move || {
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                reap(pid, tracer, &list);
            }
        };
        let thread = std::thread::Builder::new().name("collect-reap".to_owned()).spawn(work)?;
        Ok(Self { reaped, stop: Some(stop), thread: Some(thread) })
    }

    fn has_reaped(&self, tid: Tid) -> bool {
        self.reaped.lock().unwrap_or_else(PoisonError::into_inner).contains(&tid)
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.stop = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn own_tid() -> Tid {
    Tid(rustix::thread::gettid().as_raw_pid().unsigned_abs())
}

/// Reaps killed threads except the first thread, whose exit is that of the process.
fn reap(pid: Pid, tracer: Tid, reaped: &Mutex<Vec<Tid>>) {
    let threads = stat::threads(pid).unwrap_or_default().into_iter().filter(|tid| tid.0 != pid.0);
    let is_killed = |tid: &Tid| {
        stat::status(pid, *tid).is_some_and(|status| status.tracer == Some(tracer) && matches!(status.state, 'Z'))
    };
    // Stops are left for the tracing thread.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let options = options | WaitIdOptions::from_bits_retain(libc::__WALL.unsigned_abs());
    for tid in threads.filter(is_killed) {
        let Some(id) = raw_pid(Pid(tid.0)).map(WaitId::Pid) else { continue };
        // Reaping is under the lock, so that the other thread knows of it when it finds the thread gone.
        let mut list = reaped.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(waitid(id, options), Ok(Some(_))) {
            list.push(tid);
        }
    }
}

#[cfg(test)]
mod tests;
