//! Implementation of `heapbpf convert --every`: a recording in windows, each as rows of a table.

use std::io::Write;

use anyhow::{Context as _, Error, Result};
use heapbpf_base::shown::Shown;
use heapbpf_report::{Presentation, parquet};

use super::report_args::ConvertArgs;
use crate::object::module::Modules;
use crate::recording::names::RecordedNames;
use crate::recording::read;
use crate::recording::replay::late::LateFacts;
use crate::recording::span::{ReplayedSpan, Span};
use crate::snapshot::Scope;
use crate::symbolize::profile::profile;
use crate::symbolize::resolver::Resolver;

/// State from a first reading: names, modules and facts of targets are complete at the file's end only.
pub(super) struct Windows {
    pub(super) every_ns: u64,
    /// Number of entries of the first reading: a recording that is still being written grows.
    pub(super) entries: usize,
    pub(super) modules: Modules,
    pub(super) late: LateFacts,
    pub(super) names: RecordedNames<Resolver>,
}

impl Windows {
    pub(super) fn write(
        &self,
        args: &ConvertArgs,
        span: Span,
        presentation: &Presentation,
        out: &mut dyn Write,
    ) -> Result<()> {
        let reading = read::read(&args.recording).with_context(|| format!("`{}`", Shown::of(&args.recording)))?;
        let entries = reading.take(self.entries);
        let mut writer = parquet::Writer::new(out)?;
        let filter = args.filter.filter();
        let by_thread = args.presentation.by_thread();
        ReplayedSpan::windows(
            entries,
            span,
            self.every_ns,
            by_thread,
            &self.modules,
            &self.late,
            |snapshot| -> Result<(), Error> {
                let mut profile = profile(snapshot, Scope::Window, &self.names, args.output.trims());
                profile.strict = args.verdict.strict;
                filter.apply(&mut profile);
                Ok(writer.add(&presentation.thinned(&profile), presentation)?)
            },
        )?;
        Ok(writer.finish()?)
    }
}
