//! Recordings: everything that a session is told, in a file, from which its results can be made again. Owns the format
//! (`docs/recording.md`); knows nothing of how events come to be, and makes no report.
//!
//! ```text
//! session ─▶ recorder ─▶ its own thread: pack ─▶ block ─▶ file ─▶ block ─▶ unpack ─▶ books ─▶ profile
//! ```

mod account;
pub(crate) mod block;
pub(crate) mod entry;
mod fold;
pub(crate) mod modules;
pub(crate) mod names;
pub(crate) mod pack;
pub(crate) mod read;
pub(crate) mod recorder;
pub(crate) mod replay;
pub(crate) mod span;
pub(crate) mod unpack;
pub(crate) mod write;

#[cfg(test)]
mod tests;
