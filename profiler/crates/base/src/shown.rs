//! Names that others choose (of functions, files, processes and threads) as text.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

/// A name in a message. Bytes that are not UTF-8 are escaped, as in `caf\xe9`, and so are control characters, which could end the
/// line.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(&'a [u8]);

impl<'a> Shown<'a> {
    pub fn of(name: &'a (impl AsRef<OsStr> + ?Sized)) -> Self {
        Self(name.as_ref().as_bytes())
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in text(self.0).chars() {
            match c.is_control() {
                true => c.escape_default().fmt(f)?,
                false => fmt::Write::write_char(f, c)?,
            }
        }
        Ok(())
    }
}

/// The text of a name, for models and reports. Only bytes that are not UTF-8 are escaped: `report::text` and `cli::terminal` remove
/// control characters where they do harm.
pub fn text(name: &(impl AsRef<[u8]> + ?Sized)) -> Cow<'_, str> {
    let name = name.as_ref();
    if let Ok(text) = str::from_utf8(name) {
        return text.into();
    }
    let mut escaped = String::with_capacity(2 * name.len());
    for chunk in name.utf8_chunks() {
        escaped += chunk.valid();
        chunk.invalid().iter().for_each(|byte| escaped += &format!("\\x{byte:02x}"));
    }
    escaped.into()
}

/// The text of a path, or of another string of the system: see [`text`].
pub fn os_text(name: &(impl AsRef<OsStr> + ?Sized)) -> Cow<'_, str> {
    text(name.as_ref().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn check(name: &[u8], as_text: &str, as_message: &str) {
        assert_eq!(text(name), as_text);
        assert_eq!(os_text(Path::new(OsStr::from_bytes(name))), as_text);
        assert_eq!(Shown::of(OsStr::from_bytes(name)).to_string(), as_message);
    }

    #[test]
    fn bytes_that_are_not_utf8_are_escaped() {
        let same = |name: &[u8], expected: &str| check(name, expected, expected);
        same(b"", "");
        same(b"malloc", "malloc");
        same("größe".as_bytes(), "größe");
        same(b"caf\xe9", r"caf\xe9");
        same(b"/\xe9t\xe9/a\xff\xfeb", r"/\xe9t\xe9/a\xff\xfeb");
        // A name that the kernel has cut within a character.
        same(&"größe".as_bytes()[..3], r"gr\xc3");
    }

    #[test]
    fn control_characters_are_escaped_in_messages() {
        check(b"a\0\x1b[31m\n\xe9", "a\0\x1b[31m\n\\xe9", r"a\u{0}\u{1b}[31m\n\xe9");
    }

    #[test]
    fn names_that_are_text_are_not_copied() {
        assert!(matches!(text("größe"), Cow::Borrowed("größe")));
    }
}
