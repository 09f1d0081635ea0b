//! Writes reports on a worker thread. A dump that fails affects the exit code and does not stop the recording.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::bail;

use super::args::RecordArgs;
use super::exit::is_broken_pipe;
use super::output::{self, Access, Output, Written, recording_path};
use super::runtime::Worker;
use super::terminal::ProgressLine;
use crate::model::Profile;
use crate::recording::entry::Names;
use crate::recording::names::names;
use crate::report::suppressions::Suppressions;
use crate::report::{Presentation, View, describe};
use crate::snapshot::{Scope, Snapshot};
use crate::symbolize::profile::profile;
use crate::symbolize::resolver::Resolver;

pub(super) struct Reports {
    pub(super) profile: Profile,
    pub(super) written: Written,
    pub(super) names: Names,
    pub(super) failed: bool,
}

pub(super) type Writer = Worker<Job, Reports>;

pub(super) enum Job {
    Window(Snapshot),
    End(Snapshot),
}

pub(super) fn start_writer(
    args: &RecordArgs,
    outputs: Vec<Output>,
    suppressions: Suppressions,
    line: ProgressLine,
) -> Writer {
    let args = args.clone();
    Worker::start(move |jobs, resolver| {
        let paths = outputs.iter().filter_map(Output::path).map(Into::into).collect();
        let presentation = args.presentation.presentation();
        let mut state = State { paths, args, presentation, suppressions, line, resolver, failed: false };
        for (job, _pending) in jobs {
            match job {
                Job::Window(snapshot) => state.write_window(&snapshot),
                Job::End(snapshot) => return Ok(state.write_end(&snapshot, outputs)),
            }
        }
        bail!("the recording ended without a last snapshot")
    })
}

struct State {
    paths: Vec<PathBuf>,
    args: RecordArgs,
    presentation: Presentation,
    suppressions: Suppressions,
    line: ProgressLine,
    resolver: Resolver,
    failed: bool,
}

impl State {
    fn symbolize(&self, snapshot: &Snapshot, scope: Scope) -> Profile {
        let start = Instant::now();
        let mut profile = profile(snapshot, scope, &self.resolver, self.args.common.output.trim);
        tracing::debug!(elapsed = ?start.elapsed(), frames = profile.frames.len(), "symbolized");
        profile.suppress(&self.suppressions);
        profile
    }

    fn write_window(&mut self, snapshot: &Snapshot) {
        let Some(number) = snapshot.window_of(Scope::Window).and_then(|window| window.number) else { return };
        let profile = self.symbolize(snapshot, Scope::Window);
        let paths = self.paths.iter().map(|path| output::window_path(path, number)).collect();
        self.write_beside(&profile, &self.presentation.clone(), paths);
        // Keeps names between dumps, and closes the files they were read from.
        self.resolver.release();
    }

    fn write_peak(&mut self, snapshot: &Snapshot) {
        let profile = self.symbolize(snapshot, Scope::Peak);
        let paths = self.paths.iter().map(|path| output::peak_path(path)).collect();
        // Allocated bytes until the peak are not recorded.
        let view = match self.presentation.view {
            View::LiveBytes | View::AllocBytes => View::LiveBytes,
            View::LiveCount | View::AllocCount => View::LiveCount,
        };
        self.write_beside(&profile, &Presentation { view, ..self.presentation.clone() }, paths);
    }

    fn write_beside(&mut self, profile: &Profile, presentation: &Presentation, paths: Vec<PathBuf>) {
        let mut written = Vec::new();
        let shown = presentation.thinned(profile);
        for path in paths {
            let report = |output: Output| output.write(|format, out| Ok(format.write(&shown, presentation, out)?));
            match Output::open(&path, self.args.common.output.format, Access::All).and_then(report) {
                Ok(_) => written.push(path.display().to_string()),
                Err(error) => self.fail(&error),
            }
        }
        if !self.args.common.output.quiet && !written.is_empty() {
            self.line.say(&format!("heapbpf: wrote {} ({})", written.join(", "), describe::outcome(profile)));
        }
    }

    fn write_end(mut self, snapshot: &Snapshot, outputs: Vec<Output>) -> Reports {
        if snapshot.window.is_some() {
            self.write_window(snapshot);
        }
        if self.args.dumps.dump_at_peak {
            self.write_peak(snapshot);
        }
        let profile = self.symbolize(snapshot, Scope::Whole);
        let is_recorded = recording_path(&self.args).is_some();
        let names = if is_recorded { names(snapshot, &self.resolver) } else { Names::default() };
        let presentation = self.presentation.clone();
        let shown = presentation.thinned(&profile);
        let mut written = Written::default();
        for output in outputs {
            written.to_stdout |= output.path().is_none();
            match written.write(output, |format, out| Ok(format.write(&shown, &presentation, out)?)) {
                Err(error) if !is_broken_pipe(&error) => self.fail(&error),
                _ => {}
            }
        }
        drop(shown);
        Reports { profile, written, failed: self.failed, names }
    }

    fn fail(&mut self, error: &anyhow::Error) {
        self.failed = true;
        self.line.say(&format!("heapbpf: error: {error:#}"));
    }
}
