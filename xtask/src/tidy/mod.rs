//! `cargo xtask tidy`: rules of this repository that neither rustfmt nor clippy checks.

mod docs;
mod imports;
mod names;
mod rules;
mod source;
mod writing;

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::{command, flaky, nightly};
use source::Source;

/// Checks the rules of this repository that neither rustfmt nor clippy knows.
///
/// Checks every file that git tracks or would track, and prints `file:line: problem` for each finding.
#[derive(clap::Args)]
#[command(after_help = "The rules:
  length     functions of at most 70 lines; files of more than 1,000 lines (tests excluded) are noted
  opening    a Rust file begins with a `//!` comment: what it does and what it leaves to others
  layers     which folder of profiler/src may use which: see xtask/src/tidy/imports.rs; crates by their Cargo.toml
  cycles     imports form no cycle: neither between folders of a crate nor between the files of one folder
  unsafe     only in profiler-ebpf, profiler/crates/linux/src, test targets, and `unsafe impl` in profiler-common
  writing    files are created, replaced, removed and listened at by modules of profiler/crates/linux/src: see xtask/src/tidy/writing.rs
  links      a link to a kernel's source names a version or a commit; a relative link leads to a file and a heading
  names      a path, `Type::function`, `Type::Variant` or `module::function` in *.md is in the tree, and so are types in ARCHITECTURE.md: see xtask/src/tidy/names.rs
  markers    no leftovers of merges or of unfinished work
  paths      no private folders of one machine
  commits    subjects of at most 72 characters
  ledger     suites of `cargo xtask nightly` have passed, at most 10 days and 200 commits ago; from 5 and 100 on, a warning
  quarantine tests of `tests/quarantine.toml` have been there for at most 7 days")]
pub(crate) struct Arguments {
    /// Print the size of the code and of the documentation instead.
    #[arg(long)]
    stats: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    /// Counted from 1.
    line: usize,
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

struct Findings<'a> {
    path: &'a str,
    found: Vec<Finding>,
}

impl Findings<'_> {
    fn add(&mut self, line: usize, message: impl Into<String>) {
        self.found.push(Finding { path: self.path.to_owned(), line, message: message.into() });
    }
}

type Rule = fn(&Source, &mut Findings<'_>);

const RULES: [Rule; 6] =
    [rules::length, rules::unsafe_code, rules::opening, rules::links, rules::leftovers, imports::check];

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let root = command::root()?;
    let mut files = Vec::new();
    for path in source::list(&root)? {
        if let Some(text) = source::read(&root, &path)? {
            files.push((path, text));
        }
    }
    let mut findings = Vec::new();
    let mut sources = Vec::new();
    for (path, text) in &files {
        match Source::parse(path, text) {
            Ok(source) => sources.push(source),
            Err(error) => findings.push(unparsable(path, &error)),
        }
    }
    if arguments.stats {
        print!("{}", source::statistics(&sources));
        return Ok(());
    }
    findings.extend(sources.iter().flat_map(check));
    findings.extend(imports::cycles(&sources));
    findings.extend(writing::check(&sources));
    findings.extend(docs::check(&files, &|path| root.join(path).exists()));
    findings.extend(names::check(&files));
    findings.extend(commits(&root));
    let in_quarantine = flaky::overdue(&root)?.into_iter();
    findings.extend(in_quarantine.map(|message| Finding { path: flaky::QUARANTINE.to_owned(), line: 1, message }));
    let (warnings, overdue) = nightly::overdue(&root)?;
    findings.extend(overdue.into_iter().map(|message| Finding { path: nightly::LEDGER.to_owned(), line: 1, message }));
    sources.iter().filter_map(rules::long).for_each(|note| println!("note: {note}"));
    warnings.iter().for_each(|warning| println!("warning: {warning}"));
    findings.sort();
    findings.dedup();
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} findings in {} files", findings.len(), files.len());
    if !findings.is_empty() {
        bail!("this tree is not tidy; `cargo xtask tidy --help` lists the rules");
    }
    Ok(())
}

fn unparsable(path: &str, error: &syn::Error) -> Finding {
    let line = error.span().start().line;
    Finding { path: path.to_owned(), line, message: format!("cannot be parsed as Rust: {error}") }
}

fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Findings { path: source.path, found: Vec::new() };
    RULES.iter().for_each(|rule| rule(source, &mut findings));
    findings.found
}

/// Subjects are checked after this commit.
const BASE: &str = "2628097";
const CHARACTERS_MAX: usize = 72;

/// At most 72 characters, so that `git log --oneline` shows them whole. An archive or a shallow clone has no history.
fn commits(root: &Path) -> Vec<Finding> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["log", "--no-merges", "--format=%h %s", &format!("{BASE}..HEAD")]);
    command::output(&mut git).map_or_else(|_| Vec::new(), |log| log.lines().filter_map(commit).collect())
}

fn commit(line: &str) -> Option<Finding> {
    let (hash, subject) = line.split_once(' ')?;
    let characters = subject.chars().count();
    let message = format!("the subject has {characters} characters, the limit is {CHARACTERS_MAX}: {subject}");
    (characters > CHARACTERS_MAX).then(|| Finding { path: format!("commit {hash}"), line: 1, message })
}

/// For the rules' tests: the findings of one rule on one file as `line: message`.
#[cfg(test)]
fn found(rule: Rule, path: &str, text: &str) -> Vec<String> {
    let mut findings = Findings { path, found: Vec::new() };
    rule(&Source::parse(path, text).expect("samples parse"), &mut findings);
    findings.found.into_iter().map(|finding| format!("{}: {}", finding.line, finding.message)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unparsable_rust_is_a_finding() {
        let error = Source::parse("profiler/crates/base/src/units.rs", "//! Units.\n\nfn broken( {\n}\n")
            .err()
            .expect("is broken");
        assert!(
            unparsable("profiler/crates/base/src/units.rs", &error)
                .to_string()
                .starts_with("profiler/crates/base/src/units.rs:")
        );
        assert!(Source::parse("notes.md", "fn broken( {\n").is_ok());
    }

    #[test]
    fn rules_are_applied_to_a_file() {
        let findings = check(&Source::parse("profiler/crates/base/src/units.rs", "fn f() {}\n").expect("parses"));
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!((findings[0].path.as_str(), findings[0].line), ("profiler/crates/base/src/units.rs", 1));
    }

    #[test]
    fn long_subjects_are_findings() {
        assert_eq!(commit(&format!("abc123 {}", "ä".repeat(72))), None);
        assert!(commit(&format!("abc123 {}", "ä".repeat(73))).is_some_and(|finding| finding.path == "commit abc123"));
    }
}
