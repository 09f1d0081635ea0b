//! Names snapshots and writes them, on a thread of its own: the session goes on meanwhile. Owns the outputs and what names
//! are known. A dump that cannot be written is told at once and at the end, and costs nothing else.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};

use tokio::sync::oneshot;

use super::output::{Access, Output};
use super::progress::ProgressLine;
use super::{is_broken_pipe, numbered};
use crate::model::Profile;
use crate::recording::entry::Names;
use crate::recording::names::names;
use crate::report::suppressions::Suppressions;
use crate::report::{Format, Presentation, View, window};
use crate::snapshot::{Scope, Snapshot};
use crate::symbolize::profile::profile;
use crate::symbolize::resolver::Resolver;
use crate::symbolize::sandbox::Interrupt;

/// How to write.
#[derive(Clone, Debug)]
pub(super) struct Style {
    /// How reports are presented.
    pub(super) presentation: Presentation,
    /// The format of all of them, whatever their files are called.
    pub(super) format: Option<Format>,
    /// Leave runtime plumbing out of stacks.
    pub(super) trims: bool,
    /// Keep the names of all places.
    pub(super) keeps_names: bool,
    /// Growing callsites that are not told of.
    pub(super) suppressions: Suppressions,
    /// Write the targets at their peaks as well, at the end.
    pub(super) with_peak: bool,
    /// Say nothing of dumps that were written.
    pub(super) quiet: bool,
}

/// The end of a recording, written.
#[derive(Debug)]
pub(super) struct Written {
    /// The whole recording.
    pub(super) profile: Profile,
    /// Its files.
    pub(super) files: Vec<(PathBuf, Format)>,
    /// Something went to standard output.
    pub(super) to_stdout: bool,
    /// The names of all places, where they were to be kept.
    pub(super) names: Names,
    /// Something could not be written, which was told.
    pub(super) failed: bool,
}

/// The thread at work.
pub(super) struct Writing {
    snapshots: Sender<Job>,
    /// Dumps that are not written yet.
    open: Arc<AtomicUsize>,
    thread: JoinHandle<Result<Written>>,
    /// Ends when the thread does.
    running: oneshot::Receiver<()>,
    interrupt: Interrupt,
}

/// Dumps that are not written yet, at most.
const OPEN_MAX: usize = 16;

enum Job {
    Window(Snapshot),
    /// The last one.
    End(Snapshot),
}

impl Writing {
    /// Waits for snapshots to write to these outputs.
    ///
    /// # Errors
    ///
    /// If there can be no thread.
    pub(super) fn start(outputs: Vec<Output>, style: Style, line: ProgressLine) -> Result<Self> {
        let (snapshots, jobs) = mpsc::channel();
        let open = Arc::new(AtomicUsize::new(0));
        let paths = outputs.iter().filter_map(Output::path).map(Into::into).collect();
        let counter = Arc::clone(&open);
        let (ended, running) = oneshot::channel();
        let interrupt = Interrupt::default();
        let of_thread = interrupt.clone();
        // The resolver cannot be sent, so it is made there.
        let work = move || {
            // Dropped at the end, however that comes.
            let _ended: oneshot::Sender<()> = ended;
            let worker = Worker { paths, style, line, resolver: Resolver::sandboxed(of_thread), failed: false };
            worker.work(&jobs, &counter, outputs)
        };
        let thread = thread::Builder::new().name("heapbpf-write".to_owned());
        let thread = thread.spawn(work).context("cannot start a thread")?;
        Ok(Self { snapshots, open, thread, running, interrupt })
    }

    /// Has the window of a snapshot written.
    pub(super) fn dump(&self, snapshot: Snapshot) {
        self.open.fetch_add(1, Ordering::Relaxed);
        // Where the thread has ended before its time, the end tells.
        let _ = self.snapshots.send(Job::Window(snapshot));
    }

    /// Whether a dump is still being written.
    pub(super) fn is_busy(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// Whether a further dump may wait. Each holds all callsites of its time.
    pub(super) fn has_room(&self) -> bool {
        self.open.load(Ordering::Relaxed) < OPEN_MAX
    }

    /// Has all of a recording written and waits until it is. When `stop` ends before, what has no name yet gets none.
    ///
    /// # Errors
    ///
    /// If the thread has ended before its time.
    pub(super) async fn finish(self, snapshot: Snapshot, stop: impl Future<Output = ()>) -> Result<Written> {
        let _ = self.snapshots.send(Job::End(snapshot));
        tokio::select! {
            _ = self.running => {}
            () = stop => self.interrupt.raise(),
        }
        self.thread.join().map_err(|_| anyhow!("the thread that writes reports has panicked"))?
    }
}

/// What the thread has.
struct Worker {
    /// Files that windows are named after.
    paths: Vec<PathBuf>,
    style: Style,
    line: ProgressLine,
    resolver: Resolver,
    failed: bool,
}

impl Worker {
    fn work(mut self, jobs: &Receiver<Job>, open: &AtomicUsize, outputs: Vec<Output>) -> Result<Written> {
        for job in jobs {
            match job {
                Job::Window(snapshot) => {
                    self.write_window(&snapshot);
                    open.fetch_sub(1, Ordering::Relaxed);
                }
                Job::End(snapshot) => return Ok(self.write_end(&snapshot, outputs)),
            }
        }
        Err(anyhow!("the recording ended without a last snapshot"))
    }

    fn name(&self, snapshot: &Snapshot, scope: Scope) -> Profile {
        let start = Instant::now();
        let mut profile = profile(snapshot, scope, &self.resolver, self.style.trims);
        tracing::debug!(elapsed = ?start.elapsed(), frames = profile.frames.len(), "named");
        profile.suppress(&self.style.suppressions);
        profile
    }

    fn write_window(&mut self, snapshot: &Snapshot) {
        let Some(number) = snapshot.window_of(Scope::Window).and_then(|window| window.number) else { return };
        let profile = self.name(snapshot, Scope::Window);
        let paths = self.paths.iter().map(|path| numbered::of_window(path, number)).collect();
        let presentation = self.style.presentation.clone();
        self.write_beside(&profile, &presentation, paths);
        // Between dumps names are kept, and not what they were read from.
        self.resolver.release();
    }

    fn write_peak(&mut self, snapshot: &Snapshot) {
        let profile = self.name(snapshot, Scope::Peak);
        let paths = self.paths.iter().map(|path| numbered::of_peak(path)).collect();
        // What was allocated until then is not known.
        let view = match self.style.presentation.view {
            View::LiveBytes | View::AllocBytes => View::LiveBytes,
            View::LiveCount | View::AllocCount => View::LiveCount,
        };
        let presentation = Presentation { view, ..self.style.presentation.clone() };
        self.write_beside(&profile, &presentation, paths);
    }

    /// Writes to files beside the outputs, and says so.
    fn write_beside(&mut self, profile: &Profile, presentation: &Presentation, paths: Vec<PathBuf>) {
        let mut written = Vec::new();
        let shown = presentation.thinned(profile);
        for path in paths {
            let report = |output: Output| {
                let format = output.format();
                output.write(|out| Ok(format.write(&shown, presentation, out)?))
            };
            match Output::open(&path, self.style.format, Access::All).and_then(report) {
                Ok(_) => written.push(path.display().to_string()),
                Err(error) => self.fail(&error),
            }
        }
        if !self.style.quiet && !written.is_empty() {
            self.line.say(&format!("heapbpf: wrote {} ({})", written.join(", "), window::outcome(profile)));
        }
    }

    fn write_end(mut self, snapshot: &Snapshot, outputs: Vec<Output>) -> Written {
        if snapshot.window.is_some() {
            self.write_window(snapshot);
        }
        if self.style.with_peak {
            self.write_peak(snapshot);
        }
        let profile = self.name(snapshot, Scope::Whole);
        let names = if self.style.keeps_names { names(snapshot, &self.resolver) } else { Names::default() };
        let presentation = &self.style.presentation.clone();
        let shown = presentation.thinned(&profile);
        let (mut files, mut to_stdout) = (Vec::new(), false);
        for output in outputs {
            let format = output.format();
            to_stdout |= output.path().is_none();
            match output.write(|out| Ok(format.write(&shown, presentation, out)?)) {
                Ok(path) => files.extend(path.map(|path| (path, format))),
                // Who reads no more has what was wanted.
                Err(error) if is_broken_pipe(&error) => {}
                Err(error) => self.fail(&error),
            }
        }
        drop(shown);
        Written { profile, files, to_stdout, failed: self.failed, names }
    }

    fn fail(&mut self, error: &anyhow::Error) {
        self.failed = true;
        self.line.say(&format!("heapbpf: error: {error:#}"));
    }
}
