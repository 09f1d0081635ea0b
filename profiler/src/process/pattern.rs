//! Patterns for programs, as `--cmdline` and `--exclude` take them. Pure.

use std::fmt;
use std::str::FromStr;

use globset::{GlobBuilder, GlobMatcher};

use super::names::Names;

/// Longest pattern, in bytes: the longest path that Linux knows.
const PATTERN_BYTES_MAX: usize = 4096;

/// Characters that make a pattern more than a name.
const METACHARACTERS: [char; 5] = ['*', '?', '[', '{', '\\'];

/// A pattern that says which programs are meant.
///
/// Without a `/` it is compared with the base name of `argv[0]`, cut at `@` unless the pattern has an `@` itself. With
/// one, as in `/usr/bin/redis*` or `./server`, it is compared with the whole of `argv[0]`. What counts as `argv[0]`
/// where a program has written a title over it says [`Names`]; the whole title can be matched as well
/// (`nginx: worker*`).
///
/// `*` stands for any characters, `/` among them, `?` for one, `[…]` for one of a set, `{a,b}` for one of several
/// patterns, and `\` takes the next character for itself. A pattern without these is exact. Case counts.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    matcher: Matcher,
}

#[derive(Clone, Debug)]
enum Matcher {
    Exact,
    Glob(GlobMatcher),
}

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// It would match nothing.
    #[error("the pattern `{0}` is empty; give a program's name such as `redis-server`, or `redis*`")]
    Empty(String),
    /// Most likely it was meant for another option.
    #[error("the pattern `{0}` looks like a process's number; use `--pid {0}`, or `{1}` for a program of that name")]
    Number(String, String),
    /// No program's path is as long.
    #[error("the pattern `{0}…` has {1} bytes, more than any path ({PATTERN_BYTES_MAX}); shorten it with `*`")]
    TooLong(String, usize),
    /// Brackets or braces that do not fit.
    #[error("the pattern `{0}` cannot be understood: {1}; a `\\` before `*`, `?`, `[` or `{{` takes it for itself")]
    Glob(String, String),
}

impl Pattern {
    /// Whether the pattern means a process with these names.
    pub fn matches(&self, names: &Names) -> bool {
        let names = if self.text.contains('/') {
            &names.whole
        } else if self.text.contains('@') {
            &names.programs
        } else {
            &names.cut
        };
        names.iter().any(|name| match &self.matcher {
            Matcher::Exact => *name == self.text,
            Matcher::Glob(glob) => glob.is_match(name),
        })
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text.trim().is_empty() {
            return Err(PatternError::Empty(text.to_owned()));
        }
        if text.len() > PATTERN_BYTES_MAX {
            return Err(PatternError::TooLong(text.chars().take(40).collect(), text.len()));
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let (first, rest) = text.split_at(1);
            return Err(PatternError::Number(text.to_owned(), format!("[{first}]{rest}")));
        }
        let matcher = if text.contains(METACHARACTERS) {
            let glob = GlobBuilder::new(text).literal_separator(false).backslash_escape(true).build();
            Matcher::Glob(
                glob.map_err(|error| PatternError::Glob(text.to_owned(), error.kind().to_string()))?.compile_matcher(),
            )
        } else {
            Matcher::Exact
        };
        Ok(Self { text: text.to_owned(), matcher })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Pattern {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(pattern: &str, arguments: &[&str], executable: &str, expected: bool) {
        let owned: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let names = Names::of(&owned, Some(executable), "comm");
        let parsed: Pattern = pattern.parse().expect("a pattern");
        assert_eq!(parsed.matches(&names), expected, "{pattern} against {names:?}");
    }

    #[test]
    fn names_are_exact_and_globs_are_not() {
        let (redis, executable) = (["/usr/bin/redis-server", "*:6379"], "/usr/bin/redis-check-rdb");
        for pattern in
            ["redis-server", "redis*", "*server", "r?dis-server", "redis-[sq]erver", "{redis,valkey}-server", "*"]
        {
            check(pattern, &redis, executable, true);
        }
        for pattern in ["redis", "Redis-server", "server", "redis-check-rdb", "redis-serve?r", r"redis\*", "usr"] {
            check(pattern, &redis, executable, false);
        }
        check(r"\[kworker\]", &["[kworker]"], "/x", true);
    }

    #[test]
    fn patterns_with_a_slash_match_the_whole() {
        let (redis, executable) = (["/usr/bin/redis-server", "*:6379"], "/usr/bin/redis-check-rdb");
        for pattern in ["/usr/bin/redis-server", "/usr/*", "/*server", "*/bin/*", "/usr/bin/redis-serve[r]"] {
            check(pattern, &redis, executable, true);
        }
        for pattern in ["/redis-server", "/usr/bin", "/usr/bin/redis", "bin/redis-server", "/usr/bin/redis-server *"] {
            check(pattern, &redis, executable, false);
        }
        check("./server", &["./server"], "/srv/server", true);
        check("/srv/server", &["./server"], "/srv/server", false);
    }

    #[test]
    fn titles_match_by_program_and_in_whole() {
        let postgres = "/usr/lib/postgresql/15/bin/postgres";
        for title in ["postgres: checkpointer ", "postgres: 15/main: checkpointer ", "postgres: bob db [local] idle"] {
            for pattern in ["postgres", "postgres*", "post*", "/usr/lib/postgresql/*/bin/postgres", "postgres: *"] {
                check(pattern, &[title], postgres, true);
            }
            check("main", &[title], postgres, false);
        }
        check("postgres", &[postgres, "-D", "/var/lib/postgresql/15/main"], postgres, true);
        check("*: checkpointer", &["postgres: 15/main: checkpointer ", "", ""], postgres, true);
        check("postgres: 15/main:*", &["postgres: 15/main: checkpointer "], postgres, true);

        let redis = "/usr/bin/redis-server 127.0.0.1:6379";
        for pattern in
            ["redis-server", "redis*", "redis-server *:6379", "/usr/bin/redis-server", "/usr/bin/redis-server*"]
        {
            check(pattern, &[redis], "/usr/bin/redis-check-rdb", true);
        }
        check("redis-server", &["redis-server *:6379"], "/usr/bin/redis-check-rdb", true);
        check("nginx", &["nginx: worker process"], "/usr/sbin/nginx", true);
        check("nginx: worker*", &["nginx: worker process"], "/usr/sbin/nginx", true);
        check("nginx: worker*", &["nginx: master process nginx"], "/usr/sbin/nginx", false);
    }

    #[test]
    fn versions_are_cut_at_the_at_sign_and_titles_are_not() {
        let service = ["/vendor/bin/hw/android.hardware.composer@2.1-service"];
        check("android.hardware.composer", &service, "/x", true);
        check("*-service", &service, "/x", false);
        check("*composer@2.1-service", &service, "/x", true);
        check("/vendor/bin/hw/*@2*", &service, "/x", true);
        check("name", &["name@1.2.3"], "/x", true);
        for pattern in ["sshd", "sshd: user@*", "sshd: *", "ssh?"] {
            check(pattern, &["sshd: user@pts/0"], "/usr/sbin/sshd", true);
        }
        check("pts", &["sshd: user@pts/0"], "/usr/sbin/sshd", false);
    }

    #[test]
    fn login_shells_match_with_and_without_the_hyphen() {
        for (pattern, expected) in [("bash", true), ("-bash", true), ("ba*", true), ("sh", false)] {
            check(pattern, &["-bash"], "/usr/bin/bash", expected);
        }
        check("-bash", &["bash"], "/usr/bin/bash", false);
    }

    #[test]
    fn what_is_no_pattern_is_refused_by_name() {
        for (text, said) in [
            ("", "the pattern `` is empty; give a program's name such as `redis-server`, or `redis*`"),
            ("  ", "the pattern `  ` is empty; give a program's name such as `redis-server`, or `redis*`"),
            (
                "1234",
                "the pattern `1234` looks like a process's number; use `--pid 1234`, or `[1]234` for a program of that name",
            ),
            (
                "a[b",
                "the pattern `a[b` cannot be understood: unclosed character class; missing ']'; a `\\` before `*`, `?`, `[` or `{` takes it for itself",
            ),
        ] {
            assert_eq!(text.parse::<Pattern>().expect_err("refused").to_string(), said);
        }
        let error = "x".repeat(5000).parse::<Pattern>().expect_err("refused").to_string();
        assert!(error.starts_with("the pattern `xxxxxxxx") && error.contains("has 5000 bytes"), "{error}");
        assert!("{a".parse::<Pattern>().is_err() && "a\\".parse::<Pattern>().is_err());
        check("[1]234", &["/opt/1234"], "/x", true);
    }

    proptest! {
        #[test]
        fn any_pattern_is_survived(pattern in any::<String>(), glob in "[a-z*?\\[\\]{},!@/\\\\-]{0,60}", name in any::<String>()) {
            for text in [pattern, glob] {
                if let Ok(pattern) = text.parse::<Pattern>() {
                    let _ = pattern.matches(&Names::of(std::slice::from_ref(&name), None, "comm"));
                }
            }
        }

        #[test]
        fn a_name_matches_itself_and_its_beginning(name in "[a-z][a-zA-Z0-9._-]{0,20}", at in 0usize..20) {
            let names = Names::of(&[format!("/usr/bin/{name}")], None, "comm");
            let begin = &name[..at.min(name.len())];
            for text in [name.clone(), format!("{begin}*"), format!("*{name}"), format!("/usr/*/{name}")] {
                prop_assert!(text.parse::<Pattern>().expect("a pattern").matches(&names), "{text}");
            }
            let longer = format!("{name}x").parse::<Pattern>().expect("a pattern");
            prop_assert!(!longer.matches(&names));
        }
    }

    #[test]
    fn the_longest_pattern_is_understood() {
        for text in ["*a".repeat(2048), "?".repeat(4096), "[a-z]".repeat(819), format!("{{{}}}", "a,".repeat(2047))] {
            let pattern: Pattern = text.parse().expect("a pattern");
            assert!(!pattern.matches(&Names::of(&["b".repeat(50)], None, "comm")), "{text}");
        }
    }
}
