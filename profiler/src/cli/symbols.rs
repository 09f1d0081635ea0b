//! Options of symbolization, which select the sources of names.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;

use super::exit::usage;
use super::terminal::say;
use super::user;
use crate::debuginfod::{Debuginfod, Server, Settings};
use crate::symbolize::sources::Sources;

pub(super) const HEADING: &str = "Symbols";

#[derive(Args, Clone, Debug, Default)]
pub(super) struct SymbolArgs {
    /// Search DIR for debug files before /usr/lib/debug: `.build-id/12/34….debug`, and files that debug links name, below the
    /// directory of their module. May be given several times.
    #[arg(help_heading = HEADING, long, value_name = "DIR")]
    pub(super) debug_dir: Vec<PathBuf>,

    /// Download missing debug information from a debuginfod server, such as `https://debuginfod.debian.net`, before those of
    /// `$DEBUGINFOD_URLS`. Without either, nothing is downloaded. May be given several times. See docs/debug-files.md.
    #[arg(help_heading = HEADING, long, value_name = "URL")]
    pub(super) debuginfod: Vec<Server>,
}

impl SymbolArgs {
    /// Sources of names. Fails if the environment names something else than servers.
    pub(super) fn sources(&self, quiet: bool) -> Result<Sources> {
        let home = user::invoker().map(|invoker| invoker.home);
        let settings = Settings::new(&self.debuginfod, home.as_deref(), |name| std::env::var_os(name));
        let settings = settings.map_err(|error| usage(format!("DEBUGINFOD_URLS: {error}")))?;
        let report = |line: &str| say(&format!("heapbpf: {line}"));
        Ok(Sources {
            directories: self.debug_dir.clone(),
            debuginfod: settings.map(Debuginfod::new),
            may_download: true,
            report: (!quiet).then(|| Arc::new(report) as _),
            is_off: false,
            no_source_maps: false,
        })
    }
}
