//! The agent's side: starts the symbolizer, sends requests, and enforces time limits.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use heapbpf_base::ids::Pid;
use heapbpf_linux::clock;
use heapbpf_linux::companion::Companion;
use heapbpf_linux::confinement::Confinement;
use heapbpf_linux::proc::stat::Stat;

use super::{
    COMMAND, Depth, MEMORY_BYTES_MAX, MODULE_TIME, MODULE_TIME_MAX, Names, Question, REPLY_BYTES_MAX, Reply, Request,
    Role, TIME_PER_BYTES, TOTAL_TIME_MAX, decode, encode,
};
use crate::object::image::Image;

const POLL: Duration = Duration::from_millis(50);
const EXIT_TIME_MAX: Duration = Duration::from_secs(1);
const START_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum size of a file to copy because the symbolizer may not open it.
const COPY_BYTES_MAX: u64 = 256 << 20;

/// Aborts symbolization: the remaining locations get no names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub(crate) fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(in crate::symbolize) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Time that the symbolizer may take: that of the processor, and what it waits for files. What it waits for a processor on a busy machine
/// does not count, nor does time in which the whole machine stands still.
#[derive(Debug)]
struct Allowance {
    limit: Duration,
    spent: Duration,
    /// Processor time at the last poll.
    cpu_ns: u64,
    polled: Instant,
}

impl Allowance {
    fn new(limit: Duration) -> Self {
        Self { limit, spent: Duration::ZERO, cpu_ns: 0, polled: Instant::now() }
    }

    /// Begins to count again, before an answer is waited for.
    fn resume(&mut self, pid: Pid) {
        self.cpu_ns = clock::process_cpu_ns(pid).unwrap_or(0);
        self.polled = Instant::now();
    }

    /// Counts what has passed since the last poll.
    fn spend(&mut self, pid: Pid) {
        let cpu_ns = clock::process_cpu_ns(pid).unwrap_or(self.cpu_ns);
        let elapsed = std::mem::replace(&mut self.polled, Instant::now()).elapsed();
        let is_ready = Stat::read(pid).is_ok_and(|stat| stat.state == 'R');
        self.add(Duration::from_nanos(cpu_ns.saturating_sub(self.cpu_ns)), elapsed, is_ready);
        self.cpu_ns = cpu_ns;
    }

    fn add(&mut self, cpu: Duration, elapsed: Duration, is_ready: bool) {
        let waited = if is_ready { Duration::ZERO } else { elapsed.min(POLL * 2) };
        self.spent += cpu.max(waited);
    }

    fn is_spent(&self) -> bool {
        self.spent >= self.limit
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::symbolize) enum Failed {
    #[error("the symbolizer could not be started: {0}")]
    Start(String),
    #[error("the symbolizer crashed: {0}")]
    Signal(String),
    #[error("the symbolizer exited early, with {0}")]
    Exit(i32),
    #[error("the symbolizer sent a malformed answer")]
    Answer,
    #[error("naming it exceeded {} s", .0.as_secs())]
    ModuleTime(Duration),
    #[error("naming all modules exceeded {} s", TOTAL_TIME_MAX.as_secs())]
    TotalTime,
    #[error("interrupted by the user")]
    Interrupted,
}

impl Failed {
    /// Other modules will fail for the same reason.
    pub(in crate::symbolize) fn is_final(&self) -> bool {
        matches!(self, Self::Start(_) | Self::TotalTime | Self::Interrupted)
    }

    /// The process ended by itself, or was not started.
    fn is_crash(&self) -> bool {
        matches!(self, Self::Start(_) | Self::Signal(_) | Self::Exit(_))
    }
}

static CRASHES: AtomicU64 = AtomicU64::new(0);

/// Number of symbolizer processes that crashed, exited early or could not be started since this process started.
pub(crate) fn crashes() -> u64 {
    CRASHES.load(Ordering::Relaxed)
}

pub(in crate::symbolize) type Files<'a> = [(Role, &'a Image)];

#[derive(Debug)]
pub(in crate::symbolize) struct Sandbox {
    process: Option<Companion>,
    interrupt: Interrupt,
    /// Once it has started.
    pub(in crate::symbolize) confinement: Option<Confinement>,
    /// Processes that crashed, exited early or could not be started.
    pub(in crate::symbolize) crashes: u64,
    /// Time spent since the last release.
    spent: Duration,
}

impl Sandbox {
    pub(in crate::symbolize) fn new(interrupt: Interrupt) -> Self {
        Self { process: None, interrupt, confinement: None, crashes: 0, spent: Duration::ZERO }
    }

    pub(in crate::symbolize) fn release(&mut self) {
        self.end();
        self.spent = Duration::ZERO;
    }

    /// Passes the answers to `take` in order, as they arrive. Fails if not all addresses have an answer.
    pub(in crate::symbolize) fn name(
        &mut self,
        files: &Files<'_>,
        depth: Depth,
        question: Question<'_>,
        take: impl FnMut(Names),
    ) -> Result<(), Failed> {
        if self.interrupt.is_raised() {
            return Err(Failed::Interrupted);
        }
        let left = TOTAL_TIME_MAX.checked_sub(self.spent).filter(|left| !left.is_zero()).ok_or(Failed::TotalTime)?;
        let limit = time_limit(files);
        let mut allowance = Allowance::new(limit.min(left));
        let result = self.try_name(files, depth, question, &mut allowance, take);
        self.spent += allowance.spent;
        result.map_err(|error| match self.judge(&error) {
            Failed::ModuleTime(_) if limit < left => Failed::ModuleTime(limit),
            Failed::ModuleTime(_) => Failed::TotalTime,
            failed => failed,
        })
    }

    fn try_name(
        &mut self,
        files: &Files<'_>,
        depth: Depth,
        question: Question<'_>,
        allowance: &mut Allowance,
        mut take: impl FnMut(Names),
    ) -> io::Result<()> {
        self.start()?;
        self.open(files, depth, allowance)?;
        let mut rest = question;
        while rest.len() > 0 {
            let (request, asked) = rest.request();
            let Reply::Names(names) = self.ask(&request, &[], allowance)? else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            if !names.is_valid(asked, question) {
                return Err(io::ErrorKind::InvalidData.into());
            }
            rest = rest.after(names.answers.len());
            take(names);
        }
        Ok(())
    }

    fn start(&mut self) -> io::Result<()> {
        if self.process.is_some() {
            return Ok(());
        }
        self.process = Some(Companion::start(COMMAND).map_err(|error| io::Error::other(error.to_string()))?);
        match self.receive(&mut Allowance::new(START_TIME_MAX))? {
            Reply::Ready(confinement) => self.confinement = Some(confinement),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        tracing::debug!(confinement = ?self.confinement, "symbolizer started");
        Ok(())
    }

    fn open(&mut self, files: &Files<'_>, depth: Depth, allowance: &mut Allowance) -> io::Result<()> {
        let roles: Vec<Role> = files.iter().map(|(role, _)| role.clone()).collect();
        // A file that is too large for a copy is opened by the symbolizer, which may have to wait for its file system.
        let copy = |image: &Image| image.sealed_copy(COPY_BYTES_MAX).ok();
        let mut copies: Vec<Option<File>> =
            files.iter().map(|(_, image)| if image.is_whole() { None } else { copy(image) }).collect();
        let descriptors = descriptors(files, &copies);
        let reply = self.ask(&Request::Open { roles: roles.clone(), depth }, &descriptors, allowance)?;
        let Reply::Opened(refused) = reply else { return Err(io::ErrorKind::InvalidData.into()) };
        if refused.is_empty() {
            return Ok(());
        }
        // Without capabilities the symbolizer has only the rights of its user.
        for index in refused {
            let (Some((_, image)), Some(file)) = (files.get(index), copies.get_mut(index)) else { continue };
            *file = file.take().or_else(|| copy(image));
        }
        match self.ask(&Request::Open { roles, depth }, &self::descriptors(files, &copies), allowance)? {
            Reply::Opened(_) => Ok(()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn ask(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        allowance: &mut Allowance,
    ) -> io::Result<Reply> {
        let channel = self.process.as_ref().and_then(Companion::channel).ok_or(io::ErrorKind::NotConnected)?;
        channel.send(&encode(request), descriptors)?;
        self.receive(allowance)
    }

    fn receive(&self, allowance: &mut Allowance) -> io::Result<Reply> {
        let process = self.process.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let channel = process.channel().ok_or(io::ErrorKind::NotConnected)?;
        allowance.resume(process.pid());
        let wait = || loop {
            if self.interrupt.is_raised() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let is_answered = channel.readable(POLL)?;
            allowance.spend(process.pid());
            if is_answered {
                return Ok(());
            }
            if allowance.is_spent() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        };
        let message = channel.receive_while(REPLY_BYTES_MAX, wait)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        // Descriptors in replies are unexpected, and closed.
        decode(&message.bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn judge(&mut self, error: &io::Error) -> Failed {
        let failed = match error.kind() {
            io::ErrorKind::Interrupted => Failed::Interrupted,
            io::ErrorKind::TimedOut => Failed::ModuleTime(Duration::ZERO),
            io::ErrorKind::InvalidData => Failed::Answer,
            io::ErrorKind::Other => Failed::Start(error.to_string()),
            _ => self.exit_reason(),
        };
        self.end();
        if failed.is_crash() {
            CRASHES.fetch_add(1, Ordering::Relaxed);
            self.crashes += 1;
            // One of many modules, or of a process that a filter of system calls kills each time.
            if self.crashes == 1 {
                tracing::warn!("names are missing: {failed}");
            }
        }
        failed
    }

    fn exit_reason(&mut self) -> Failed {
        let Some(process) = &mut self.process else { return Failed::Start("it is gone".to_owned()) };
        let deadline = Instant::now() + EXIT_TIME_MAX;
        let status = loop {
            match process.exit_status() {
                None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                status => break status,
            }
        };
        match status.map(|status| (status.signal(), status.code())) {
            Some((Some(signal), _)) => Failed::Signal(describe(signal)),
            Some((None, code)) => Failed::Exit(code.unwrap_or(-1)),
            None => Failed::Answer,
        }
    }

    fn end(&mut self) {
        if let Some(process) = self.process.take() {
            // It has no state that must be saved.
            process.abandon();
        }
    }
}

pub(crate) fn confinement() -> Result<Confinement, String> {
    let mut sandbox = Sandbox::new(Interrupt::default());
    match sandbox.start() {
        Ok(()) => sandbox.confinement.ok_or_else(|| Failed::Answer.to_string()),
        Err(error) => Err(sandbox.judge(&error).to_string()),
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        self.end();
    }
}

fn descriptors<'a>(files: &'a Files<'_>, copies: &'a [Option<File>]) -> Vec<BorrowedFd<'a>> {
    let files = files.iter().map(|(_, image)| image.file());
    files.zip(copies).map(|(file, copy)| copy.as_ref().unwrap_or(file).as_fd()).collect()
}

fn time_limit(files: &Files<'_>) -> Duration {
    let bytes: u64 = files.iter().map(|(_, image)| image.identity().size_bytes).fold(0, u64::saturating_add);
    (MODULE_TIME + Duration::from_secs(bytes / TIME_PER_BYTES)).min(MODULE_TIME_MAX)
}

fn describe(signal: i32) -> String {
    match signal {
        libc::SIGBUS => "SIGBUS (the file was truncated meanwhile)".to_owned(),
        libc::SIGSEGV => "SIGSEGV".to_owned(),
        libc::SIGABRT => format!("SIGABRT (its memory limit is {} GiB)", MEMORY_BYTES_MAX >> 30),
        libc::SIGSYS => "SIGSYS (a forbidden system call)".to_owned(),
        libc::SIGXCPU => "SIGXCPU (its CPU time limit)".to_owned(),
        libc::SIGKILL => "SIGKILL".to_owned(),
        signal => format!("signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_symbolizer_uses_or_waits_for_counts() {
        let milliseconds = Duration::from_millis;
        let mut allowance = Allowance::new(milliseconds(300));
        // It waits for a processor, which the machine gives to others; then the machine stands still for a minute.
        allowance.add(milliseconds(10), milliseconds(50), true);
        allowance.add(milliseconds(10), milliseconds(60_000), true);
        assert_eq!(allowance.spent, milliseconds(20));
        allowance.add(Duration::ZERO, milliseconds(60_000), false);
        assert_eq!((allowance.spent, allowance.is_spent()), (milliseconds(120), false));
        // It waits for a file that does not come.
        allowance.add(Duration::ZERO, milliseconds(50), false);
        allowance.add(milliseconds(130), milliseconds(130), true);
        assert!(allowance.is_spent());
    }
}
