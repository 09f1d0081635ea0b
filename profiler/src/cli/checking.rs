//! Checks looks for leaks and tells what was found, on a thread of its own: what is looked at goes on meanwhile.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, bail};
use bytesize::ByteSize;
use tokio::sync::oneshot;

use super::output::{Access, Output};
use super::progress::ProgressLine;
use super::{exit, is_broken_pipe, numbered, terminal};
use crate::address::TargetAddr;
use crate::check::heap_snapshot::HeapSnapshot;
use crate::check::{Plan, check};
use crate::ids::Pid;
use crate::report::text::printable;
use crate::report::unreachable::Unreachable;
use crate::report::unreachable::json::write_json;
use crate::report::unreachable::text::{Style, write_text};
use crate::report::{Format, Presentation, View};
use crate::symbolize::resolver::Resolver;
use crate::symbolize::sandbox::Interrupt;

/// Where to tell.
pub(super) struct Telling {
    /// Files, for the last check.
    pub(super) outputs: Vec<Output>,
    /// The format of all of them, whatever they are called.
    pub(super) format: Option<Format>,
    /// Only in files.
    pub(super) quiet: bool,
    /// Standard output is another program's.
    pub(super) to_stderr: bool,
}

/// The thread at work.
pub(super) struct Checking {
    /// `None` at the end.
    looks: Option<Sender<HeapSnapshot>>,
    /// Looks that are not checked yet.
    open: Arc<AtomicUsize>,
    /// `None` when it was waited for.
    thread: Option<JoinHandle<Result<Option<bool>>>>,
    /// Ends when the thread does.
    running: Option<oneshot::Receiver<()>>,
    interrupt: Interrupt,
}

impl Checking {
    /// Waits for looks.
    ///
    /// # Errors
    ///
    /// If there can be no thread.
    pub(super) fn start(plan: Plan, telling: Telling) -> Result<Self> {
        let (looks, jobs) = mpsc::channel();
        let open = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&open);
        let (ended, running) = oneshot::channel();
        let interrupt = Interrupt::default();
        let of_thread = interrupt.clone();
        // The resolver cannot be sent, so it is made there.
        let work = move || {
            // Dropped at the end, however that comes.
            let _ended: oneshot::Sender<()> = ended;
            Worker { plan, telling, resolver: Resolver::sandboxed(of_thread), count: 0 }.work(&jobs, &counter)
        };
        let thread = thread::Builder::new().name("heapbpf-check".to_owned());
        let thread = thread.spawn(work).context("cannot start a thread")?;
        Ok(Self { looks: Some(looks), open, thread: Some(thread), running: Some(running), interrupt })
    }

    /// Has a look checked.
    pub(super) fn check(&self, look: HeapSnapshot) {
        self.open.fetch_add(1, Ordering::Relaxed);
        // Where the thread has ended before its time, the end tells.
        if let Some(looks) = &self.looks {
            let _ = looks.send(look);
        }
    }

    /// Whether a look is being checked. Each holds a copy of the process's memory.
    pub(super) fn is_busy(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// Waits for all checks. The exit code, `otherwise` where there were no leaks.
    ///
    /// # Errors
    ///
    /// If something could not be told, or nothing was looked at.
    pub(super) fn finish(mut self, otherwise: u8) -> Result<u8> {
        let ended = self.end().context("the thread that checks was waited for already")?;
        match ended.map_err(|_| anyhow!("the thread that checks has panicked"))?? {
            Some(true) => Ok(exit::LEAKS),
            Some(false) => Ok(otherwise),
            None if otherwise == exit::INCOMPLETE => {
                Err(anyhow!("no heap was inspected: the keeper process exited before"))
            }
            None => Err(anyhow!("nothing was looked at: the process ended before")),
        }
    }

    /// Waits until all checks are done. When `stop` ends before, what has no name yet gets none.
    pub(super) async fn done(&mut self, stop: impl Future<Output = ()>) {
        self.looks = None;
        let Some(running) = self.running.take() else { return };
        tokio::select! {
            _ = running => {}
            () = stop => self.interrupt.raise(),
        }
    }

    /// Has the thread end, and waits for it.
    fn end(&mut self) -> Option<thread::Result<Result<Option<bool>>>> {
        self.looks = None;
        self.thread.take().map(JoinHandle::join)
    }
}

impl Drop for Checking {
    /// Waits for the thread where something else has failed: what it has begun to write is taken away by it.
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// What the thread has.
struct Worker {
    plan: Plan,
    telling: Telling,
    resolver: Resolver,
    /// Looks that were checked.
    count: u32,
}

impl Worker {
    /// Whether the last look found leaks; `None` where there was none.
    fn work(mut self, looks: &Receiver<HeapSnapshot>, open: &AtomicUsize) -> Result<Option<bool>> {
        let mut last: Option<Unreachable> = None;
        for look in looks {
            // Files with the names that were asked for are those of the last one.
            if let Some(earlier) = last.take() {
                self.count += 1;
                self.write_numbered(&earlier)?;
            }
            let line = ProgressLine::new(self.telling.quiet || self.telling.to_stderr);
            line.begin(work(&look));
            let found = check(look, &self.plan, &self.resolver);
            line.clear();
            let found = found?;
            if found.watched_ns.is_none() && found.known.count == 0 {
                let pid = found.target().map_or(Pid(0), |target| target.pid);
                bail!(
                    "nothing is known of the heap of process `{pid}`: {}; watch what it allocates from now on: `heapbpf leaks --pid {pid} --watch 60s`",
                    why_nothing_is_known(&found)
                );
            }
            self.say(&found, self.count == 0)?;
            last = Some(found);
            open.fetch_sub(1, Ordering::Relaxed);
            self.resolver.release();
        }
        let Some(found) = last else { return Ok(None) };
        for output in std::mem::take(&mut self.telling.outputs) {
            write(output, &found, self.plan.with_contents)?;
        }
        Ok(Some(found.leak_count > 0))
    }

    fn write_numbered(&self, found: &Unreachable) -> Result<()> {
        let paths: Vec<PathBuf> = self.telling.outputs.iter().filter_map(Output::path).map(Into::into).collect();
        for path in paths {
            write(
                Output::open(&numbered::of_window(&path, self.count), self.telling.format, Access::Owner)?,
                found,
                self.plan.with_contents,
            )?;
        }
        Ok(())
    }

    fn say(&self, found: &Unreachable, is_first: bool) -> Result<()> {
        if self.telling.quiet {
            return Ok(());
        }
        let write_text = |found: &Unreachable, style: Style, out: &mut dyn Write| {
            if !is_first {
                writeln!(out)?;
            }
            write_text(found, style, out)
        };
        let is_taken = self.telling.to_stderr || self.telling.outputs.iter().any(|output| output.path().is_none());
        let (width, colour) = terminal::layout();
        let style = Style { width, colour: colour && !is_taken, contents: self.plan.with_contents };
        let written = if is_taken {
            // Nobody has to listen.
            let _ = write_text(found, style, &mut terminal::errors());
            Ok(())
        } else {
            write_text(found, style, &mut terminal::output())
        };
        match written.map_err(anyhow::Error::from) {
            // Who reads no more has what was wanted.
            Err(error) if is_broken_pipe(&error) => Ok(()),
            written => written,
        }
    }
}

/// What a check is about: `looking for leaks in 1.3 GiB of redis-server's memory`.
fn work(look: &HeapSnapshot) -> String {
    let parts = look.collected.memory.present(TargetAddr(0)..TargetAddr(u64::MAX));
    let bytes: u64 = parts.iter().map(|part| part.end.0 - part.start.0).sum();
    let comm = look.state.targets.first().map_or("the process", |target| target.facts.comm.as_str());
    format!("looking for leaks in {} of {}'s memory", ByteSize(bytes), printable(comm))
}

/// Why no heap could be walked.
fn why_nothing_is_known(found: &Unreachable) -> String {
    let gaps: Vec<&str> = found.heaps.iter().flat_map(|heap| &heap.gaps).map(String::as_str).collect();
    if gaps.is_empty() {
        return "its allocator is none whose bookkeeping heapbpf reads (glibc, musl, jemalloc)".to_owned();
    }
    gaps.join("; ")
}

fn write(output: Output, found: &Unreachable, contents: bool) -> Result<()> {
    let presentation = Presentation { view: View::LiveBytes, by: Vec::new(), threshold: None, icicle: false };
    let format = output.format();
    output.write(|out| match format {
        Format::Json => Ok(write_json(found, contents, out)?),
        _ => Ok(format.write(&found.profile, &presentation, out)?),
    })?;
    Ok(())
}
