//! Reports: one file per format, each a pure function of a [`Profile`](crate::model::Profile), without clock, file
//! or terminal. A new format is one file, and one line in the table in `format.rs`.

pub(crate) use flamegraph::colour::{Colour as ModuleColour, Rgb};
pub use format::Format;
pub(crate) use format::ReportError;
pub(crate) use otlp::encode_series as otlp_series;
pub(crate) use pprof::encode_series as pprof_series;
pub(crate) use pprof::file::{PprofFile, PprofLine, PprofMapping};
pub(crate) use pprof::write_change as write_pprof_change;
pub(crate) use presentation::Share;
pub use presentation::{Group, Presentation, View};
pub(crate) use usage::TopBy;

pub(crate) mod diff;
pub(crate) mod filter;
pub mod summary;
pub(crate) mod suppressions;
pub(crate) mod tail;
pub(crate) mod unreachable;

pub(crate) mod csv;
mod dhat;
mod firefox;
mod flamegraph;
mod folded;
mod gperftools;
pub(crate) mod heaptrack;
pub(crate) mod html;
pub(crate) mod json;
mod languages;
mod massif;
mod memory_infra;
mod nameless;
mod others;
mod otlp;
pub(crate) mod parquet;
mod perfetto;
pub(crate) mod plain_json;
mod pprof;
mod speedscope;

mod beginnings;
pub(crate) mod contents;
mod cuts;
mod deaths;
pub(crate) mod describe;
mod dumps;
mod format;
pub(crate) mod function;
mod memory;
pub(crate) mod page;
mod presentation;
mod proto;
pub(crate) mod series;
pub(crate) mod tables;
pub(crate) mod text;
mod usage;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::docs::check_table;
#[cfg(test)]
pub(crate) use tests::profiles as test_profiles;
#[cfg(test)]
pub(crate) use tests::schema;
