//! A Rust file begins with a `//!` comment, which says what the file owns and what it refuses to do.

use super::Findings;
use super::source::Source;

/// The rule.
pub(super) fn check(source: &Source, findings: &mut Findings<'_>) {
    let opening = source.text.lines().next().and_then(|line| line.strip_prefix("//!"));
    if source.rust.is_some() && opening.is_none_or(|words| words.trim().is_empty()) {
        findings.add(1, "does not begin with a `//!` comment that says what it owns and what it refuses to do");
    }
}

#[cfg(test)]
mod tests {
    use super::super::found;
    use super::*;

    #[test]
    fn rust_files_say_what_they_are() {
        assert_eq!(found(check, "a.rs", "//! Owns a.\n"), [""; 0]);
        assert_eq!(found(check, "a.md", "Owns a.\n"), [""; 0]);
        for text in ["", "//!\n", "// Owns a.\n", "\n//! Owns a.\n", "use b;\n"] {
            assert_eq!(found(check, "a.rs", text).len(), 1, "{text:?}");
        }
    }
}
