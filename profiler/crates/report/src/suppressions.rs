//! Suppressions in the syntax of LeakSanitizer: known leaks that reports leave out, as in `leak:^libcrypto.so*`.
//! See <https://clang.llvm.org/docs/AddressSanitizer.html#suppressing-memory-leaks>.

use heapbpf_ledger::model::{CallsiteProfile, Frame, FrameId, LeakCandidate, Profile};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressions {
    patterns: Vec<Pattern>,
}

impl Suppressions {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut patterns = Vec::new();
        for (line, text) in (1..).zip(text.lines().map(str::trim)) {
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let reason = match text.split_once(':') {
                Some(("leak", "" | "^" | "$" | "^$")) => format!(
                    "the pattern of `{text}` has no text, and would suppress everything or nothing; write `leak:*` to suppress everything"
                ),
                Some(("leak", pattern)) => {
                    patterns.push(Pattern::new(pattern));
                    continue;
                }
                Some((kind, _)) => format!("unsupported suppression type `{kind}`; only `leak:PATTERN` is supported"),
                None => format!("`{text}` is not a suppression; write `leak:PATTERN`"),
            };
            return Err(format!("line {line}: {reason}"));
        }
        Ok(Self { patterns })
    }

    pub fn extend(&mut self, other: Self) {
        self.patterns.extend(other.patterns);
    }

    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    pub(crate) fn matches(&self, frame: &Frame) -> bool {
        let names = [&frame.function, &frame.module, &frame.file];
        names.into_iter().flatten().any(|name| self.matches_name(name))
    }

    /// Pass whole stacks, even if reports show only a part of them.
    pub fn matches_stack(&self, stack: &[FrameId], frames: &[Frame]) -> bool {
        !self.is_empty() && stack.iter().filter_map(|id| frames.get(id.0 as usize)).any(|frame| self.matches(frame))
    }

    /// For blocks without a stack, whose only candidate is the name of their type.
    pub fn matches_name(&self, name: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(name))
    }
}

/// The pieces between `*`: a name starts with the first one, ends with the last one, and has the others in order between them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern(Vec<String>);

impl Pattern {
    /// Text without `^` can have any start, text without `$` any end.
    fn new(text: &str) -> Self {
        let text = text.strip_prefix('^').map_or_else(|| format!("*{text}"), str::to_owned);
        let text = text.strip_suffix('$').map_or_else(|| format!("{text}*"), str::to_owned);
        Self(text.split('*').map(str::to_owned).collect())
    }

    /// An empty name has nothing to match, as in LeakSanitizer (`TemplateMatch` in sanitizer_common.cpp).
    fn matches(&self, name: &str) -> bool {
        if name.is_empty() {
            return false;
        }
        let [first, between @ .., last] = self.0.as_slice() else { return self.0.iter().all(|only| only == name) };
        let Some(mut rest) = name.strip_prefix(first.as_str()) else { return false };
        for piece in between {
            let Some(at) = rest.find(piece.as_str()) else { return false };
            rest = &rest[at + piece.len()..];
        }
        rest.ends_with(last.as_str())
    }
}

pub(crate) const CANDIDATES_MAX: usize = 100;

impl Suppressions {
    /// Removes and counts the candidates of a profile that a suppression matches, and truncates the rest to [`CANDIDATES_MAX`].
    pub fn apply(&self, profile: &mut Profile) {
        let Profile { targets, frames, .. } = profile;
        for target in targets {
            let Some(leaks) = &mut target.leaks else { continue };
            let callsites: &[CallsiteProfile] = &target.callsites;
            let is_suppressed = |candidate: &LeakCandidate| {
                let stack = callsites.get(candidate.callsite).map_or(&[][..], |callsite| &callsite.stack);
                self.matches_stack(stack, frames)
            };
            let (suppressed, kept) = leaks.candidates.iter().copied().partition(is_suppressed);
            leaks.candidates = kept;
            leaks.candidates.truncate(CANDIDATES_MAX);
            let suppressed: Vec<LeakCandidate> = suppressed;
            leaks.suppressed_count += suppressed.len() as u64;
            let live = |candidate: &LeakCandidate| callsites[candidate.callsite].totals.live_bytes();
            leaks.suppressed_bytes += suppressed.iter().map(live).sum();
        }
    }
}

#[cfg(test)]
mod tests {
    use heapbpf_ledger::model::Leaks;
    use proptest::prelude::*;

    use super::*;
    use crate::View;
    use crate::summary::summary;
    use crate::testing as profiles;

    fn growing(candidates: usize, count: usize) -> Profile {
        let mut profile = profiles::exact();
        let candidate = |at: usize| LeakCandidate {
            // The first four are of one callsite, the others of another.
            callsite: usize::from(at >= 4),
            bytes_per_second: 1.0,
            margin: 0.5,
            old_share: 0.5,
            survival: None,
            score: 1.0,
        };
        let candidates = (0..candidates).map(candidate).collect();
        profile.targets[0].leaks = Some(Leaks { candidates, count, ..Leaks::default() });
        profile
    }

    fn suppressed(mut profile: Profile, suppressions: &str) -> (Leaks, String) {
        Suppressions::parse(suppressions).expect("good lines").apply(&mut profile);
        let text = summary(&profile, View::LiveBytes, 10, None, false);
        (profile.targets.swap_remove(0).leaks.expect("growth was computed"), text)
    }

    #[test]
    fn suppressed_candidates_are_not_listed() {
        let (leaks, text) = suppressed(growing(104, 120), "leak:^strdup$");
        assert_eq!((leaks.candidates.len(), leaks.suppressed_count), (4, 100));
        assert!(text.contains("first 4 of 20 growing callsites"), "{text}");
        let (leaks, text) = suppressed(growing(104, 120), "");
        assert_eq!((leaks.candidates.len(), leaks.suppressed_count), (CANDIDATES_MAX, 0));
        assert!(text.contains("first 5 of 120 growing callsites"), "{text}");
        let (leaks, _) = suppressed(growing(104, 104), "leak:main.c");
        assert_eq!((leaks.candidates.len(), leaks.suppressed_count), (0, 104));
    }

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
            ("*", "a", true),
            ("*", "", false),
            ("^*$", "", false),
            ("*$", "a", true),
            ("^*", "a", true),
            ("$$", "a", false),
            ("$$", "a$", true),
            ("^^", "a", false),
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
        for pattern in ["", "^", "$", "^$"] {
            check(&format!("\n leak:{pattern} "), &format!("line 2: the pattern of `leak:{pattern}` has no text"));
        }
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
            let expected = !name.is_empty() && whole(all.as_bytes(), name.as_bytes());
            prop_assert_eq!(Pattern::new(&pattern).matches(&name), expected);
        }
    }
}
