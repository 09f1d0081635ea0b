//! Traces all threads of a launched program, so that it can be held when it exits as a whole, and be stopped. Does not
//! hold its children, nor threads that exit alone: others may wait for them. Also detaches later from processes in an
//! uninterruptible wait, as in `vfork` or a frozen control group, which would stay stopped when they wake up.

use std::cell::RefCell;
use std::io;
use std::time::Duration;

use heapbpf_base::ids::{Pid, Tid};
use heapbpf_linux::proc::stat;
use heapbpf_linux::ptrace::{Options, Pause, Stop, Tracee};
use tracing::debug;

pub(super) const OPTIONS: Options = Options::EXIT.and(Options::THREADS);

/// Time limit for the last threads of a program that exits, except those that wait for a disk.
const END_WAIT: Duration = Duration::from_secs(1);

/// Threads of a program. The first thread is always the first in the list, and stays in it after its exit.
#[derive(Debug)]
pub(super) struct Threads {
    threads: Vec<Thread>,
    /// Processes that are traced because clone created them without a termination signal; they are detached when they stop.
    foreign: Vec<Tracee>,
    pending: Option<Change>,
    /// Whether all threads are held at their exit, and this was reported.
    exiting: bool,
}

#[derive(Debug)]
struct Thread {
    tracee: Tracee,
    state: ThreadState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadState {
    Running,
    Held(Stop),
    /// The thread is held at an exit that is not its alone.
    Exiting(Evidence),
    /// The thread was resumed at its exit.
    Exited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    /// There is none: the thread was killed by another thread's `exit_group` or exec.
    None,
    /// The process exits, by `exit_group` or a signal.
    ProcessExit,
    /// The thread got SIGSYS, which a seccomp filter may send to one thread.
    Filter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The first thread of the program is held at an exec, and there is no other.
    Exec,
    Exiting,
    Ended(Stop),
}

impl Threads {
    /// Threads of a program that has one thread, which is held.
    pub(super) fn new(first: Tracee) -> Self {
        Self {
            threads: vec![Thread { tracee: first, state: ThreadState::Running }],
            foreign: Vec::new(),
            pending: None,
            exiting: false,
        }
    }

    fn pid(&self) -> Pid {
        self.threads[0].tracee.pid()
    }

    /// Returns the next change. Delivers signals, and handles new and exiting threads. Does not block, unless some
    /// threads have reached their exit and others are about to.
    pub(super) fn next_change(&mut self) -> io::Result<Option<Change>> {
        let mut pause: Option<Pause> = None;
        if let Some(change) = self.pending.take() {
            return Ok(Some(change));
        }
        while !self.exiting {
            if let Some(change) = self.handle_stops()? {
                return Ok(Some(change));
            }
            let evidence = match self.exit_progress() {
                None => return Ok(None),
                Some((_, false)) => break,
                Some((evidence, true)) => evidence,
            };
            self.add_listed();
            if self.is_in_exec() {
                self.resume_exiting()?;
            } else if !pause.get_or_insert_with(|| Pause::new(END_WAIT)).wait() {
                if evidence == Evidence::ProcessExit {
                    break;
                }
                self.resume_exiting()?;
            }
        }
        self.exiting = true;
        Ok(Some(Change::Exiting))
    }

    /// Adds the first thread, which is held at its exit; others may run.
    pub(super) fn add_exiting_first(&mut self) -> io::Result<()> {
        self.record(0, Stop::Exiting).map(drop)
    }

    pub(super) fn first_resumed(&mut self) {
        self.threads[0].state = ThreadState::Running;
    }

    pub(super) fn resume(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.exiting) {
            self.resume_exiting()?;
        }
        let held = |threads: &[Thread]| threads.iter().position(|thread| matches!(thread.state, ThreadState::Held(_)));
        while self.pending.is_none()
            && let Some(index) = held(&self.threads)
        {
            let thread = &mut self.threads[index];
            let ThreadState::Held(stop) = std::mem::replace(&mut thread.state, ThreadState::Running) else { continue };
            // A fatal signal does not wait until held threads are resumed.
            match thread.tracee.stopped()? {
                Some(stop) => self.pending = self.record(index, stop)?,
                None => resume(&thread.tracee, stop)?,
            }
        }
        Ok(())
    }

    pub(super) fn held(&self) -> Vec<(Tracee, Stop)> {
        let held = self.threads.iter().filter_map(|thread| match thread.state {
            ThreadState::Held(stop) => Some((thread.tracee.clone(), stop)),
            ThreadState::Exiting(_) => Some((thread.tracee.clone(), Stop::Exiting)),
            ThreadState::Running | ThreadState::Exited => None,
        });
        held.collect()
    }

    /// Stops all threads. Returns false after the time limit, or if the program calls exec or exits instead; threads that have
    /// stopped stay held.
    pub(super) fn stop(&mut self, limit: Duration) -> io::Result<bool> {
        let mut pause = Pause::new(limit);
        let mut requested: Vec<Tid> = Vec::new();
        loop {
            self.add_listed();
            for thread in &self.threads {
                if thread.state == ThreadState::Running && !requested.contains(&thread.tracee.tid()) {
                    thread.tracee.interrupt()?;
                    requested.push(thread.tracee.tid());
                }
            }
            while let Some((index, stop)) = self.next_stop()? {
                match self.record(index, stop)? {
                    Some(change) => {
                        self.pending = Some(change);
                        return Ok(false);
                    }
                    None if self.threads.get(index).is_some_and(|thread| thread.state == ThreadState::Exited) => {}
                    None => self.hold(index, stop),
                }
            }
            if !self.has_running() {
                self.add_listed();
                if !self.has_running() {
                    return Ok(true);
                }
            }
            if !pause.wait() {
                return Ok(false);
            }
        }
    }

    /// Detaches from all threads that can be stopped. Returns the other threads, and how the program has exited, if it has.
    pub(super) fn release(mut self, limit: Duration) -> io::Result<(Vec<Tracee>, Option<Stop>)> {
        self.stop(limit)?;
        if let Some(Change::Ended(stop)) = self.pending {
            return Ok((self.foreign, Some(stop)));
        }
        let mut left = self.foreign;
        for Thread { tracee, state } in self.threads {
            match state {
                ThreadState::Running => left.push(tracee),
                ThreadState::Held(stop) => {
                    tracee.restart_syscall(stop)?;
                    tracee.detach(stop)?;
                }
                ThreadState::Exiting(_) => tracee.detach(Stop::Exiting)?,
                ThreadState::Exited => {}
            }
        }
        Ok((left, None))
    }

    pub(super) fn add_created(&mut self, creator: &Tracee) -> io::Result<()> {
        if let Some(number) = creator.event_message()?
            && let Ok(number) = u32::try_from(number)
        {
            let tid = Tid(number);
            if self.has(tid) {
                self.add(tid);
            } else {
                self.foreign.push(Tracee::of(tid));
            }
        }
        Ok(())
    }

    fn handle_stops(&mut self) -> io::Result<Option<Change>> {
        while let Some((index, stop)) = self.next_stop()? {
            let change = self.record(index, stop)?;
            if change.is_some() {
                return Ok(change);
            }
            if let Some(thread) = self.threads.get_mut(index)
                && thread.state == ThreadState::Running
                && !matches!(stop, Stop::Ended(_))
            {
                resume(&thread.tracee, stop)?;
            }
        }
        Ok(None)
    }

    /// Returns the next thread that has stopped or exited. Removes threads that are gone.
    fn next_stop(&mut self) -> io::Result<Option<(usize, Stop)>> {
        self.foreign.retain(|tracee| match tracee.stopped() {
            Ok(Some(stop)) => tracee.detach(stop).is_err(),
            Ok(None) => true,
            Err(_) => false,
        });
        let mut index = 0;
        while let Some(thread) = self.threads.get(index) {
            if matches!(thread.state, ThreadState::Running | ThreadState::Exited) {
                match thread.tracee.stopped() {
                    Ok(None) => {}
                    Ok(Some(stop)) => return Ok(Some((index, stop))),
                    // The thread was reaped, or has become the first thread by an exec.
                    Err(_) if index > 0 => {
                        self.threads.swap_remove(index);
                        continue;
                    }
                    Err(error) => return Err(error),
                }
            }
            index += 1;
        }
        Ok(None)
    }

    /// Records a stop. Resumes only threads that exit alone.
    fn record(&mut self, index: usize, stop: Stop) -> io::Result<Option<Change>> {
        let tracee = self.threads[index].tracee.clone();
        match stop {
            Stop::Ended(_) if index == 0 => return Ok(Some(Change::Ended(stop))),
            Stop::Ended(_) => {
                self.threads.swap_remove(index);
            }
            Stop::Exec => {
                // An exec ends all other threads, and its caller becomes the first.
                self.threads.truncate(1);
                self.threads[0].state = ThreadState::Held(stop);
                return Ok(Some(Change::Exec));
            }
            Stop::Clone => self.add_created(&tracee)?,
            Stop::Exiting => self.record_exit(index, &tracee)?,
            _ => {}
        }
        Ok(None)
    }

    fn record_exit(&mut self, index: usize, tracee: &Tracee) -> io::Result<()> {
        // The registers of 32-bit programs are not supported.
        let number = tracee.registers().ok().flatten().and_then(|registers| registers.syscall()).unwrap_or(-1);
        let signal = tracee.event_message()?.map_or(0, |status| status & 0x7f);
        let exits = |thread: &Thread| matches!(thread.state, ThreadState::Exited | ThreadState::Exiting(_));
        let is_last = self.threads.iter().enumerate().all(|(other, thread)| other == index || exits(thread));
        self.threads[index].state = if number == libc::SYS_exit && !is_last {
            tracee.run(Stop::Exiting)?;
            ThreadState::Exited
        } else {
            let evidence = match signal {
                _ if number == libc::SYS_exit_group => Evidence::ProcessExit,
                0 => Evidence::None,
                signal if signal == libc::SIGSYS as u64 => Evidence::Filter,
                _ => Evidence::ProcessExit,
            };
            ThreadState::Exiting(evidence)
        };
        Ok(())
    }

    pub(super) fn hold(&mut self, index: usize, stop: Stop) {
        if let Some(thread) = self.threads.get_mut(index)
            && thread.state == ThreadState::Running
            && !matches!(stop, Stop::Ended(_))
        {
            thread.state = ThreadState::Held(stop);
        }
    }

    fn has_running(&self) -> bool {
        self.threads.iter().any(|thread| thread.state == ThreadState::Running)
    }

    /// Evidence of held threads about their exit, if there are such threads, and whether other threads remain.
    fn exit_progress(&self) -> Option<(Evidence, bool)> {
        let mut evidence = None;
        for thread in &self.threads {
            if let ThreadState::Exiting(own) = thread.state
                && (own != Evidence::None || evidence.is_none())
            {
                evidence = Some(own);
            }
        }
        let remains = |thread: &Thread| matches!(thread.state, ThreadState::Running | ThreadState::Held(_));
        Some((evidence?, self.threads.iter().any(remains)))
    }

    fn resume_exiting(&mut self) -> io::Result<()> {
        for thread in &mut self.threads {
            if matches!(thread.state, ThreadState::Exiting(_)) {
                thread.state = ThreadState::Exited;
                thread.tracee.run(Stop::Exiting)?;
            }
        }
        Ok(())
    }

    /// Whether a thread is in an exec, which waits for the exit of all others.
    fn is_in_exec(&self) -> bool {
        let mut running = self.threads.iter().filter(|thread| thread.state == ThreadState::Running);
        running.any(|thread| {
            let entry = format!("/proc/{}/task/{}/syscall", self.pid(), thread.tracee.pid());
            let call = std::fs::read_to_string(entry).unwrap_or_default();
            let number = call.split(' ').next().and_then(|number| number.parse::<libc::c_long>().ok());
            matches!(number, Some(libc::SYS_execve | libc::SYS_execveat))
        })
    }

    /// Adds threads whose creator was killed before its stop was handled.
    fn add_listed(&mut self) {
        for tid in stat::threads(self.pid()).unwrap_or_default() {
            self.add(tid);
        }
    }

    fn add(&mut self, tid: Tid) {
        if !self.threads.iter().any(|thread| thread.tracee.tid() == tid) {
            self.threads.push(Thread { tracee: Tracee::of(tid), state: ThreadState::Running });
        }
    }

    fn has(&self, tid: Tid) -> bool {
        std::path::Path::new(&format!("/proc/{}/task/{}", self.pid(), tid.0)).exists()
    }
}

fn resume(tracee: &Tracee, stop: Stop) -> io::Result<()> {
    tracee.restart_syscall(stop)?;
    tracee.run(stop)
}

thread_local! {
    /// The list is per thread, because the kernel accepts requests only from the tracing thread.
    static LEAVING: RefCell<Vec<Tracee>> = const { RefCell::new(Vec::new()) };
}

pub(super) fn add_leaving(tracee: Tracee) {
    // When the thread exits, the kernel detaches all its tracees.
    let _ = LEAVING.try_with(|leaving| leaving.borrow_mut().push(tracee));
}

/// Detaches from processes that have stopped by now. Does not block. To be called periodically on the tracing thread. Returns how
/// many have not stopped yet.
pub(crate) fn retry_releases() -> usize {
    LEAVING.with(|leaving| {
        let mut leaving = leaving.borrow_mut();
        let mut made = Vec::new();
        leaving.retain(|tracee| !try_detach(tracee, &mut made));
        leaving.append(&mut made);
        leaving.len()
    })
}

/// Detaches from a tracee if it has stopped. Returns true if it is detached, or gone. Tracees that it has created, which are
/// traced with it, are added to `made`.
fn try_detach(tracee: &Tracee, made: &mut Vec<Tracee>) -> bool {
    let detach = |stop: Stop| {
        if let (Stop::Clone | Stop::Fork, Some(number)) = (stop, tracee.event_message().ok().flatten()) {
            made.extend(u32::try_from(number).map(|number| Tracee::of(Tid(number))));
        }
        tracee.detach(stop)
    };
    let stopped = tracee.stopped().and_then(|stop| stop.map(detach).transpose());
    if let Err(error) = &stopped {
        debug!("process {}: {error}", tracee.pid());
    }
    !matches!(stopped, Ok(None))
}
