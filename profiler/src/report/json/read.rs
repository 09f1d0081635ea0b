//! A JSON report read back as the profile that it was made from, so that whatever is made from a profile can be made from
//! a file too.
//!
//! Owns what a report must have to be believed. Fields that it does not know are passed over; numbers that no heap can
//! have, text that is no report, and reports of another version are refused.

mod amounts;
mod code;
mod curve;
mod details;
mod fields;
mod guardrails;
mod health;
mod leaks;
mod window;

use rustc_hash::FxHashMap;
use serde::Deserialize;
use std::sync::Arc;
use thiserror::Error;

use super::VERSION;
use crate::model::{Frame, FrameId, Profile};

/// Why a text could not be read as a report.
#[derive(Debug, Error)]
pub enum ReadError {
    /// It is no JSON, or ends too soon.
    #[error("it is not JSON, or not all of it: {0}")]
    NotJson(serde_json::Error),
    /// It is the difference of two profiles.
    #[error("it is the difference of two profiles, which is no profile; give one of those that it was made from")]
    Diff,
    /// It is a check for leaks.
    #[error(
        "it is a report of `heapbpf leaks`, which is no profile; have that write what you want to see: `heapbpf leaks -o leaks.svg`"
    )]
    Leaks,
    /// It is JSON of another kind, or something in it cannot be.
    #[error("it is not a report of heapbpf: {0}")]
    NotReport(String),
    /// Another heapbpf wrote it.
    #[error(
        "it has version {version} of the report, and this heapbpf reads version {VERSION}; use the one that wrote it"
    )]
    Version {
        /// The version that it has.
        version: u64,
    },
}

/// What tells reports from other files.
#[derive(Deserialize)]
struct Opening {
    version: Option<u64>,
    kind: Option<String>,
}

/// The profile that the report was made from. What the report leaves out is put in its place: times of the ledger are on the
/// Unix clock, and sums of estimates beyond 2^53 / 2^20 (8 GiB) have 53 significant bits.
///
/// # Errors
///
/// If it is not a JSON report of this version.
pub fn read(text: &[u8]) -> Result<Profile, ReadError> {
    let refused = |error: serde_json::Error| match error.classify() {
        serde_json::error::Category::Data => ReadError::NotReport(error.to_string()),
        _ => ReadError::NotJson(error),
    };
    let opening: Opening = serde_json::from_slice(text).map_err(refused)?;
    match (opening.version, opening.kind.as_deref()) {
        (Some(_), Some("diff")) => return Err(ReadError::Diff),
        (Some(_), Some("leaks")) => return Err(ReadError::Leaks),
        (Some(version), None) if version == u64::from(VERSION) => {}
        (Some(version), None) => return Err(ReadError::Version { version }),
        _ => return Err(ReadError::NotReport("it says no version".to_owned())),
    }
    let root: fields::Root<'_> = serde_json::from_slice(text).map_err(refused)?;
    root.into_profile().map_err(ReadError::NotReport)
}

/// Frames and their names, each once.
#[derive(Default)]
struct Interner {
    names: FxHashMap<Arc<str>, ()>,
    numbers: FxHashMap<Frame, FrameId>,
    frames: Vec<Frame>,
}

impl Interner {
    fn name(&mut self, name: &str) -> Arc<str> {
        if let Some((name, ())) = self.names.get_key_value(name) {
            return Arc::clone(name);
        }
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name), ());
        name
    }

    fn frame(&mut self, frame: Frame) -> Result<FrameId, String> {
        if let Some(&id) = self.numbers.get(&frame) {
            return Ok(id);
        }
        let id = FrameId(u32::try_from(self.frames.len()).map_err(|_| "it has too many frames".to_owned())?);
        self.frames.push(frame.clone());
        self.numbers.insert(frame, id);
        Ok(id)
    }
}
