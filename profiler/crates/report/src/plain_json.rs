//! Writes JSON that a terminal shows as it is: names of targets and files may contain characters that it would obey or hide, which
//! are escaped, as `\\u009b`. Readers get the same strings.

use std::io;

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;

use super::text::is_harmful;

pub fn write(value: &impl Serialize, out: &mut dyn io::Write) -> io::Result<()> {
    Ok(value.serialize(&mut Serializer::with_formatter(out, Escaping))?)
}

pub fn write_line(value: &impl Serialize, out: &mut dyn io::Write) -> io::Result<()> {
    write(value, &mut *out)?;
    out.write_all(b"\n")
}

/// As compact as serde's, which escapes nothing beyond the first 32 characters.
struct Escaping;

impl Formatter for Escaping {
    fn write_string_fragment<W: io::Write + ?Sized>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        // Nearly all names.
        if fragment.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return writer.write_all(fragment.as_bytes());
        }
        let mut rest = fragment;
        while let Some(at) = rest.find(is_harmful) {
            let (before, harmful) = rest.split_at(at);
            writer.write_all(before.as_bytes())?;
            let mut characters = harmful.chars();
            let mut units = [0; 2];
            for unit in characters.next().map_or(&mut [][..], |c| c.encode_utf16(&mut units)) {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = characters.as_str();
        }
        writer.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        let mut out = Vec::new();
        write_line(&text, &mut out).expect("vectors accept all bytes");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn what_a_terminal_obeys_or_hides_is_escaped() {
        let text = "a\u{9b}31m\u{7f}\u{85}\u{202e}b\u{61c}\u{2028}\u{feff}\u{e0041}\x1b\n\"größe\"";
        let json = written(text);
        assert_eq!(
            json,
            "\"a\\u009b31m\\u007f\\u0085\\u202eb\\u061c\\u2028\\ufeff\\udb40\\udc41\\u001b\\n\\\"größe\\\"\"\n"
        );
        assert_eq!(serde_json::from_str::<String>(&json).expect("it is JSON"), text);
    }

    #[test]
    fn other_text_is_written_as_serde_writes_it() {
        for text in ["", "cache_insert", "größe 内存 ❤", "a\tb\\", "\u{fffd}"] {
            assert_eq!(written(text), serde_json::to_string(text).expect("text") + "\n");
        }
    }
}
