//! Reports: one file per format, each made from a [`Profile`] alone.
//!
//! Owns what every format is asked for, and hands on to the formats' own files. Pure: no clock, file or terminal; the caller
//! says where the bytes go.

use std::io;

use thiserror::Error;

pub use format::Format;
pub(crate) use format::FormatError;
pub(crate) use presentation::Share;
pub use presentation::{Group, Presentation};
pub use view::View;

use crate::model::Profile;

pub(crate) mod diff;
pub(crate) mod leaks;
pub mod summary;
pub(crate) mod suppressions;
pub(crate) mod tail;
pub(crate) mod unreachable;
pub(crate) mod window;

pub(crate) mod dhat;
pub(crate) mod firefox;
pub(crate) mod flamegraph;
pub(crate) mod folded;
pub(crate) mod gperftools;
pub(crate) mod heaptrack;
pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod massif;
pub(crate) mod memory_infra;
pub(crate) mod otlp;
pub(crate) mod perfetto;
pub(crate) mod pprof;
pub(crate) mod speedscope;

mod calls;
mod chain;
mod describe;
mod dumps;
mod format;
mod function;
mod loss;
mod naming;
mod places;
mod presentation;
mod roots;
pub(crate) mod text;
mod valgrind;
mod view;

#[cfg(test)]
mod tests;

/// Writes profiles in one format.
pub trait Report {
    /// Writes all of the profile. What shows one quantity only shows the one of the presentation's view.
    ///
    /// # Errors
    ///
    /// If `out` cannot be written to, or the format needs what is not in a profile.
    fn write(&self, profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write)
    -> Result<(), ReportError>;
}

/// Why a report could not be written.
#[derive(Debug, Error)]
pub enum ReportError {
    /// The bytes could not be handed on.
    #[error("the report could not be written")]
    Write(#[from] io::Error),
    /// Single events are not in a profile.
    #[error(
        "{} is made event by event, which takes a recording: `-o x.heapbpf`, then `heapbpf convert x.heapbpf -o x.{}`",
        .0.description(), .0.extension()
    )]
    NeedsRecording(Format),
    /// The format has no way to tell two profiles' difference.
    #[error("`.{}` ({}) cannot hold a difference; use `.svg`, `.folded` or `.json`", .0.extension(), .0.description())]
    NoDifference(Format),
}
