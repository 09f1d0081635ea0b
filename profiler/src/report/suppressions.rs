//! Suppressions in the syntax of LeakSanitizer
//! (<https://clang.llvm.org/docs/AddressSanitizer.html#suppressing-memory-leaks>): known leaks that reports leave out.
//!
//! ```text
//! # A comment.
//! leak:create_registry
//! leak:^libcrypto.so*
//! leak:/third_party/*.c$
//! ```

use thiserror::Error;

use crate::model::{Frame, FrameId};

/// A set of patterns, each of which suppresses the stacks with a matching frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressions {
    patterns: Vec<Pattern>,
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SuppressionError {
    #[error("line {line}: unsupported suppression type `{kind}`; only `leak:PATTERN` is supported")]
    Kind { line: usize, kind: String },
    #[error("line {line}: `{text}` is not a suppression; write `leak:PATTERN`")]
    NoKind { line: usize, text: String },
    #[error("line {line}: an empty pattern would suppress everything; write `leak:*` if that is intended")]
    Empty { line: usize },
}

impl Suppressions {
    /// Parses the text of a file. Lines are numbered from 1 in errors.
    pub fn parse(text: &str) -> Result<Self, SuppressionError> {
        let mut patterns = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let Some((kind, pattern)) = text.split_once(':') else {
                return Err(SuppressionError::NoKind { line, text: text.to_owned() });
            };
            if kind != "leak" {
                return Err(SuppressionError::Kind { line, kind: kind.to_owned() });
            }
            if pattern.is_empty() {
                return Err(SuppressionError::Empty { line });
            }
            patterns.push(Pattern::new(pattern));
        }
        Ok(Self { patterns })
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.patterns.extend(other.patterns);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Whether a pattern matches the frame's function, module or source file.
    pub(crate) fn matches(&self, frame: &Frame) -> bool {
        let names = [&frame.function, &frame.module, &frame.file];
        names.into_iter().flatten().any(|name| self.matches_name(name))
    }

    /// Whether a pattern matches a frame of the stack. Pass whole stacks, even if reports show only a part of them.
    pub(crate) fn matches_stack(&self, stack: &[FrameId], frames: &[Frame]) -> bool {
        !self.is_empty() && stack.iter().filter_map(|id| frames.get(id.0 as usize)).any(|frame| self.matches(frame))
    }

    /// Whether a pattern matches a name: for blocks without a stack, the only candidate is the name of their type.
    pub fn matches_name(&self, name: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(name))
    }
}

/// Pieces that must occur in order, the first at the start if the pattern starts with `^`, and the last at the end if it ends with `$`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    pieces: Vec<String>,
    at_start: bool,
    at_end: bool,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let (text, at_start) = text.strip_prefix('^').map_or((text, false), |rest| (rest, true));
        let (text, at_end) = text.strip_suffix('$').map_or((text, false), |rest| (rest, true));
        Self { pieces: text.split('*').map(str::to_owned).collect(), at_start, at_end }
    }

    fn matches(&self, name: &str) -> bool {
        let [first, others @ ..] = self.pieces.as_slice() else { return true };
        let rest = if self.at_start { name.strip_prefix(first.as_str()) } else { after(name, first) };
        let Some(mut rest) = rest else { return false };
        let Some((last, between)) = others.split_last() else {
            // A single piece can match at the end even if its first occurrence is earlier.
            return !self.at_end || if self.at_start { rest.is_empty() } else { name.ends_with(first.as_str()) };
        };
        for piece in between {
            let Some(next) = after(rest, piece) else { return false };
            rest = next;
        }
        if self.at_end { rest.ends_with(last.as_str()) } else { rest.contains(last.as_str()) }
    }
}

/// Returns the text after the first occurrence of the piece.
fn after<'a>(text: &'a str, piece: &str) -> Option<&'a str> {
    text.find(piece).map(|at| &text[at + piece.len()..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_match_like_in_the_sanitizers() {
        let check = |pattern: &str, name: &str, expected: bool| {
            assert_eq!(Pattern::new(pattern).matches(name), expected, "{pattern} on {name}");
        };
        for (pattern, name, expected) in [
            ("foo", "foo", true),
            ("foo", "my_foo_2", true),
            ("foo", "fo", false),
            ("^foo", "foobar", true),
            ("^foo", "a foo", false),
            ("foo$", "a foo", true),
            ("foo$", "foo foo", true),
            ("foo$", "foobar", false),
            ("^foo$", "foo", true),
            ("^foo$", "foo foo", false),
            ("a*c", "xabcx", true),
            ("a*c", "ca", false),
            ("^a*c$", "abc", true),
            ("^a*c$", "abcd", false),
            ("^a*b*c$", "abac", true),
            ("^aa*a$", "aa", false),
            ("*", "", true),
            ("lib*.so", "/usr/lib/libm.so.6", true),
            ("/src/*.c$", "/src/cache.c", true),
            ("std::vector<*>::push_back", "std::vector<int, std::allocator<int>>::push_back(int&&)", true),
        ] {
            check(pattern, name, expected);
        }
    }

    #[test]
    fn files_have_comments_and_blank_lines() {
        let text = "# known\n\nleak:foo\n  leak:a:b  \r\n";
        let suppressions = Suppressions::parse(text).expect("all lines are good");
        assert_eq!(suppressions.patterns, [Pattern::new("foo"), Pattern::new("a:b")]);
        assert!(Suppressions::parse("# nothing\n").expect("a file of comments is valid").is_empty());
    }

    #[test]
    fn invalid_lines_are_reported_with_their_number() {
        let check = |text: &str, expected: &str| {
            let error = Suppressions::parse(text).expect_err("a bad line").to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("leak:a\nrace:b", "line 2: unsupported suppression type `race`");
        check("\nfoo", "line 2: `foo` is not a suppression");
        check("leak:", "line 1: an empty pattern");
        check("Leak:a", "line 1: unsupported suppression type `Leak`");
    }

    proptest! {
        #[test]
        fn patterns_match_like_a_backtracking_matcher(pattern in "\\^?[ab*]{0,6}\\$?", name in "[ab]{0,8}") {
            fn whole(pattern: &[u8], name: &[u8]) -> bool {
                match (pattern.split_first(), name.split_first()) {
                    (None, _) => name.is_empty(),
                    (Some((b'*', rest)), _) => {
                        whole(rest, name) || name.split_first().is_some_and(|(_, name)| whole(pattern, name))
                    }
                    (Some((byte, rest)), Some((first, name))) => byte == first && whole(rest, name),
                    (Some(_), None) => false,
                }
            }
            let mut all = pattern.clone();
            all = if let Some(rest) = all.strip_prefix('^') { rest.to_owned() } else { format!("*{all}") };
            all = if let Some(rest) = all.strip_suffix('$') { rest.to_owned() } else { format!("{all}*") };
            prop_assert_eq!(Pattern::new(&pattern).matches(&name), whole(all.as_bytes(), name.as_bytes()));
        }
    }
}
