//! What file formats there are, and how one is chosen.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

use super::{
    Report, dhat, firefox, flamegraph, folded, gperftools, heaptrack, html, json, massif, memory_infra, otlp, perfetto,
    pprof, speedscope,
};

/// A file format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// An interactive flame graph.
    Flamegraph,
    /// A page with everything, for people.
    Html,
    /// Folded stacks: a line of text per stack, for other tools.
    Folded,
    /// Everything, for programs.
    Json,
    /// The format of pprof (`profile.proto`), compressed.
    Pprof,
    /// The format of speedscope.
    Speedscope,
    /// The processed profile format of the Firefox Profiler.
    Firefox,
    /// A Perfetto trace, as heapprofd writes it.
    Perfetto,
    /// A trace with Chrome's memory-infra heap dumps.
    MemoryInfra,
    /// The format of valgrind's DHAT.
    Dhat,
    /// The format of valgrind's massif: a timeline, with the peak in detail.
    Massif,
    /// The format of heaptrack: event by event, so of a recording only.
    Heaptrack,
    /// The text format of gperftools' heap profiler.
    Gperftools,
    /// OpenTelemetry's profiles signal, as sent to a collector.
    Otlp,
}

impl Format {
    /// All formats, in the order in which they are offered.
    pub const ALL: [Self; 14] = [
        Self::Flamegraph,
        Self::Html,
        Self::Folded,
        Self::Json,
        Self::Pprof,
        Self::Speedscope,
        Self::Firefox,
        Self::Perfetto,
        Self::MemoryInfra,
        Self::Dhat,
        Self::Massif,
        Self::Heaptrack,
        Self::Gperftools,
        Self::Otlp,
    ];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flamegraph => "svg",
            Self::Html => "html",
            Self::Folded => "folded",
            Self::Json => "json",
            Self::Pprof => "pprof",
            Self::Speedscope => "speedscope",
            Self::Firefox => "firefox",
            Self::Perfetto => "perfetto",
            Self::MemoryInfra => "memory-infra",
            Self::Dhat => "dhat",
            Self::Massif => "massif",
            Self::Heaptrack => "heaptrack",
            Self::Gperftools => "gperftools",
            Self::Otlp => "otlp",
        }
    }

    /// What file names that ask for it end in, without the dot before it.
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Flamegraph => "svg",
            Self::Html => "html",
            Self::Folded => "folded",
            Self::Json => "json",
            Self::Pprof => "pb.gz",
            Self::Speedscope => "speedscope.json",
            Self::Firefox => "fxprofile.json",
            Self::Perfetto => "perfetto-trace",
            Self::MemoryInfra => "memory-infra.json",
            Self::Dhat => "dhat.json",
            Self::Massif => "massif.out",
            Self::Heaptrack => "heaptrack.zst",
            Self::Gperftools => "heap",
            Self::Otlp => "otlp",
        }
    }

    /// What it is, in a few words.
    pub const fn description(self) -> &'static str {
        match self {
            Self::Flamegraph => "flame graph",
            Self::Html => "interactive report",
            Self::Folded => "folded stacks",
            Self::Json => "JSON",
            Self::Pprof => "pprof",
            Self::Speedscope => "speedscope",
            Self::Firefox => "Firefox Profiler",
            Self::Perfetto => "Perfetto trace",
            Self::MemoryInfra => "Chrome memory-infra",
            Self::Dhat => "DHAT",
            Self::Massif => "massif",
            Self::Heaptrack => "heaptrack",
            Self::Gperftools => "gperftools heap profile",
            Self::Otlp => "OpenTelemetry profile",
        }
    }

    /// What writes it.
    pub fn report(self) -> &'static dyn Report {
        match self {
            Self::Flamegraph => &flamegraph::Flamegraph,
            Self::Html => &html::Html,
            Self::Folded => &folded::Folded,
            Self::Json => &json::Json,
            Self::Pprof => &pprof::Pprof,
            Self::Speedscope => &speedscope::Speedscope,
            Self::Firefox => &firefox::Firefox,
            Self::Perfetto => &perfetto::Perfetto,
            Self::MemoryInfra => &memory_infra::MemoryInfra,
            Self::Dhat => &dhat::Dhat,
            Self::Massif => &massif::Massif,
            Self::Heaptrack => &heaptrack::Heaptrack,
            Self::Gperftools => &gperftools::Gperftools,
            Self::Otlp => &otlp::Otlp,
        }
    }

    /// Its bytes are text that a terminal can show.
    pub const fn is_text(self) -> bool {
        !matches!(self, Self::Pprof | Self::Perfetto | Self::Heaptrack | Self::Otlp)
    }

    /// It is made of single events, so a profile is not enough.
    pub const fn needs_recording(self) -> bool {
        matches!(self, Self::Heaptrack)
    }

    /// The format that the end of a path asks for, in upper or lower case.
    ///
    /// # Errors
    ///
    /// If it asks for none. The error lists the ends that do.
    pub fn of_path(path: &Path) -> Result<Self, FormatError> {
        if let Some((_, format)) = Self::split(path) {
            return Ok(format);
        }
        match path.extension() {
            None => Err(FormatError::NoExtension { path: path.to_owned() }),
            Some(extension) => {
                let extension = extension.to_string_lossy().into_owned();
                Err(FormatError::Unknown { path: path.to_owned(), extension })
            }
        }
    }

    /// How many bytes of a path's file name come before the dot of the end that asks for a format, and that format. Of
    /// several ends the longest counts: `x.dhat.json` is DHAT's.
    pub fn split(path: &Path) -> Option<(usize, Self)> {
        let name = path.file_name()?.as_encoded_bytes();
        let stem = |format: &Self| {
            let extension = format.extension().as_bytes();
            let stem = name.len().checked_sub(extension.len() + 1).filter(|&stem| stem > 0)?;
            (name[stem] == b'.' && name[stem + 1..].eq_ignore_ascii_case(extension)).then_some((stem, *format))
        };
        Self::ALL.iter().filter_map(stem).min_by_key(|&(stem, _)| stem)
    }
}

impl FromStr for Format {
    type Err = FormatError;

    fn from_str(name: &str) -> Result<Self, FormatError> {
        let named = Self::ALL.into_iter().find(|format| format.name() == name);
        named.ok_or_else(|| FormatError::NoName { name: name.to_owned() })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Why it is not known which format is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// The path has no extension.
    #[error("`{}` has no extension, which chooses the format; use one of {}, as in `-o heap.svg`, or `--format`", path.display(), Extensions)]
    NoExtension {
        /// The path.
        path: PathBuf,
    },
    /// There is no such extension.
    #[error("`{}` has the extension `.{extension}`, which no format has; use one of {}, or `--format`", path.display(), Extensions)]
    Unknown {
        /// The path.
        path: PathBuf,
        /// Its extension.
        extension: String,
    },
    /// There is no such name.
    #[error("`{name}` is no format; use one of {}", Names)]
    NoName {
        /// What was asked for.
        name: String,
    },
}

/// Writes the list of extensions.
struct Extensions;

impl fmt::Display for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(f, |format| format!("`.{}` ({})", format.extension(), format.description()))
    }
}

/// Writes the list of names.
struct Names;

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(f, |format| format!("`{format}`"))
    }
}

fn list(f: &mut fmt::Formatter<'_>, entry: impl Fn(Format) -> String) -> fmt::Result {
    for (i, format) in Format::ALL.into_iter().enumerate() {
        let separator = if i == 0 { "" } else { ", " };
        write!(f, "{separator}{}", entry(format))?;
    }
    Ok(())
}
