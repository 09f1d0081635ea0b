//! What a process may be called by, from its arguments and its executable. Pure.

/// The names of one process.
///
/// A program may write over its arguments, and many show a title there: `postgres: 15/main: checkpointer`,
/// `/usr/bin/redis-server 127.0.0.1:6379`, `sshd: user@pts/0`. Nothing says so, but a title leaves a first argument
/// with a blank in it and nothing behind. Its first word names the program, and so does the executable, which stands in
/// as well where there is no `argv[0]`. A path with blanks in it looks like a title too when no argument follows; it is
/// recognised when it is the executable's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Base names. A login shell's also without its `-`; a title without the directory of its first word, too.
    pub programs: Vec<String>,
    /// The same cut at `@`, as Android has it: `composer@2.1-service` is `composer`. Titles are not cut.
    pub cut: Vec<String>,
    /// Whole: `argv[0]`; of a title its first word as well.
    pub whole: Vec<String>,
}

impl Names {
    /// The names of a process with these arguments, this executable if it is known, and this name given by the kernel,
    /// which is at most 15 bytes long and only taken where nothing else names the program.
    pub fn of(arguments: &[String], executable: Option<&str>, comm: &str) -> Self {
        let first = arguments.first().map_or("", |first| first.trim());
        let executable = executable.filter(|path| !path.is_empty());
        let mut names = Self::default();
        let has_blank = has_blank(first);
        let alone = arguments.iter().skip(1).all(String::is_empty);
        if !first.is_empty() {
            names.add_whole(first);
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

    /// Whether the executable says more of the names than the arguments alone.
    pub fn need_executable(arguments: &[String]) -> bool {
        let first = arguments.first().map_or("", |first| first.trim());
        has_blank(first) || base_name(first).is_empty()
    }

    /// Adds a title and the program that it begins with.
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
        self.add_whole(path);
        self.add_program(base_name(path));
    }

    fn add_whole(&mut self, path: &str) {
        add(&mut self.whole, path);
    }

    fn add_program(&mut self, name: &str) {
        let of_login_shell = name.strip_prefix('-').unwrap_or(name);
        for name in [name, of_login_shell] {
            add(&mut self.programs, name);
            // What begins with `@` asks not to be killed at shutdown, and has no version.
            let at = name.char_indices().skip(1).find(|(_, letter)| *letter == '@').map_or(name.len(), |(at, _)| at);
            add(&mut self.cut, &name[..at]);
        }
    }
}

fn has_blank(text: &str) -> bool {
    text.contains(char::is_whitespace)
}

/// Whether the word before this rest ends there.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(arguments: &[&str], executable: Option<&str>, cut: &[&str], whole: &[&str]) {
        let owned: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let names = Names::of(&owned, executable, "comm");
        assert_eq!(names.cut, cut, "{arguments:?}");
        assert_eq!(names.whole, whole, "{arguments:?}");
    }

    #[test]
    fn arguments_as_given_name_the_program() {
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
    fn titles_name_the_program_in_their_first_word() {
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
    fn paths_with_blanks_are_no_titles() {
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
        fn anything_is_survived_and_named(arguments in proptest::collection::vec(any::<String>(), 0..4),
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
