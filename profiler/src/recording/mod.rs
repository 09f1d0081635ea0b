//! Recordings: everything that a session is told, in a file, from which its results can be made again. Owns the format
//! (`docs/recording.md`); knows nothing of how events come to be, and makes no report.
//!
//! ```text
//! session ─▶ recorder ─▶ its own thread: pack ─▶ block ─▶ file ─▶ block ─▶ unpack ─▶ books ─▶ profile
//! ```

mod account;
pub mod block;
pub mod entry;
mod fold;
pub mod modules;
pub mod names;
pub mod pack;
pub mod read;
pub mod recorder;
pub mod replay;
pub mod span;
pub mod unpack;
pub mod write;

#[cfg(test)]
mod tests;
