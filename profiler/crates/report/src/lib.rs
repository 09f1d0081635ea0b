//! Reports: one file per format, each a pure function of a [`Profile`](heapbpf_ledger::model::Profile), without clock, file or terminal. A
//! new format is one file, and one line in the table in `format.rs`.
//!
//! ```no_run
//! use heapbpf_report::{Format, View, json};
//!
//! let report = std::fs::read("report.json")?;
//! let profile = json::read::read(&report)?;
//! Format::Folded.write(&profile, &View::LiveBytes.into(), &mut std::io::stdout())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests choose their names, and print to nobody's terminal")
)]
#![expect(missing_docs, reason = "what names and types say is not repeated; only heapbpf uses this crate")]

pub use flamegraph::colour::{Colour as ModuleColour, Rgb};
pub use format::Format;
pub use format::ReportError;
pub use otlp::encode_series as otlp_series;
pub use pprof::encode_series as pprof_series;
pub use pprof::file::{PprofFile, PprofLine, PprofMapping};
pub use pprof::write_change as write_pprof_change;
pub use presentation::Share;
pub use presentation::{Group, Presentation, View};
pub use usage::TopBy;

pub mod diff;
pub mod filter;
pub mod summary;
pub mod suppressions;
pub mod tail;
pub mod unreachable;

pub mod csv;
mod dhat;
mod firefox;
mod flamegraph;
mod folded;
mod gperftools;
pub mod heaptrack;
pub mod html;
pub mod json;
mod languages;
mod massif;
mod memory_infra;
mod nameless;
mod origin;
mod others;
mod otlp;
pub mod parquet;
mod perfetto;
pub mod plain_json;
mod pprof;
mod speedscope;

mod beginnings;
pub mod contents;
mod cuts;
mod deaths;
pub mod describe;
mod dumps;
mod format;
pub mod function;
mod memory;
pub mod page;
mod presentation;
mod proto;
pub mod series;
pub mod tables;
pub mod text;
pub mod types;
mod usage;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
