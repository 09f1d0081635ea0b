//! Recordings: all events of a session in a file, from which its results can be computed again. Owns the format
//! (`docs/recording.md`); independent of the source of events and of reports.
//!
//! ```text
//! session ─▶ recorder ─▶ writer thread: pack ─▶ block ─▶ file ─▶ block ─▶ unpack ─▶ replay: ledgers ─▶ snapshot
//! ```

pub(crate) mod block;
pub(crate) mod entry;
pub(crate) mod names;
mod pack;
pub(crate) mod read;
pub(crate) mod recorder;
pub(crate) mod replay;
pub(crate) mod span;
mod target;
pub(crate) mod write;

#[cfg(test)]
mod tests;
