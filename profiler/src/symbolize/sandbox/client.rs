//! The agent's side: starts the symbolizer, sends requests, and enforces time limits.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use heapbpf_linux::companion::Companion;
use heapbpf_linux::confinement::Confinement;

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
        let start = Instant::now();
        let limit = time_limit(files);
        let result = self.try_name(files, depth, question, limit.min(left), take);
        self.spent += start.elapsed();
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
        limit: Duration,
        mut take: impl FnMut(Names),
    ) -> io::Result<()> {
        self.start()?;
        let deadline = Instant::now() + limit;
        self.open(files, depth, deadline)?;
        let mut rest = question;
        while rest.len() > 0 {
            let (request, asked) = rest.request();
            let Reply::Names(names) = self.ask(&request, &[], deadline)? else {
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
        match self.receive(Instant::now() + START_TIME_MAX)? {
            Reply::Ready(confinement) => self.confinement = Some(confinement),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        tracing::debug!(confinement = ?self.confinement, "symbolizer started");
        Ok(())
    }

    fn open(&mut self, files: &Files<'_>, depth: Depth, deadline: Instant) -> io::Result<()> {
        let roles: Vec<Role> = files.iter().map(|(role, _)| role.clone()).collect();
        // A file that is too large for a copy is opened by the symbolizer, which may have to wait for its file system.
        let copy = |image: &Image| image.sealed_copy(COPY_BYTES_MAX).ok();
        let mut copies: Vec<Option<File>> =
            files.iter().map(|(_, image)| if image.is_whole() { None } else { copy(image) }).collect();
        let descriptors = descriptors(files, &copies);
        let reply = self.ask(&Request::Open { roles: roles.clone(), depth }, &descriptors, deadline)?;
        let Reply::Opened(refused) = reply else { return Err(io::ErrorKind::InvalidData.into()) };
        if refused.is_empty() {
            return Ok(());
        }
        // Without capabilities the symbolizer has only the rights of its user.
        for index in refused {
            let (Some((_, image)), Some(file)) = (files.get(index), copies.get_mut(index)) else { continue };
            *file = file.take().or_else(|| copy(image));
        }
        match self.ask(&Request::Open { roles, depth }, &self::descriptors(files, &copies), deadline)? {
            Reply::Opened(_) => Ok(()),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn ask(&mut self, request: &Request, descriptors: &[BorrowedFd<'_>], deadline: Instant) -> io::Result<Reply> {
        let channel = self.process.as_ref().and_then(Companion::channel).ok_or(io::ErrorKind::NotConnected)?;
        channel.send(&encode(request), descriptors)?;
        self.receive(deadline)
    }

    fn receive(&self, deadline: Instant) -> io::Result<Reply> {
        let channel = self.process.as_ref().and_then(Companion::channel).ok_or(io::ErrorKind::NotConnected)?;
        let wait = || loop {
            if self.interrupt.is_raised() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            if channel.readable(left.min(POLL))? {
                return Ok(());
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
