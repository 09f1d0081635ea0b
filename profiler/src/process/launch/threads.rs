//! All threads of a launched program, each traced, so that the program can be held when it ends as a whole, and be stopped at
//! any time. Refuses to hold children that it makes, and threads that end alone: others may wait for them.

use std::io;
use std::time::Duration;

use crate::ids::{Pid, Tid};
use crate::linux::ptrace::{Options, Pause, Stop, Tracee};

/// How a thread is traced whose program is held when it ends.
pub(super) const OPTIONS: Options = Options::EXIT.and(Options::THREADS);

/// Longest wait for the last threads of a program that ends: one that waits for a disk does not.
const END_WAIT: Duration = Duration::from_secs(1);

/// See the module. The first thread is the first; it stays when it has ended, for the others' sake.
#[derive(Debug)]
pub(super) struct Threads {
    threads: Vec<Thread>,
    /// Processes of their own, traced because clone has made them without a signal of their end: let go when they stop.
    strangers: Vec<Tracee>,
    /// What happened while something else was waited for.
    untold: Option<News>,
    /// It ends as a whole, and was told to.
    exiting: bool,
}

#[derive(Debug)]
struct Thread {
    tracee: Tracee,
    at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Runs,
    /// For this reason.
    Held(Stop),
    /// Held at its end, which is not its alone.
    End {
        /// Why it is known that the whole program ends.
        sign: Sign,
    },
    /// Was let go at its end.
    Past,
}

/// What a thread's end says of the others'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    /// It was killed by what another thread does: `exit_group`, or exec.
    None,
    /// `exit_group`, or a signal.
    Whole,
    /// A signal that may be of a filter that ends one thread.
    Filter,
}

/// What has become of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Its first thread is held at an exec, and there is no other.
    Exec,
    /// All threads that it has are held at their end.
    Exiting,
    /// It has ended, and how.
    Ended(Stop),
}

/// How much of a program has come to its end.
enum Ending {
    None,
    Partly(Sign),
    All,
}

impl Threads {
    /// Of a program that has one thread, which is held.
    pub(super) fn new(first: Tracee) -> Self {
        Self {
            threads: vec![Thread { tracee: first, at: At::Runs }],
            strangers: Vec::new(),
            untold: None,
            exiting: false,
        }
    }

    fn pid(&self) -> Pid {
        self.threads[0].tracee.pid()
    }

    /// What has happened. Lets signals through, and threads come and go. Does not block, unless some threads have come to
    /// their end and others are about to.
    pub(super) fn news(&mut self) -> io::Result<Option<News>> {
        let mut pause: Option<Pause> = None;
        if let Some(news) = self.untold.take() {
            return Ok(Some(news));
        }
        while !self.exiting {
            if let Some(news) = self.attend()? {
                return Ok(Some(news));
            }
            let sign = match self.ending() {
                Ending::None => return Ok(None),
                Ending::All => break,
                Ending::Partly(sign) => sign,
            };
            self.relist();
            if self.is_in_exec() {
                self.let_end()?;
            } else if !pause.get_or_insert_with(|| Pause::new(END_WAIT)).wait() {
                if sign == Sign::Whole {
                    break;
                }
                self.let_end()?;
            }
        }
        self.exiting = true;
        Ok(Some(News::Exiting))
    }

    /// A held first thread runs.
    pub(super) fn runs(&mut self) {
        self.threads[0].at = At::Runs;
    }

    /// Lets all run that are held.
    pub(super) fn run(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.exiting) {
            self.let_end()?;
        }
        let held = |threads: &[Thread]| threads.iter().position(|thread| matches!(thread.at, At::Held(_)));
        while self.untold.is_none()
            && let Some(index) = held(&self.threads)
        {
            let thread = &mut self.threads[index];
            let At::Held(stop) = std::mem::replace(&mut thread.at, At::Runs) else { continue };
            // A signal that kills does not wait for held threads to be let run.
            match thread.tracee.stopped()? {
                Some(stop) => self.untold = self.take(index, stop)?,
                None => run(&thread.tracee, stop)?,
            }
        }
        Ok(())
    }

    /// The threads that are held, and why.
    pub(super) fn held(&self) -> Vec<(Tracee, Stop)> {
        let held = self.threads.iter().filter_map(|thread| match thread.at {
            At::Held(stop) => Some((thread.tracee.clone(), stop)),
            At::End { .. } => Some((thread.tracee.clone(), Stop::Exiting)),
            At::Runs | At::Past => None,
        });
        held.collect()
    }

    /// Stops all threads, wherever they are; false if that does not come to pass in time, or the program calls exec or ends
    /// instead. Those that have stopped are held either way.
    pub(super) fn stop(&mut self, limit: Duration) -> io::Result<bool> {
        let mut pause = Pause::new(limit);
        let mut asked: Vec<Tid> = Vec::new();
        loop {
            self.relist();
            for thread in &self.threads {
                if thread.at == At::Runs && !asked.contains(&thread.tracee.tid()) {
                    thread.tracee.interrupt()?;
                    asked.push(thread.tracee.tid());
                }
            }
            while let Some((index, stop)) = self.next_stop()? {
                match self.take(index, stop)? {
                    Some(news) => {
                        self.untold = Some(news);
                        return Ok(false);
                    }
                    None if self.threads.get(index).is_some_and(|thread| thread.at == At::Past) => {}
                    None => self.hold(index, stop),
                }
            }
            if !self.threads.iter().any(|thread| thread.at == At::Runs) {
                self.relist();
                if !self.threads.iter().any(|thread| thread.at == At::Runs) {
                    return Ok(true);
                }
            }
            if !pause.wait() {
                return Ok(false);
            }
        }
    }

    /// Lets go of all, as far as they can be stopped. Returns those that cannot, and how the program has ended, if it has.
    pub(super) fn release(mut self, limit: Duration) -> io::Result<(Vec<Tracee>, Option<Stop>)> {
        self.stop(limit)?;
        if let Some(News::Ended(stop)) = self.untold {
            return Ok((self.strangers, Some(stop)));
        }
        let mut left = self.strangers;
        for Thread { tracee, at } in self.threads {
            match at {
                At::Runs => left.push(tracee),
                At::Held(stop) => {
                    undisturb(&tracee, stop)?;
                    tracee.detach(stop)?;
                }
                At::End { .. } => tracee.detach(Stop::Exiting)?,
                At::Past => {}
            }
        }
        Ok((left, None))
    }

    /// A thread that another has made, as its stop says.
    pub(super) fn adopt(&mut self, maker: &Tracee) -> io::Result<()> {
        if let Some(number) = maker.event_message()?
            && let Ok(number) = u32::try_from(number)
        {
            let tid = Tid(number);
            if self.has(tid) {
                self.add(tid);
            } else {
                self.strangers.push(Tracee::of(tid));
            }
        }
        Ok(())
    }

    /// Attends to all stops that have come; to be told is what the first of them means for the program.
    fn attend(&mut self) -> io::Result<Option<News>> {
        while let Some((index, stop)) = self.next_stop()? {
            let news = self.take(index, stop)?;
            if news.is_some() {
                return Ok(news);
            }
            if let Some(thread) = self.threads.get_mut(index)
                && thread.at == At::Runs
                && !matches!(stop, Stop::Ended(_))
            {
                run(&thread.tracee, stop)?;
            }
        }
        Ok(None)
    }

    /// The next thread that has stopped or ended. Forgets those that are not there to be asked.
    fn next_stop(&mut self) -> io::Result<Option<(usize, Stop)>> {
        self.strangers.retain(|tracee| match tracee.stopped() {
            Ok(Some(stop)) => tracee.detach(stop).is_err(),
            Ok(None) => true,
            Err(_) => false,
        });
        let mut index = 0;
        while let Some(thread) = self.threads.get(index) {
            if matches!(thread.at, At::Runs | At::Past) {
                match thread.tracee.stopped() {
                    Ok(None) => {}
                    Ok(Some(stop)) => return Ok(Some((index, stop))),
                    // It was reaped, or has taken the first one's place at an exec.
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

    /// What a stop says about the threads that there are. Lets none run but those that end alone.
    fn take(&mut self, index: usize, stop: Stop) -> io::Result<Option<News>> {
        let tracee = self.threads[index].tracee.clone();
        match stop {
            Stop::Ended(_) if index == 0 => return Ok(Some(News::Ended(stop))),
            Stop::Ended(_) => {
                self.threads.swap_remove(index);
            }
            Stop::Exec => {
                // An exec ends all other threads, and whichever calls it becomes the first.
                self.threads.truncate(1);
                self.threads[0].at = At::Held(stop);
                return Ok(Some(News::Exec));
            }
            Stop::Clone => self.adopt(&tracee)?,
            Stop::Exiting => self.take_end(index, &tracee)?,
            _ => {}
        }
        Ok(None)
    }

    /// A thread has come to its end.
    fn take_end(&mut self, index: usize, tracee: &Tracee) -> io::Result<()> {
        // Of a 32-bit program there are none that are understood.
        let number = tracee.registers().ok().flatten().map_or(-1, |registers| registers.orig_rax.cast_signed());
        let signal = tracee.event_message()?.map_or(0, |status| status & 0x7f);
        let ends = |thread: &Thread| matches!(thread.at, At::Past | At::End { .. });
        let is_last = self.threads.iter().enumerate().all(|(other, thread)| other == index || ends(thread));
        self.threads[index].at = if number == libc::SYS_exit && !is_last {
            tracee.run(Stop::Exiting)?;
            At::Past
        } else {
            let sign = match signal {
                _ if number == libc::SYS_exit_group => Sign::Whole,
                0 => Sign::None,
                signal if signal == libc::SIGSYS as u64 => Sign::Filter,
                _ => Sign::Whole,
            };
            At::End { sign }
        };
        Ok(())
    }

    /// A thread that is held.
    pub(super) fn hold(&mut self, index: usize, stop: Stop) {
        if let Some(thread) = self.threads.get_mut(index)
            && thread.at == At::Runs
            && !matches!(stop, Stop::Ended(_))
        {
            thread.at = At::Held(stop);
        }
    }

    fn ending(&self) -> Ending {
        let mut sign = None;
        let mut others = false;
        for thread in &self.threads {
            match thread.at {
                At::End { sign: own } if own == Sign::None => sign = sign.or(Some(own)),
                At::End { sign: own } => sign = Some(own),
                At::Runs | At::Held(_) => others = true,
                At::Past => {}
            }
        }
        match sign {
            None => Ending::None,
            Some(sign) if others => Ending::Partly(sign),
            Some(_) => Ending::All,
        }
    }

    /// Lets those end that are held at their end.
    fn let_end(&mut self) -> io::Result<()> {
        for thread in &mut self.threads {
            if matches!(thread.at, At::End { .. }) {
                thread.at = At::Past;
                thread.tracee.run(Stop::Exiting)?;
            }
        }
        Ok(())
    }

    /// Whether a thread waits for all others to end, so that it can run another program.
    fn is_in_exec(&self) -> bool {
        let mut running = self.threads.iter().filter(|thread| thread.at == At::Runs);
        running.any(|thread| {
            let entry = format!("/proc/{}/task/{}/syscall", self.pid(), thread.tracee.pid());
            let call = std::fs::read_to_string(entry).unwrap_or_default();
            let number = call.split(' ').next().and_then(|number| number.parse::<libc::c_long>().ok());
            matches!(number, Some(libc::SYS_execve | libc::SYS_execveat))
        })
    }

    /// Finds threads whose maker was killed before it could tell of them.
    fn relist(&mut self) {
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{}/task", self.pid())) else { return };
        let numbers = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok());
        for number in numbers {
            self.add(Tid(number));
        }
    }

    fn add(&mut self, tid: Tid) {
        if !self.threads.iter().any(|thread| thread.tracee.tid() == tid) {
            self.threads.push(Thread { tracee: Tracee::of(tid), at: At::Runs });
        }
    }

    /// Whether a thread is one of the program's.
    fn has(&self, tid: Tid) -> bool {
        std::path::Path::new(&format!("/proc/{}/task/{}", self.pid(), tid.0)).exists()
    }
}

/// Lets a thread run that is held, as if it had not been.
fn run(tracee: &Tracee, stop: Stop) -> io::Result<()> {
    undisturb(tracee, stop)?;
    tracee.run(stop)
}

/// Has a thread that was asked to stop notice nothing of it.
fn undisturb(tracee: &Tracee, stop: Stop) -> io::Result<()> {
    if stop == Stop::Trap
        && let Ok(Some(registers)) = tracee.registers()
        && let Some(undisturbed) = registers.undisturbed()
    {
        tracee.set_registers(&undisturbed)?;
    }
    Ok(())
}
