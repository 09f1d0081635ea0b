//! Reports: one file per format, each made from a [`Profile`] alone.
//!
//! Owns what every format is asked for, and hands on to the formats' own files. Pure: no clock, file or terminal; the caller
//! says where the bytes go.

use std::io;

use thiserror::Error;

pub use format::{Format, FormatError};
pub use presentation::{Group, Presentation, Share};
pub use view::{View, ViewError};

use crate::model::Profile;

pub mod diff;
pub mod leaks;
pub mod summary;
pub mod suppressions;
pub mod tail;
pub mod unreachable;
pub mod window;

pub mod dhat;
pub mod firefox;
pub mod flamegraph;
pub mod folded;
pub mod gperftools;
pub mod heaptrack;
pub mod html;
pub mod json;
pub mod massif;
pub mod memory_infra;
pub mod otlp;
pub mod perfetto;
pub mod pprof;
pub mod speedscope;

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
