//! The table of file formats, and how a name or a path selects one.

use std::path::Path;
use std::{fmt, io};

use heapbpf_base::shown::Shown;
use heapbpf_ledger::model::Profile;
use thiserror::Error;

use super::presentation::Presentation;
use super::{
    csv, dhat, firefox, flamegraph, folded, gperftools, html, json, massif, memory_infra, otlp, parquet, perfetto,
    pprof, speedscope,
};

pub struct Spec {
    pub name: &'static str,
    pub extension: &'static str,
    pub description: &'static str,
    pub is_text: bool,
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

            pub const fn spec(self) -> Spec {
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
    Csv: text("csv", "csv", "table of callsites", csv::write),
    CsvFunctions: text("csv-functions", "functions.csv", "table of functions", csv::write_functions),
    Otlp: binary("otlp", "otlp", "OpenTelemetry profile", Some(otlp::write)),
    Parquet: binary("parquet", "parquet", "Parquet table of callsites", Some(parquet::write)),
}

impl Format {
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

    pub fn of_path(path: &Path) -> Result<Self, String> {
        let entry = |Spec { extension, description, .. }| format!("`.{extension}` ({description})");
        let known = || Self::ALL.map(|format| entry(format.spec())).join(", ");
        let shown = Shown::of(path);
        Self::split(path).map(|(_, format)| format).ok_or_else(|| match path.extension().map(Shown::of) {
            None => format!(
                "`{shown}` has no extension to select a format by; use one of {}, as in `-o heap.svg`, or `--format`",
                known()
            ),
            Some(extension) => {
                format!("`{shown}`: unknown format `.{extension}`; use one of {}, or `--format`", known())
            }
        })
    }

    /// The length of the file name before the extension's dot. The longest extension wins: `x.dhat.json` is DHAT.
    pub fn split(path: &Path) -> Option<(usize, Self)> {
        let name = path.file_name()?.as_encoded_bytes();
        let stem = |format: Self| {
            let extension = format.spec().extension.as_bytes();
            let stem = name.len().checked_sub(extension.len() + 1).filter(|&stem| stem > 0)?;
            (name[stem] == b'.' && name[stem + 1..].eq_ignore_ascii_case(extension)).then_some((stem, format))
        };
        Self::ALL.into_iter().filter_map(stem).min_by_key(|&(stem, _)| stem)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.spec().name)
    }
}

#[derive(Debug, Error)]
pub enum ReportError {
    #[error("the report could not be written")]
    Write(#[from] io::Error),
    #[error(
        "{} needs single events, which only a recording has: `-o x.heapbpf`, then `heapbpf convert x.heapbpf -o x.{}`",
        .0.spec().description, .0.spec().extension
    )]
    NeedsRecording(Format),
    #[error("`.{}` ({}) cannot hold a difference; use `.html`, `.svg`, `.folded` or `.json`", .0.spec().extension, .0.spec().description)]
    NoDifference(Format),
}
