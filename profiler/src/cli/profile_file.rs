//! Files that hold a profile, and the profile in them. What a file is, its beginning says, and not its name.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use bytesize::ByteSize;

use crate::report::json::read::read;
use crate::report::profile::Profile;

/// A report of 10,000 callsites with 40 frames each has a sixth of it.
const SIZE_BYTES_MAX: u64 = 512 << 20;

/// The profile that is in this file.
///
/// # Errors
///
/// If the file cannot be read, or there is no profile in it.
pub(super) fn profile_of(path: &Path) -> Result<Profile> {
    let context = || format!("cannot read a profile from `{}`", path.display());
    let bytes = bytes_of(path).with_context(context)?;
    parse(&bytes).with_context(context)
}

fn bytes_of(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path)?;
    if file.metadata()?.is_dir() {
        bail!("it is a directory; name a file in it");
    }
    let mut bytes = Vec::new();
    file.take(SIZE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
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
        Some(_) => "it is not one of heapbpf's JSON reports".to_owned(),
    };
    bail!("{why}; profiles to compare are made with `heapbpf --pid PID -o heap.json`")
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
            ("main;f 12", "not one of heapbpf's JSON reports"),
            ("{\"version\": 1", "not JSON, or not all of it"),
            ("{\"version\": 2}", "has version 2 of the report"),
            ("{\"version\": 1, \"kind\": \"diff\"}", "the difference of two profiles"),
            ("{\"version\": 1}", "missing field `interval_bytes`"),
            ("{\"name\": \"x\"}", "it says no version"),
        ] {
            let path = folder.path().join("x.json");
            std::fs::write(&path, text).expect("written");
            let error = format!("{:#}", profile_of(&path).expect_err("no profile"));
            assert!(error.contains(reason), "`{error}` does not say `{reason}`");
            assert!(error.contains(&format!("`{}`", path.display())), "{error}");
        }
        let error = format!("{:#}", profile_of(folder.path()).expect_err("no file"));
        assert!(error.contains("is a directory"), "{error}");
    }
}
