//! Files that hold a profile, and the profile in them. What a file is, its beginning says, and not its name.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;

use super::recorded::{How, Recorded};
use crate::linux::input;
use crate::model::Profile;
use crate::recording::block::MAGIC;
use crate::recording::span::Span;
use crate::report::json::read::read;

/// A report of 10,000 callsites with 40 frames each has a sixth of it.
const SIZE_BYTES_MAX: u64 = 512 << 20;

/// A profile, and whether it lacks what a damaged file had of it.
pub(super) struct Found {
    /// What was read.
    pub(super) profile: Profile,
    /// The file was not read to its end.
    pub(super) is_damaged: bool,
}

/// What a file is.
pub(super) enum Contents {
    /// A recording, of which nothing was read.
    Recording,
    /// A JSON report.
    Report(Box<Profile>),
}

/// Tells what this file is, and reads it where it is a report.
///
/// # Errors
///
/// If it cannot be read, or is neither.
pub(super) fn contents_of(path: &Path) -> Result<Contents> {
    let context = || format!("cannot read a profile from `{}`", path.display());
    let bytes = bytes_of(path).with_context(context)?;
    if bytes.starts_with(&MAGIC) {
        return Ok(Contents::Recording);
    }
    Ok(Contents::Report(Box::new(parse(&bytes).with_context(context)?)))
}

/// The profile that is in this file: a JSON report, or a recording, of which the whole is meant.
///
/// # Errors
///
/// If the file cannot be read, or there is no profile in it.
pub(super) fn profile_of(path: &Path, quiet: bool) -> Result<Found> {
    match contents_of(path)? {
        Contents::Recording => {
            let Recorded { profile, is_damaged, .. } =
                Recorded::read(path, Span::default(), How { quiet, ..How::default() })?;
            Ok(Found { profile, is_damaged })
        }
        Contents::Report(profile) => Ok(Found { profile: *profile, is_damaged: false }),
    }
}

/// What is in a file; of a recording, which can be large, its beginning alone. A pipe is read once.
fn bytes_of(path: &Path) -> Result<Vec<u8>> {
    let mut file = input::open(path)?;
    let mut bytes = Vec::new();
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut bytes)?;
    if bytes == MAGIC {
        return Ok(bytes);
    }
    file.take(SIZE_BYTES_MAX).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > SIZE_BYTES_MAX {
        bail!("it is larger than {}, which no report is", ByteSize(SIZE_BYTES_MAX));
    }
    Ok(bytes)
}

fn parse(bytes: &[u8]) -> Result<Profile> {
    let first = bytes.iter().copied().find(|byte| !byte.is_ascii_whitespace());
    let why = match first {
        None => "it is empty, as where a recording was killed before its end".to_owned(),
        Some(b'{') => match read(bytes) {
            Ok(profile) => return Ok(profile),
            Err(error) => error.to_string(),
        },
        Some(b'<') => "it is an image".to_owned(),
        Some(_) => {
            "it is neither one of heapbpf's JSON reports nor a recording, or its first bytes are damaged".to_owned()
        }
    };
    bail!("{why}; profiles are made with `heapbpf --pid PID -o heap.json`, or `-o heap.heapbpf`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_profile_is_refused_with_a_reason() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for (text, reason) in [
            ("", "it is empty"),
            ("<svg/>", "it is an image"),
            ("main;f 12", "neither one of heapbpf's JSON reports nor a recording"),
            ("{\"version\": 1", "not JSON, or not all of it"),
            ("{\"version\": 2}", "has version 2 of the report"),
            ("{\"version\": 1, \"kind\": \"diff\"}", "the difference of two profiles"),
            ("{\"version\": 1, \"kind\": \"leaks\"}", "a report of `heapbpf leaks`"),
            ("{\"version\": 1}", "missing field `interval_bytes`"),
            ("{\"name\": \"x\"}", "it says no version"),
        ] {
            let path = folder.path().join("x.json");
            std::fs::write(&path, text).expect("written");
            let error = format!("{:#}", profile_of(&path, true).err().expect("no profile"));
            assert!(error.contains(reason), "`{error}` does not say `{reason}`");
            assert!(error.contains(&format!("`{}`", path.display())), "{error}");
        }
        let error = format!("{:#}", profile_of(folder.path(), true).err().expect("no file"));
        assert!(error.contains("is a directory"), "{error}");
    }
}
