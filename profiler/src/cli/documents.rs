//! Checks that commands of heapbpf in the documentation have options that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::commands::commands;

/// Long options by command; the options without a command are under an empty name.
struct Options(BTreeMap<String, BTreeSet<String>>);

impl Options {
    fn new() -> Self {
        let mut all = commands();
        all.build();
        let of = |command: &clap::Command| {
            let names = command.get_arguments().filter_map(clap::Arg::get_long);
            names.map(str::to_owned).chain(["help".to_owned()]).collect::<BTreeSet<_>>()
        };
        let subcommands = all.get_subcommands().map(|command| (command.get_name().to_owned(), of(command)));
        Self(subcommands.chain([(String::new(), of(&all))]).collect())
    }

    fn unknown(&self, command: &str) -> Vec<String> {
        let mut words = command.split_whitespace().skip_while(|word| *word != "heapbpf").skip(1).peekable();
        let name = words.peek().filter(|word| self.0.contains_key(**word)).copied().unwrap_or_default();
        let known = &self.0[name];
        let own = words.take_while(|word| !["--", "|", ";", "&&", "#"].contains(word));
        let names = own.filter_map(|word| word.strip_prefix("--"));
        let names =
            names.map(|name| name.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').next().unwrap_or(name));
        names.filter(|name| !known.contains(*name)).map(|name| format!("--{name}")).collect()
    }
}

/// Whether a word may precede `heapbpf` in a command line: other programs have options of their own.
fn may_precede(word: &str) -> bool {
    ["sudo", "-E", "$", "#", "time"].contains(&word)
        || word.split_once('=').is_some_and(|(name, _)| !name.contains('-'))
}

/// Command lines of heapbpf on a page: in blocks of code, and in prose between backticks. The table of errors, which is last, is
/// left out.
fn documented(page: &str) -> Vec<String> {
    let page = page.split("<!-- table of errors").next().unwrap_or(page);
    let mut all: Vec<String> = Vec::new();
    let mut is_code = false;
    for line in page.replace("\\\n", " ").lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            all.push(line.to_owned());
        } else {
            all.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    all.retain(|command| {
        let mut words = command.split_whitespace();
        words.by_ref().find(|word| !may_precede(word)) == Some("heapbpf")
    });
    all
}

fn unknown(page: &str) -> Vec<(String, Vec<String>)> {
    let options = Options::new();
    let commands = documented(page).into_iter();
    let found = commands.map(|command| (options.unknown(&command), command)).filter(|(unknown, _)| !unknown.is_empty());
    found.map(|(unknown, command)| (command, unknown)).collect()
}

#[test]
fn documented_options_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let docs = fs::read_dir(root.join("docs")).expect("the documentation is there");
    let pages =
        docs.map(|entry| entry.expect("readable").path()).filter(|path| path.extension().is_some_and(|it| it == "md"));
    let mut count = 0;
    for path in pages.chain([root.join("README.md")]) {
        let page = fs::read_to_string(&path).expect("readable");
        count += documented(&page).len();
        assert_eq!(unknown(&page), [], "{path:?}");
    }
    assert!(count > 50, "only {count} commands were found");
}

#[test]
fn unknown_options_are_found() {
    for command in [
        "sudo heapbpf --pid 1 --interval=4KiB -o x.svg",
        "heapbpf leaks --follow-forks -- make --jobs",
        "heapbpf --help | grep --color x",
        "docker run --rm heapbpf --privileged",
        "heapbpf diff a b --fail-above 5%",
        "cargo build -p heapbpf --locked",
    ] {
        for page in [format!("```\n{command}\n```\n"), format!("Run `{command}`.\n")] {
            assert_eq!(unknown(&page), [], "{command}");
        }
    }
    let page = "See\n```\nHOME=x sudo heapbpf \\\n--intervall 1\n```\nand `heapbpf diff --duration 1`.\n";
    let found: Vec<String> = unknown(page).into_iter().flat_map(|(_, options)| options).collect();
    assert_eq!(found, ["--intervall", "--duration"]);
}
