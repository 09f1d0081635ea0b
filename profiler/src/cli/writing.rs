//! Names snapshots and writes them, on a thread of its own: the session goes on meanwhile. Owns the outputs and what names
//! are known.

use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow};

use super::output::Output;
use crate::report::profile::Profile;
use crate::report::suppressions::Suppressions;
use crate::report::{Format, View};
use crate::snapshot::Snapshot;
use crate::symbolize::profile::profile;
use crate::symbolize::resolver::Resolver;

/// How to write.
#[derive(Clone, Debug)]
pub(super) struct Style {
    /// What reports show that show one quantity only.
    pub(super) view: View,
    /// Leave runtime plumbing out of stacks.
    pub(super) trims: bool,
    /// Growing callsites that are not told of.
    pub(super) suppressions: Suppressions,
}

/// The end of a recording, written.
#[derive(Debug)]
pub(super) struct Written {
    /// What was written.
    pub(super) profile: Profile,
    /// The files.
    pub(super) files: Vec<(PathBuf, Format)>,
    /// Something went to standard output.
    pub(super) to_stdout: bool,
}

/// The thread at work.
pub(super) struct Writing(JoinHandle<Result<Written>>);

impl Writing {
    /// Writes a snapshot to all outputs.
    ///
    /// # Errors
    ///
    /// If there can be no thread.
    pub(super) fn start(snapshot: Snapshot, outputs: Vec<Output>, style: Style) -> Result<Self> {
        let thread = thread::Builder::new().name("heapbpf-write".to_owned());
        let thread = thread.spawn(move || write(&snapshot, outputs, style)).context("cannot start a thread")?;
        Ok(Self(thread))
    }

    /// Waits until all is written.
    ///
    /// # Errors
    ///
    /// If an output could not be written.
    pub(super) fn finish(self) -> Result<Written> {
        self.0.join().map_err(|_| anyhow!("writing failed for a reason that only heapbpf's authors can tell"))?
    }
}

fn write(snapshot: &Snapshot, outputs: Vec<Output>, style: Style) -> Result<Written> {
    let mut profile = profile(snapshot, &Resolver::new(), style.trims);
    profile.suppress(&style.suppressions);
    let mut written = Written { profile, files: Vec::new(), to_stdout: false };
    for output in outputs {
        let format = output.format();
        let path = output.write(|out| Ok(format.report().write(&written.profile, style.view, out)?))?;
        written.to_stdout |= path.is_none();
        written.files.extend(path.map(|path| (path, format)));
    }
    Ok(written)
}
