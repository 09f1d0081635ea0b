//! Symbolizes snapshots and writes reports, on a worker thread. A dump that cannot be written is reported at once and in the
//! exit code, and does not stop the recording.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, anyhow};

use super::exit::is_broken_pipe;
use super::output::{self, Access, Output};
use super::terminal::ProgressLine;
use super::worker::Worker;
use crate::model::Profile;
use crate::recording::entry::Names;
use crate::recording::names::names;
use crate::report::suppressions::Suppressions;
use crate::report::{Format, Presentation, View, window};
use crate::snapshot::{Scope, Snapshot};
use crate::symbolize::profile::profile;
use crate::symbolize::resolver::Resolver;

/// Maximum number of dumps that wait to be written. Each has all callsites of its window.
const PENDING_MAX: usize = 16;

#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) presentation: Presentation,
    /// Format of all reports, whatever their extensions.
    pub(super) format: Option<Format>,
    /// Removes frames of the language runtime.
    pub(super) trims: bool,
    /// Returns all names, for a recording.
    pub(super) keeps_names: bool,
    /// Growing callsites that are not listed as leak candidates.
    pub(super) suppressions: Suppressions,
    /// Also writes the targets at their peaks, at the end.
    pub(super) with_peak: bool,
    pub(super) quiet: bool,
}

/// Result of a recording.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) profile: Profile,
    pub(super) files: Vec<(PathBuf, Format)>,
    /// A report was written to standard output.
    pub(super) to_stdout: bool,
    pub(super) names: Names,
    /// A report could not be written; this was reported.
    pub(super) failed: bool,
}

/// Handle to the worker thread.
pub(super) struct Writer(Worker<Job, Written>);

enum Job {
    Window(Snapshot),
    End(Snapshot),
}

impl Writer {
    pub(super) fn start(outputs: Vec<Output>, options: Options, line: ProgressLine) -> Result<Self> {
        let worker = Worker::start("heapbpf-write", move |jobs, resolver| {
            let paths = outputs.iter().filter_map(Output::path).map(Into::into).collect();
            let mut state = State { paths, options, line, resolver, failed: false };
            for job in jobs {
                match job {
                    Job::Window(snapshot) => state.write_window(&snapshot),
                    Job::End(snapshot) => return Ok(state.write_end(&snapshot, outputs)),
                }
            }
            Err(anyhow!("the recording ended without a last snapshot"))
        });
        Ok(Self(worker?))
    }

    /// Writes the window of a snapshot to files of its own.
    pub(super) fn dump(&self, snapshot: Snapshot) {
        self.0.send(Job::Window(snapshot));
    }

    pub(super) fn is_busy(&self) -> bool {
        self.0.pending() > 0
    }

    pub(super) fn has_room(&self) -> bool {
        self.0.pending() < PENDING_MAX
    }

    /// Writes the reports of the whole recording. When `stop` resolves first, remaining frames are not symbolized.
    pub(super) async fn finish(self, snapshot: Snapshot, stop: impl Future<Output = ()>) -> Result<Written> {
        self.0.send(Job::End(snapshot));
        self.0.finish(stop).await
    }
}

/// State of the thread.
struct State {
    /// Files that dumps are named after.
    paths: Vec<PathBuf>,
    options: Options,
    line: ProgressLine,
    resolver: Resolver,
    failed: bool,
}

impl State {
    fn symbolize(&self, snapshot: &Snapshot, scope: Scope) -> Profile {
        let start = Instant::now();
        let mut profile = profile(snapshot, scope, &self.resolver, self.options.trims);
        tracing::debug!(elapsed = ?start.elapsed(), frames = profile.frames.len(), "symbolized");
        profile.suppress(&self.options.suppressions);
        profile
    }

    fn write_window(&mut self, snapshot: &Snapshot) {
        let Some(number) = snapshot.window_of(Scope::Window).and_then(|window| window.number) else { return };
        let profile = self.symbolize(snapshot, Scope::Window);
        let paths = self.paths.iter().map(|path| output::window_path(path, number)).collect();
        self.write_beside(&profile, &self.options.presentation.clone(), paths);
        // Keeps names between dumps, and closes the files they were read from.
        self.resolver.release();
    }

    fn write_peak(&mut self, snapshot: &Snapshot) {
        let profile = self.symbolize(snapshot, Scope::Peak);
        let paths = self.paths.iter().map(|path| output::peak_path(path)).collect();
        // Allocated bytes until the peak are not recorded.
        let view = match self.options.presentation.view {
            View::LiveBytes | View::AllocBytes => View::LiveBytes,
            View::LiveCount | View::AllocCount => View::LiveCount,
        };
        self.write_beside(&profile, &Presentation { view, ..self.options.presentation.clone() }, paths);
    }

    /// Writes reports to these paths, and prints their names.
    fn write_beside(&mut self, profile: &Profile, presentation: &Presentation, paths: Vec<PathBuf>) {
        let mut written = Vec::new();
        let shown = presentation.thinned(profile);
        for path in paths {
            let report = |output: Output| {
                let format = output.format();
                output.write(|out| Ok(format.write(&shown, presentation, out)?))
            };
            match Output::open(&path, self.options.format, Access::All).and_then(report) {
                Ok(_) => written.push(path.display().to_string()),
                Err(error) => self.fail(&error),
            }
        }
        if !self.options.quiet && !written.is_empty() {
            self.line.say(&format!("heapbpf: wrote {} ({})", written.join(", "), window::outcome(profile)));
        }
    }

    fn write_end(mut self, snapshot: &Snapshot, outputs: Vec<Output>) -> Written {
        if snapshot.window.is_some() {
            self.write_window(snapshot);
        }
        if self.options.with_peak {
            self.write_peak(snapshot);
        }
        let profile = self.symbolize(snapshot, Scope::Whole);
        let names = if self.options.keeps_names { names(snapshot, &self.resolver) } else { Names::default() };
        let presentation = &self.options.presentation.clone();
        let shown = presentation.thinned(&profile);
        let (mut files, mut to_stdout) = (Vec::new(), false);
        for output in outputs {
            let format = output.format();
            to_stdout |= output.path().is_none();
            match output.write(|out| Ok(format.write(&shown, presentation, out)?)) {
                Ok(path) => files.extend(path.map(|path| (path, format))),
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
