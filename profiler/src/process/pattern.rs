//! Patterns for programs (`--cmdline`, `--exclude`) and modules.

use std::fmt;
use std::str::FromStr;

use globset::{GlobBuilder, GlobMatcher};

/// Maximum length of a pattern: that of a path in Linux.
const PATTERN_BYTES_MAX: usize = 4096;

const METACHARACTERS: [char; 5] = ['*', '?', '[', '{', '\\'];

/// Pattern for programs. Without a `/`, it is compared with the base name of `argv[0]`, cut at `@` unless the pattern contains an
/// `@`; with a `/`, with the whole of `argv[0]`. [`Names`] defines these for programs that overwrite `argv[0]`; whole titles
/// match as well (`nginx: worker*`). `*` matches any characters including `/`, `?` one, `[…]` one of a set, `{a,b}` one of
/// several patterns, and `\` quotes the next character. Case-sensitive.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    /// Compiled pattern; `None` for an exact pattern.
    glob: Option<GlobMatcher>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    #[error("the pattern `{0}` is empty; give a program's name such as `redis-server`, or `redis*`")]
    Empty(String),
    #[error("the pattern `{0}` looks like a PID; use `--pid {0}`, or `{1}` for a program of that name")]
    Number(String, String),
    #[error("the pattern `{0}…` has {1} bytes, more than any path ({PATTERN_BYTES_MAX}); shorten it with `*`")]
    TooLong(String, usize),
    #[error("the pattern `{0}` is invalid: {1}; quote `*`, `?`, `[` or `{{` with a `\\`")]
    Glob(String, String),
}

impl Pattern {
    pub fn matches(&self, names: &Names) -> bool {
        let names = if self.text.contains('/') {
            &names.whole
        } else if self.text.contains('@') {
            &names.programs
        } else {
            &names.cut
        };
        names.iter().any(|name| self.glob.as_ref().map_or(*name == self.text, |glob| glob.is_match(name)))
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
        let invalid = |error: globset::Error| PatternError::Glob(text.to_owned(), error.kind().to_string());
        let build = || GlobBuilder::new(text).literal_separator(false).backslash_escape(true).build().map_err(invalid);
        let glob = text.contains(METACHARACTERS).then(build).transpose()?.map(|glob| glob.compile_matcher());
        Ok(Self { text: text.to_owned(), glob })
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

/// Names of a process by which patterns find it. A program may overwrite its arguments by a title:
/// `postgres: 15/main: checkpointer`, `sshd: user@pts/0`. The kernel does not mark titles, but a title leaves a first argument
/// with a blank in it and no others. Its first word names the program, and so does the executable, which also replaces a missing
/// `argv[0]`. A path with blanks and without arguments resembles a title, unless it is the executable's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Base names, also without the `-` of a login shell, and titles without the directory of their first word.
    pub programs: Vec<String>,
    /// The names in `programs`, cut at `@`, as in Android: `composer@2.1-service` is `composer`. Titles are not cut.
    pub cut: Vec<String>,
    /// `argv[0]`, and the first word of a title.
    pub whole: Vec<String>,
}

impl Names {
    /// Names of a process. `comm` has at most 15 bytes, and is only used if nothing else names the program.
    pub fn of(arguments: &[String], executable: Option<&str>, comm: &str) -> Self {
        let first = arguments.first().map_or("", |first| first.trim());
        let executable = executable.filter(|path| !path.is_empty());
        let mut names = Self::default();
        let has_blank = has_blank(first);
        let alone = arguments.iter().skip(1).all(String::is_empty);
        if !first.is_empty() {
            add(&mut names.whole, first);
            if has_blank && alone {
                names.add_title(first, executable);
            } else {
                names.add_program(base_name(first));
            }
        }
        if Self::need_executable(arguments) {
            match executable {
                Some(path) => names.add_path(path),
                None => names.add_program(comm),
            }
        }
        names
    }

    /// Whether the executable is needed in addition to the arguments.
    pub fn need_executable(arguments: &[String]) -> bool {
        let first = arguments.first().map_or("", |first| first.trim());
        has_blank(first) || base_name(first).is_empty()
    }

    fn add_title(&mut self, title: &str, executable: Option<&str>) {
        let of_executable = executable.filter(|path| title.strip_prefix(path).is_some_and(ends_a_word));
        let end = of_executable.map_or_else(|| title.find(char::is_whitespace).unwrap_or(title.len()), str::len);
        let (word, rest) = title.split_at(end);
        self.add_path(word.trim_end_matches(':'));
        let titled = format!("{}{rest}", base_name(word));
        add(&mut self.programs, &titled);
        add(&mut self.cut, &titled);
    }

    fn add_path(&mut self, path: &str) {
        add(&mut self.whole, path);
        self.add_program(base_name(path));
    }

    fn add_program(&mut self, name: &str) {
        let of_login_shell = name.strip_prefix('-').unwrap_or(name);
        for name in [name, of_login_shell] {
            add(&mut self.programs, name);
            // A leading `@` requests protection from being killed at shutdown, and is not a version.
            let at = name.char_indices().skip(1).find(|(_, letter)| *letter == '@').map_or(name.len(), |(at, _)| at);
            add(&mut self.cut, &name[..at]);
        }
    }
}

fn has_blank(text: &str) -> bool {
    text.contains(char::is_whitespace)
}

fn ends_a_word(rest: &str) -> bool {
    rest.chars().next().is_none_or(|letter| letter.is_whitespace() || letter == ':')
}

fn base_name(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
}

fn add(names: &mut Vec<String>, name: &str) {
    if !name.is_empty() && !names.iter().any(|known| known == name) {
        names.push(name.to_owned());
    }
}

/// A pattern for modules. A pattern that begins with `/` is compared with whole paths, any other with file names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, derive_more::Display)]
pub struct ModulePattern(String);

impl ModulePattern {
    /// Creates a pattern such as `libcudart.so*`, `/opt/app/lib/libarena.so`, `*`.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    pub fn is_any(&self) -> bool {
        self.0 == "*"
    }

    pub fn matches(&self, path: &str) -> bool {
        let name = if self.0.starts_with('/') { path } else { path.rsplit('/').next().unwrap_or(path) };
        matches(self.0.as_bytes(), name.as_bytes())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether a pattern matches a name. Extends the prefixes of the name that match by one byte of the pattern after the other.
/// Quadratic, but names are short.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let mut matched = vec![false; name.len() + 1];
    matched[0] = true;
    for &byte in pattern {
        if byte == b'*' {
            let first = matched.iter().position(|&is_matched| is_matched).unwrap_or(matched.len());
            matched[first..].fill(true);
        } else {
            matched.pop();
            matched.insert(0, false);
            name.iter()
                .zip(&mut matched[1..])
                .for_each(|(&own, is_matched)| *is_matched &= byte == b'?' || byte == own);
        }
    }
    matched[name.len()]
}

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
    fn patterns_with_a_slash_match_whole_paths() {
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
    fn titles_match_by_program_and_completely() {
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
    fn invalid_patterns_are_refused_by_name() {
        for (text, message) in [
            ("", "the pattern `` is empty; give a program's name such as `redis-server`, or `redis*`"),
            ("  ", "the pattern `  ` is empty; give a program's name such as `redis-server`, or `redis*`"),
            ("1234", "the pattern `1234` looks like a PID; use `--pid 1234`, or `[1]234` for a program of that name"),
            (
                "a[b",
                "the pattern `a[b` is invalid: unclosed character class; missing ']'; quote `*`, `?`, `[` or `{` with a `\\`",
            ),
        ] {
            assert_eq!(text.parse::<Pattern>().expect_err("refused").to_string(), message);
        }
        let error = "x".repeat(5000).parse::<Pattern>().expect_err("refused").to_string();
        assert!(error.starts_with("the pattern `xxxxxxxx") && error.contains("has 5000 bytes"), "{error}");
        assert!("{a".parse::<Pattern>().is_err() && "a\\".parse::<Pattern>().is_err());
        check("[1]234", &["/opt/1234"], "/x", true);
    }

    proptest! {
        #[test]
        fn any_pattern_is_parsed_without_panic(pattern in any::<String>(), glob in "[a-z*?\\[\\]{},!@/\\\\-]{0,60}", name in any::<String>()) {
            for text in [pattern, glob] {
                if let Ok(pattern) = text.parse::<Pattern>() {
                    let _ = pattern.matches(&Names::of(std::slice::from_ref(&name), None, "comm"));
                }
            }
        }

        #[test]
        fn a_name_matches_itself_and_its_prefix(name in "[a-z][a-zA-Z0-9._-]{0,20}", at in 0usize..20) {
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
    fn the_longest_pattern_is_parsed() {
        for text in ["*a".repeat(2048), "?".repeat(4096), "[a-z]".repeat(819), format!("{{{}}}", "a,".repeat(2047))] {
            let pattern: Pattern = text.parse().expect("a pattern");
            assert!(!pattern.matches(&Names::of(&["b".repeat(50)], None, "comm")), "{text}");
        }
    }
}

#[cfg(test)]
mod names_tests {
    use proptest::prelude::*;

    use super::*;

    fn check(arguments: &[&str], executable: Option<&str>, cut: &[&str], whole: &[&str]) {
        let owned: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let names = Names::of(&owned, executable, "comm");
        assert_eq!(names.cut, cut, "{arguments:?}");
        assert_eq!(names.whole, whole, "{arguments:?}");
    }

    #[test]
    fn arguments_name_the_program() {
        check(
            &["/usr/bin/redis-server", "*:6379"],
            Some("/usr/bin/redis-check-rdb"),
            &["redis-server"],
            &["/usr/bin/redis-server"],
        );
        check(&["-bash"], Some("/usr/bin/bash"), &["-bash", "bash"], &["-bash"]);
        check(&["/vendor/bin/hw/composer@2.1-service"], None, &["composer"], &["/vendor/bin/hw/composer@2.1-service"]);
        check(&["/srv/a@b/tool"], None, &["tool"], &["/srv/a@b/tool"]);
        check(&["@sbin/plymouthd", "--mode=boot"], None, &["plymouthd"], &["@sbin/plymouthd"]);
        check(&["@root"], None, &["@root"], &["@root"]);
        check(&["(sd-pam)"], None, &["(sd-pam)"], &["(sd-pam)"]);
        check(&["dir/"], None, &["dir"], &["dir/"]);
    }

    #[test]
    fn the_first_word_of_a_title_names_the_program() {
        let postgres = "/usr/lib/postgresql/15/bin/postgres";
        check(
            &["postgres: 15/main: checkpointer ", "", ""],
            Some(postgres),
            &["postgres", "postgres: 15/main: checkpointer"],
            &["postgres: 15/main: checkpointer", "postgres", postgres],
        );
        check(
            &["/usr/bin/redis-server 127.0.0.1:6379"],
            Some("/usr/bin/redis-check-rdb"),
            &["redis-server", "redis-server 127.0.0.1:6379", "redis-check-rdb"],
            &["/usr/bin/redis-server 127.0.0.1:6379", "/usr/bin/redis-server", "/usr/bin/redis-check-rdb"],
        );
        check(
            &["sshd: user@pts/0"],
            Some("/usr/sbin/sshd"),
            &["sshd", "sshd: user@pts/0"],
            &["sshd: user@pts/0", "sshd", "/usr/sbin/sshd"],
        );
        check(
            &["nginx: worker process"],
            None,
            &["nginx", "nginx: worker process", "comm"],
            &["nginx: worker process", "nginx"],
        );
    }

    #[test]
    fn paths_with_blanks_are_not_titles() {
        let chrome = "/opt/Google Chrome/chrome";
        check(&[chrome, "--type=gpu"], Some(chrome), &["chrome"], &[chrome]);
        check(&[chrome], Some(chrome), &["chrome"], &[chrome]);
        check(
            &["/opt/Google Chrome/chrome --type=gpu"],
            Some(chrome),
            &["chrome", "chrome --type=gpu"],
            &["/opt/Google Chrome/chrome --type=gpu", chrome],
        );
    }

    #[test]
    fn without_arguments_the_executable_names_the_program() {
        for arguments in [&[][..], &[""], &["  "], &["", "-v"]] {
            check(arguments, Some("/usr/bin/tool"), &["tool"], &["/usr/bin/tool"]);
            check(arguments, None, &["comm"], &[]);
        }
        check(&["///"], Some("/usr/bin/tool"), &["tool"], &["///", "/usr/bin/tool"]);
    }

    proptest! {
        #[test]
        fn any_process_is_named_without_panic(arguments in proptest::collection::vec(any::<String>(), 0..4),
                                          executable in proptest::option::of(any::<String>())) {
            let names = Names::of(&arguments, executable.as_deref(), "comm");
            prop_assert!(!names.programs.is_empty() || executable.is_some(), "{names:?}");
            prop_assert!(names.programs.iter().chain(&names.cut).chain(&names.whole).all(|name| !name.is_empty()));
        }

        #[test]
        fn a_title_never_hides_the_program(program in "[a-z][a-z0-9-]{0,12}", rest in "[ -~]{0,40}") {
            for title in [format!("{program}: {rest}."), format!("/usr/sbin/{program} {rest}.")] {
                let names = Names::of(&[title], None, "comm");
                prop_assert!(names.cut.contains(&program), "{names:?}");
            }
        }
    }
}

#[cfg(test)]
mod module_pattern_tests {
    use super::*;

    #[test]
    fn patterns_match_file_names_or_whole_paths() {
        let check = |pattern: &str, path: &str, expected: bool| {
            assert_eq!(ModulePattern::new(pattern).matches(path), expected, "{pattern} {path}");
        };
        check("libcudart.so*", "/usr/local/cuda/lib64/libcudart.so.12.4.99", true);
        check("libcudart.so*", "/usr/lib/libcuda.so.1", false);
        check("libarena.so", "/opt/libarena.so.1", false);
        check("/opt/*/libarena.so", "/opt/app/libarena.so", true);
        check("/opt/libarena.so", "/usr/libarena.so", false);
        check("python3.?", "/usr/bin/python3.9", true);
        check("python3.?", "/usr/bin/python3.11", false);
        check("*a*b*", "/xaxxb", true);
        check("*a*b*", "/xbxxa", false);
        check("*", "[vdso]", true);
        check("", "/", true);
    }

    proptest::proptest! {
        #[test]
        fn a_name_matches_itself_and_with_any_part_replaced_by_a_star(name in "[a-z.]{0,12}", from: usize, to: usize) {
            let (from, to) = (from % (name.len() + 1), to % (name.len() + 1));
            let (from, to) = (from.min(to), from.max(to));
            let pattern = format!("{}*{}", &name[..from], &name[to..]);
            proptest::prop_assert!(ModulePattern::new(&name).matches(&name));
            proptest::prop_assert!(ModulePattern::new(&pattern).matches(&name));
        }
    }
}
