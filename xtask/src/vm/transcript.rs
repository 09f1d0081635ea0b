//! Parses what a virtual machine sends over its second serial line: the counterpart of `value` and `file` in `init.sh`.

use std::collections::BTreeMap;

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Transcript {
    /// Files by name.
    pub(super) files: BTreeMap<String, Vec<u8>>,
    /// Short texts by name.
    values: BTreeMap<String, String>,
    /// Why the transcript is incomplete.
    pub(super) broken: Option<String>,
}

impl Transcript {
    /// Parses lines `value NAME TEXT`, `file NAME BYTES` followed by these bytes and a newline, and `done`.
    pub(super) fn parse(data: &[u8]) -> Self {
        let mut transcript = Self::default();
        if let Err(reason) = transcript.read(data) {
            transcript.broken = Some(reason);
        }
        transcript
    }

    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
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
                    self.files.insert(name.to_owned(), content.to_owned());
                }
                _ => return Err(format!("`{line}` was received and is not valid")),
            }
        }
    }
}

/// Removes a line, and returns it without its newline.
fn take_line<'a>(data: &mut &'a [u8]) -> Option<&'a str> {
    let end = data.iter().position(|byte| *byte == b'\n')?;
    let line = data.split_off(..end)?;
    data.split_off_first();
    std::str::from_utf8(line).ok()
}

/// Whether a name is a valid file name without a folder.
fn is_plain(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_broken(data: &str, reason: &str) {
        let broken = Transcript::parse(data.as_bytes()).broken.expect("it is incomplete");
        assert!(broken.contains(reason), "{broken}");
    }

    #[test]
    fn values_and_files() {
        let transcript =
            Transcript::parse(b"value kernel 6.1.0\nfile a.json 5\n{\n\xff}\n\nvalue a.list 1 2 \nvalue none\ndone\n");
        assert_eq!(transcript.broken, None);
        assert_eq!(transcript.value("kernel"), Some("6.1.0"));
        assert_eq!(transcript.value("a.list"), Some("1 2"));
        assert_eq!(transcript.value("none"), Some(""));
        assert_eq!(transcript.value("other"), None);
        assert_eq!(transcript.files["a.json"], b"{\n\xff}\n");
        assert_eq!(transcript.text("a.json"), None, "it is not text");
    }

    #[test]
    fn incomplete_transcripts_have_a_reason_and_the_received_data() {
        check_broken("", "without `done`");
        check_broken("value a b\n", "without `done`");
        check_broken("file a 10\nshort\n", "`a` was cut off");
        check_broken("file a 2\nlonger\ndone\n", "another length");
        check_broken("file a b\n", "no length");
        check_broken("file ../a 1\nx\n\n", "not valid");
        check_broken("hello\n", "not valid");
        let transcript = Transcript::parse(b"value a b\nfile c 1\nx\n\nfile d 7\n");
        assert_eq!((transcript.value("a"), transcript.text("c")), (Some("b"), Some("x")));
    }
}
