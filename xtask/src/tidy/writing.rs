//! Creating, replacing, removing, and listening at a path: heapbpf is mostly root, and others can exchange what a path leads to. So
//! only a few modules may, which open what they change folder by folder and judge what they have opened. Tokens are inspected, so that
//! macros count.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Ident, TokenTree};

use super::Finding;
use super::imports::{follows_separator, is_punct};
use super::source::{self, Source};

/// The agent, with its crates.
const FOLDER: &str = "profiler/";
/// The crate of the modules that may.
const LINUX: &str = "profiler/crates/linux";
/// Programs that are not released.
const EXAMPLES: &str = "profiler/examples/";

/// The modules, below [`FOLDER`].
const DOOR: [&str; 6] = [
    "crates/linux/src/files.rs",
    "crates/linux/src/folder.rs",
    "crates/linux/src/listener.rs",
    "crates/linux/src/place.rs",
    "crates/linux/src/proc/writable.rs",
    "crates/linux/src/walk.rs",
];

/// A file, what it may use, and why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[(
    "crates/linux/src/confinement.rs",
    "create_dir",
    "in the symbolizer's root directory, which is in a mount namespace of its own",
)];

/// Names of std and rustix, whatever is before them.
const NAMES: [&str; 23] = [
    "chmodat",
    "chownat",
    "create_dir",
    "create_dir_all",
    "DirBuilder",
    "hard_link",
    "lchown",
    "linkat",
    "mkdirat",
    "mkfifoat",
    "mknodat",
    "OpenOptions",
    "remove_dir",
    "remove_dir_all",
    "remove_file",
    "renameat",
    "renameat_with",
    "SocketAddrUnix",
    "symlink",
    "symlinkat",
    "tempfile",
    "unlinkat",
    "utimensat",
];

/// Names that are in question only behind another one.
const QUALIFIED: [(&str, &[&str]); 5] = [
    ("fs", &["chmod", "chown", "copy", "rename", "set_permissions", "write"]),
    ("File", &["create", "create_new", "options"]),
    ("OFlags", &["APPEND", "CREATE", "RDWR", "TMPFILE", "TRUNC", "WRONLY"]),
    ("UnixDatagram", &["bind", "bind_addr"]),
    ("UnixListener", &["bind", "bind_addr"]),
];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut unused: BTreeSet<_> = EXCEPTIONS.iter().map(|(file, name, _)| (*file, (*name).to_owned())).collect();
    for source in source::without_test_files(sources).filter(|source| !source.path.starts_with(EXAMPLES)) {
        let Some(file) = source.path.strip_prefix(FOLDER).filter(|file| !DOOR.contains(file)) else { continue };
        let Some(rust) = &source.rust else { continue };
        let mut add = |word: &Ident| {
            let name = word.to_string();
            let is_excepted = EXCEPTIONS.iter().any(|(path, excepted, _)| *path == file && *excepted == name);
            unused.remove(&(file, name.clone()));
            if !is_excepted {
                let message = format!(
                    "`{name}` belongs in the modules of `{LINUX}` that judge what they have opened: see xtask/src/tidy/writing.rs"
                );
                findings.push(Finding { path: source.path.to_owned(), line: word.span().start().line, message });
            }
        };
        walk(&source::without_tests(rust.tokens.clone()), &mut add);
    }
    // A part of the sources has no exceptions.
    let is_whole = |file: &str| sources.iter().any(|source| source.path.strip_prefix(FOLDER) == Some(file));
    findings.extend(unused.into_iter().filter(|(file, _)| is_whole(file)).map(|(file, name)| Finding {
        path: format!("{FOLDER}{file}"),
        line: 1,
        message: format!("does not use `{name}`: remove the exception in xtask/src/tidy/writing.rs"),
    }));
    findings
}

fn walk(trees: &[TokenTree], add: &mut impl FnMut(&Ident)) {
    for (at, tree) in trees.iter().enumerate() {
        match tree {
            TokenTree::Group(group) => walk(&source::without_tests(group.stream()), add),
            TokenTree::Ident(name) if NAMES.iter().any(|known| name == known) && !is_method(&trees[..at]) => add(name),
            TokenTree::Ident(name) => {
                let names = QUALIFIED.iter().find(|(qualifier, _)| name == qualifier).map(|(_, names)| *names);
                if let Some(names) = names.filter(|_| follows_separator(trees, at + 1)) {
                    let is_in_question = |name: &&Ident| names.iter().any(|known| *name == known);
                    behind(trees.get(at + 3)).iter().filter(is_in_question).for_each(&mut *add);
                }
            }
            _ => {}
        }
    }
}

/// The names that follow `::`: one, or those in braces.
fn behind(tree: Option<&TokenTree>) -> Vec<Ident> {
    match tree {
        Some(TokenTree::Ident(name)) => vec![name.clone()],
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            let inner: Vec<_> = group.stream().into_iter().collect();
            let first = |part: &[TokenTree]| match part.first() {
                Some(TokenTree::Ident(name)) => Some(name.clone()),
                _ => None,
            };
            inner.split(|tree| is_punct(Some(tree), ',')).filter_map(first).collect()
        }
        _ => Vec::new(),
    }
}

fn is_method(before: &[TokenTree]) -> bool {
    is_punct(before.last(), '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::parse(path, text).expect("samples parse")).collect();
        check(&sources).iter().map(|finding| finding.to_string()).collect()
    }

    /// Lines with findings in a file of heapbpf.
    fn lines(text: &str) -> Vec<usize> {
        let sources = [Source::parse("profiler/src/top/a.rs", text).expect("samples parse")];
        check(&sources).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn each_way_to_change_files_is_found() {
        let ways = [
            "use std::fs::OpenOptions;",
            "use std::fs::{self, File, write};",
            "use std::{fs::{rename}, io};",
            "use rustix::fs::{Mode, mkdirat};",
            "use rustix::net::SocketAddrUnix;",
            "fn f() { fs::write(path, bytes); }",
            "fn f() { std::fs::set_permissions(path, mode); }",
            "fn f() { File::options().write(true); }",
            "fn f() { std::fs::File::create(path); }",
            "fn f() { remove_file(path); }",
            "fn f() { UnixListener::bind(path); }",
            "fn f() { openat(CWD, path, OFlags::RDONLY | OFlags::CREATE, mode); }",
            "m! { fn f() { fs::copy(a, b); } }",
        ];
        for way in ways {
            assert_eq!(lines(&format!("//! A.\n{way}\n")), [2], "{way}");
        }
    }

    #[test]
    fn reading_handles_and_other_names_are_accepted() {
        let others = [
            "use std::fs::{self, File};",
            "fn f() { fs::read(path); File::open(path); }",
            "fn f() { openat(CWD, path, OFlags::RDONLY | OFlags::NOFOLLOW, mode); }",
            "fn f() { file.set_permissions(mode); folder.remove_file(name); }",
            "fn f() { Server::bind(address); TcpListener::bind(address); Output::create(path); queue::write(bytes); }",
            "fn f() { metadata.is_symlink(); options.write(true); }",
            "#[cfg(test)] mod tests { fn f() { fs::write(path, bytes); } }",
        ];
        for other in others {
            assert_eq!(lines(&format!("//! A.\n{other}\n")), [0; 0], "{other}");
        }
    }

    #[test]
    fn only_some_modules_and_tests_may() {
        let write = "fn f() { fs::write(path, bytes); }\n";
        let message = "`write` belongs in the modules of `profiler/crates/linux` that judge what they have opened: see \
            xtask/src/tidy/writing.rs";
        assert_eq!(found(&[("profiler/src/cli/a.rs", write)]), [format!("profiler/src/cli/a.rs:1: {message}")]);
        for path in [
            "profiler/crates/linux/src/place.rs",
            "profiler/src/cli/a/tests.rs",
            "profiler/examples/a.rs",
            "tests/src/a.rs",
        ] {
            assert_eq!(found(&[(path, write)]), [""; 0], "{path}");
        }
        let declared = "#[cfg(test)]\nmod fixture;\n";
        assert_eq!(found(&[("profiler/src/cli/a.rs", declared), ("profiler/src/cli/a/fixture.rs", write)]), [""; 0]);
    }

    #[test]
    fn exceptions_are_of_one_name_and_in_use() {
        let path = "profiler/crates/linux/src/confinement.rs";
        let create = "fn f() { fs::create_dir(path); }\n";
        assert_eq!(found(&[(path, create)]), [""; 0]);
        let both = found(&[(path, "fn f() { fs::create_dir(path); fs::remove_dir(path); }\n")]);
        assert!(both.len() == 1 && both[0].contains("`remove_dir`"), "{both:?}");
        let none = found(&[(path, "fn f() {}\n")]);
        assert!(none.len() == 1 && none[0].contains("remove the exception"), "{none:?}");
    }
}
