//! What a virtual machine sends over its second serial line.

use std::collections::BTreeMap;
use std::io::Read as _;

use flate2::read::GzDecoder;

/// Output of a virtual machine.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Transcript {
    /// Contents by name.
    pub files: BTreeMap<String, Vec<u8>>,
    pub(super) values: BTreeMap<String, String>,
    /// Why it ends early.
    pub broken: Option<String>,
}

impl Transcript {
    /// Parses lines `value NAME TEXT`, `file NAME BYTES` followed by these bytes and a newline, and `done`. The content of `NAME.gz` is
    /// unpacked, and has the name without the extension.
    pub fn parse(data: &[u8]) -> Self {
        let mut transcript = Self::default();
        if let Err(reason) = transcript.read(data) {
            transcript.broken = Some(reason);
        }
        transcript
    }

    /// A value by its name.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// A file by its name, if it is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.files.get(name).and_then(|content| std::str::from_utf8(content).ok())
    }

    fn read(&mut self, mut data: &[u8]) -> Result<(), String> {
        loop {
            let line = take_line(&mut data).ok_or("the serial line ended without `done`")?;
            let mut words = line.splitn(3, ' ');
            match (words.next(), words.next(), words.next()) {
                (Some("done"), None, None) => return Ok(()),
                (Some("value"), Some(name), text) => {
                    self.values.insert(name.to_owned(), text.unwrap_or_default().trim().to_owned());
                }
                (Some("file"), Some(name), Some(length)) if is_plain(name) => {
                    let length: usize = length.parse().map_err(|_| format!("`{line}` has no length"))?;
                    let content = data.split_off(..length).ok_or_else(|| format!("`{name}` was cut off"))?;
                    if take_line(&mut data).is_none_or(|rest| !rest.is_empty()) {
                        return Err(format!("`{name}` has another length than announced"));
                    }
                    match name.strip_suffix(PACKED) {
                        Some(unpacked) => self.files.insert(unpacked.to_owned(), unpack(name, content)?),
                        None => self.files.insert(name.to_owned(), content.to_owned()),
                    };
                }
                _ => return Err(format!("`{line}` was received and is not valid")),
            }
        }
    }
}

const PACKED: &str = ".gz";

fn unpack(name: &str, content: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = GzDecoder::new(content).read_to_end(&mut bytes);
    read.map(|_| bytes).map_err(|error| format!("`{name}` cannot be unpacked: {error}"))
}

fn take_line<'a>(data: &mut &'a [u8]) -> Option<&'a str> {
    let end = data.iter().position(|byte| *byte == b'\n')?;
    let line = data.split_off(..end)?;
    data.split_off_first();
    std::str::from_utf8(line).ok()
}

fn is_plain(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter))
}
