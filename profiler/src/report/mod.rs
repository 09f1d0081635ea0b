//! Reports: one file per format, each made from a [`Profile`] alone.
//!
//! Owns what formats there are and how one is chosen, and what a report can show. Pure: no clock, file or terminal; the
//! caller says where the bytes go.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

use crate::ledger::totals::Totals;
use crate::units::EstimatedVariance;
use profile::Profile;

pub mod diff;
pub mod guardrails;
pub mod profile;
pub mod summary;
pub mod window;

pub mod flamegraph;
pub mod folded;
pub mod json;

mod chain;
mod describe;
mod function;
pub(crate) mod text;

#[cfg(test)]
mod tests;

/// Writes profiles in one format.
pub trait Report {
    /// Writes all of the profile. What shows one quantity only shows the one that `view` names.
    ///
    /// # Errors
    ///
    /// If `out` cannot be written to.
    fn write(&self, profile: &Profile, view: View, out: &mut dyn io::Write) -> Result<(), ReportError>;
}

/// Why a report could not be written.
#[derive(Debug, Error)]
pub enum ReportError {
    /// The bytes could not be handed on.
    #[error("the report could not be written")]
    Write(#[from] io::Error),
}

/// A file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// An interactive flame graph.
    Flamegraph,
    /// Folded stacks: a line of text per stack, for other tools.
    Folded,
    /// Everything, for programs.
    Json,
}

impl Format {
    /// All formats, in the order in which they are offered.
    pub const ALL: [Self; 3] = [Self::Flamegraph, Self::Folded, Self::Json];

    /// The file name extension that asks for it, without the dot.
    #[must_use]
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Flamegraph => "svg",
            Self::Folded => "folded",
            Self::Json => "json",
        }
    }

    /// What it is, in a few words.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::Flamegraph => "flame graph",
            Self::Folded => "folded stacks",
            Self::Json => "JSON",
        }
    }

    /// The format that a path's extension asks for, in upper or lower case.
    ///
    /// # Errors
    ///
    /// If it asks for none. The error lists the extensions that do.
    pub fn of_path(path: &Path) -> Result<Self, FormatError> {
        let Some(extension) = path.extension().map(|extension| extension.to_string_lossy().into_owned()) else {
            return Err(FormatError::NoExtension { path: path.to_owned() });
        };
        Self::ALL
            .into_iter()
            .find(|format| format.extension().eq_ignore_ascii_case(&extension))
            .ok_or(FormatError::Unknown { path: path.to_owned(), extension })
    }

    /// What writes it.
    #[must_use]
    pub fn report(self) -> &'static dyn Report {
        match self {
            Self::Flamegraph => &flamegraph::Flamegraph,
            Self::Folded => &folded::Folded,
            Self::Json => &json::Json,
        }
    }
}

/// Why a path does not say which format is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// It has no extension.
    #[error("`{}` has no extension, which chooses the format; use one of {}, as in `-o heap.svg`", path.display(), Supported)]
    NoExtension {
        /// The path.
        path: PathBuf,
    },
    /// There is no such format.
    #[error("`{}` has the extension `.{extension}`, which no format has; use one of {}", path.display(), Supported)]
    Unknown {
        /// The path.
        path: PathBuf,
        /// Its extension.
        extension: String,
    },
}

/// Writes the list of extensions.
struct Supported;

impl fmt::Display for Supported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, format) in Format::ALL.into_iter().enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(f, "{separator}`.{}` ({})", format.extension(), format.description())?;
        }
        Ok(())
    }
}

/// Which quantity a report shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum View {
    /// Bytes allocated and not freed.
    #[default]
    LiveBytes,
    /// Blocks allocated and not freed.
    LiveCount,
    /// Bytes allocated, freed or not.
    AllocBytes,
    /// Blocks allocated, freed or not.
    AllocCount,
}

impl View {
    /// All views, in the order in which they are offered.
    pub const ALL: [Self; 4] = [Self::LiveBytes, Self::LiveCount, Self::AllocBytes, Self::AllocCount];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LiveBytes => "live-bytes",
            Self::LiveCount => "live-count",
            Self::AllocBytes => "alloc-bytes",
            Self::AllocCount => "alloc-count",
        }
    }

    /// Its name in a sentence.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::LiveBytes => "live bytes",
            Self::LiveCount => "live blocks",
            Self::AllocBytes => "allocated bytes",
            Self::AllocCount => "allocated blocks",
        }
    }

    /// What it counts: `bytes` or `blocks`.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::LiveBytes | Self::AllocBytes => "bytes",
            Self::LiveCount | Self::AllocCount => "blocks",
        }
    }

    /// The quantity, rounded to a whole number.
    #[must_use]
    pub fn rounded(self, totals: &Totals) -> u64 {
        match self {
            Self::LiveBytes => totals.live_bytes().rounded(),
            Self::LiveCount => totals.live_count().rounded(),
            Self::AllocBytes => totals.alloc_bytes.rounded(),
            Self::AllocCount => totals.alloc_count.rounded(),
        }
    }

    /// The 95 % confidence interval of what the totals say of it.
    #[must_use]
    pub fn confidence(self, totals: &Totals) -> [f64; 2] {
        Totals::confidence(self.estimate(totals), self.variance(totals))
    }

    /// The quantity, in bytes or blocks.
    #[must_use]
    pub fn estimate(self, totals: &Totals) -> f64 {
        match self {
            Self::LiveBytes => totals.live_bytes().to_f64(),
            Self::LiveCount => totals.live_count().to_f64(),
            Self::AllocBytes => totals.alloc_bytes.to_f64(),
            Self::AllocCount => totals.alloc_count.to_f64(),
        }
    }

    /// The variance of that estimate.
    #[must_use]
    pub fn variance(self, totals: &Totals) -> EstimatedVariance {
        match self {
            Self::LiveBytes => totals.live_variance.bytes,
            Self::LiveCount => totals.live_variance.count,
            Self::AllocBytes => totals.alloc_variance.bytes,
            Self::AllocCount => totals.alloc_variance.count,
        }
    }

    /// Samples that it is estimated from.
    #[must_use]
    pub fn samples(self, totals: &Totals) -> u64 {
        match self {
            Self::LiveBytes | Self::LiveCount => totals.live_samples,
            Self::AllocBytes | Self::AllocCount => totals.alloc_samples,
        }
    }

    /// An amount of it, written for people.
    fn amount(self, rounded: u64) -> String {
        match self {
            Self::LiveBytes | Self::AllocBytes => text::size(rounded),
            Self::LiveCount | Self::AllocCount => text::counted(rounded, "block"),
        }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for View {
    type Err = ViewError;

    fn from_str(name: &str) -> Result<Self, ViewError> {
        Self::ALL.into_iter().find(|view| view.name() == name).ok_or_else(|| ViewError { name: name.to_owned() })
    }
}

/// There is no such view.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{name}` is no view; use `live-bytes`, `live-count`, `alloc-bytes` or `alloc-count`")]
pub struct ViewError {
    name: String,
}
