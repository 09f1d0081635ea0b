//! The table of file formats, and how a name or a path selects one.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use thiserror::Error;

use super::presentation::Presentation;
use super::{
    dhat, firefox, flamegraph, folded, gperftools, html, json, massif, memory_infra, otlp, perfetto, pprof, speedscope,
};
use crate::model::Profile;

struct Spec {
    name: &'static str,
    extension: &'static str,
    description: &'static str,
    is_text: bool,
    write: Option<Write>,
}

type Write = fn(&Profile, &Presentation, &mut dyn io::Write) -> io::Result<()>;

const fn text(name: &'static str, extension: &'static str, description: &'static str, write: Write) -> Spec {
    Spec { name, extension, description, is_text: true, write: Some(write) }
}

const fn binary(name: &'static str, extension: &'static str, description: &'static str, write: Option<Write>) -> Spec {
    Spec { name, extension, description, is_text: false, write }
}

/// The order is that of lists for the user.
macro_rules! formats {
    ($($format:ident: $spec:expr,)*) => {
        #[expect(missing_docs, reason = "the table describes them")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Format {
            $($format,)*
        }

        impl Format {
            pub const ALL: [Self; [$(Self::$format,)*].len()] = [$(Self::$format,)*];

            const fn spec(self) -> Spec {
                match self {
                    $(Self::$format => $spec,)*
                }
            }
        }
    };
}

formats! {
    Flamegraph: text("svg", "svg", "flame graph", flamegraph::write),
    Html: text("html", "html", "interactive report", html::write),
    Folded: text("folded", "folded", "folded stacks", folded::write),
    Json: text("json", "json", "JSON", json::write),
    Pprof: binary("pprof", "pb.gz", "pprof", Some(pprof::write)),
    Speedscope: text("speedscope", "speedscope.json", "speedscope", speedscope::write),
    Firefox: text("firefox", "fxprofile.json", "Firefox Profiler", firefox::write),
    Perfetto: binary("perfetto", "perfetto-trace", "Perfetto trace", Some(perfetto::write)),
    MemoryInfra: text("memory-infra", "memory-infra.json", "Chrome memory-infra", memory_infra::write),
    Dhat: text("dhat", "dhat.json", "DHAT", dhat::write),
    Massif: text("massif", "massif.out", "massif", massif::write),
    Heaptrack: binary("heaptrack", "heaptrack.zst", "heaptrack", None),
    Gperftools: text("gperftools", "heap", "gperftools heap profile", gperftools::write),
    Otlp: binary("otlp", "otlp", "OpenTelemetry profile", Some(otlp::write)),
}

impl Format {
    pub const fn name(self) -> &'static str {
        self.spec().name
    }

    pub const fn extension(self) -> &'static str {
        self.spec().extension
    }

    pub const fn description(self) -> &'static str {
        self.spec().description
    }

    pub const fn is_text(self) -> bool {
        self.spec().is_text
    }

    /// The format consists of single events, which a recording has and a profile has not.
    pub const fn needs_recording(self) -> bool {
        self.spec().write.is_none()
    }

    pub fn write(
        self,
        profile: &Profile,
        presentation: &Presentation,
        out: &mut dyn io::Write,
    ) -> Result<(), ReportError> {
        let write = self.spec().write.ok_or(ReportError::NeedsRecording(self))?;
        Ok(write(profile, presentation, out)?)
    }

    pub fn names() -> String {
        list(|format| format!("`{format}`"))
    }

    pub fn of_path(path: &Path) -> Result<Self, FormatError> {
        match (Self::split(path), path.extension()) {
            (Some((_, format)), _) => Ok(format),
            (None, None) => Err(FormatError::NoExtension { path: path.to_owned() }),
            (None, Some(extension)) => {
                let extension = extension.to_string_lossy().into_owned();
                Err(FormatError::UnknownExtension { path: path.to_owned(), extension })
            }
        }
    }

    /// The length of the file name before the extension's dot. The longest extension wins: `x.dhat.json` is DHAT.
    pub fn split(path: &Path) -> Option<(usize, Self)> {
        let name = path.file_name()?.as_encoded_bytes();
        let stem = |format: Self| {
            let extension = format.extension().as_bytes();
            let stem = name.len().checked_sub(extension.len() + 1).filter(|&stem| stem > 0)?;
            (name[stem] == b'.' && name[stem + 1..].eq_ignore_ascii_case(extension)).then_some((stem, format))
        };
        Self::ALL.into_iter().filter_map(stem).min_by_key(|&(stem, _)| stem)
    }
}

impl FromStr for Format {
    type Err = FormatError;

    fn from_str(name: &str) -> Result<Self, FormatError> {
        let named = Self::ALL.into_iter().find(|format| format.name() == name);
        named.ok_or_else(|| FormatError::UnknownName { name: name.to_owned() })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    #[error("`{}` has no extension to select a format by; use one of {}, as in `-o heap.svg`, or `--format`", path.display(), extensions())]
    NoExtension { path: PathBuf },
    #[error("`{}`: unknown format `.{extension}`; use one of {}, or `--format`", path.display(), extensions())]
    UnknownExtension { path: PathBuf, extension: String },
    #[error("unknown format `{name}`; use one of {}", Format::names())]
    UnknownName { name: String },
}

fn extensions() -> String {
    list(|format| format!("`.{}` ({})", format.extension(), format.description()))
}

fn list(entry: impl Fn(Format) -> String) -> String {
    Format::ALL.map(entry).join(", ")
}

#[derive(Debug, Error)]
pub enum ReportError {
    #[error("the report could not be written")]
    Write(#[from] io::Error),
    #[error(
        "{} needs single events, which only a recording has: `-o x.heapbpf`, then `heapbpf convert x.heapbpf -o x.{}`",
        .0.description(), .0.extension()
    )]
    NeedsRecording(Format),
    #[error("`.{}` ({}) cannot hold a difference; use `.svg`, `.folded` or `.json`", .0.extension(), .0.description())]
    NoDifference(Format),
}
