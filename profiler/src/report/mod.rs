//! Reports: one file per format, each a pure function of a [`Profile`](crate::model::Profile), without clock, file
//! or terminal. A new format is one file, and one line in the table in `format.rs`.

pub use format::Format;
pub(crate) use format::ReportError;
pub(crate) use presentation::Share;
pub use presentation::{Group, Presentation, View};
pub(crate) use usage::TopBy;

pub(crate) mod diff;
pub(crate) mod filter;
pub mod summary;
pub(crate) mod suppressions;
pub(crate) mod tail;
pub(crate) mod unreachable;

mod csv;
mod dhat;
mod firefox;
mod flamegraph;
mod folded;
mod gperftools;
pub(crate) mod heaptrack;
mod html;
pub(crate) mod json;
mod massif;
mod memory_infra;
mod otlp;
mod perfetto;
mod pprof;
mod speedscope;

mod cuts;
pub(crate) mod describe;
mod dumps;
mod format;
mod function;
mod memory;
pub(crate) mod page;
mod presentation;
mod proto;
mod tables;
pub(crate) mod text;
mod usage;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::docs::check_table;
