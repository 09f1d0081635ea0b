//! `cargo xtask tidy`: rules of this repository that neither rustfmt nor clippy knows. One file per rule; this one
//! gathers the files, applies every rule to each, and prints what they find.

mod imports;
mod layers;
mod length;
mod links;
mod machine_paths;
mod markers;
mod opening;
mod source;
mod terminal;
mod unsafety;
mod words;

use std::fmt;

use anyhow::{Result, bail};

use crate::repository;
use source::Source;

/// Checks the rules of this repository that neither rustfmt nor clippy knows.
///
/// Looks at every file that git tracks or would track, and prints `file:line: what is wrong` for each finding.
#[derive(clap::Args)]
#[command(after_help = "The rules:
  length     files of at most 400 lines (tests apart), functions of at most 70
  opening    a Rust file begins with a `//!` comment: what it owns and what it refuses to do
  words      no names that say nothing: see xtask/src/tidy/words.rs
  layers     who may import whom in profiler/src: see xtask/src/tidy/layers.rs
  unsafe     only in profiler-ebpf, profiler/src/linux, test targets, and `unsafe impl` in profiler-common
  terminal   what goes to standard output and standard error goes through profiler/src/cli/terminal.rs
  links      a link to a kernel's source names a version or a commit
  markers    no leftovers of merges or of unfinished work
  paths      no folders of somebody's machine")]
pub(crate) struct Arguments {}

/// Something that breaks a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
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

/// What a rule writes its findings to.
struct Findings<'a> {
    path: &'a str,
    found: Vec<Finding>,
}

impl Findings<'_> {
    fn add(&mut self, line: usize, message: impl Into<String>) {
        self.found.push(Finding { path: self.path.to_owned(), line, message: message.into() });
    }
}

/// A rule looks at one file.
type Rule = fn(&Source, &mut Findings<'_>);

const RULES: [Rule; 9] = [
    length::check,
    opening::check,
    words::check,
    imports::check,
    unsafety::check,
    terminal::check,
    links::check,
    markers::check,
    machine_paths::check,
];

/// Runs the verb.
pub(crate) fn run(_: &Arguments) -> Result<()> {
    let root = repository::root()?;
    let paths = source::list(&root)?;
    let mut findings = Vec::new();
    let mut files = 0;
    for path in paths {
        let Some(text) = source::read(&root, &path)? else { continue };
        files += 1;
        findings.extend(check(&path, &text));
    }
    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    println!("tidy: {} findings in {files} files", findings.len());
    if !findings.is_empty() {
        bail!("this tree is not tidy; `cargo xtask tidy --help` lists the rules");
    }
    Ok(())
}

/// Applies every rule to one file.
fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Findings { path, found: Vec::new() };
    match Source::parse(path, text) {
        Ok(source) => RULES.iter().for_each(|rule| rule(&source, &mut findings)),
        Err(error) => findings.add(error.span().start().line, format!("does not parse as Rust: {error}")),
    }
    findings.found
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
    fn a_file_that_is_not_rust_is_a_finding() {
        let findings = check("profiler/src/units.rs", "//! Units.\n\nfn broken( {\n}\n");
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].to_string().starts_with("profiler/src/units.rs:"), "{findings:?}");
        assert_eq!(check("notes.md", "fn broken( {\n"), []);
    }

    #[test]
    fn rules_see_every_file() {
        let findings = check("profiler/src/units.rs", "fn f() {}\n");
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!((findings[0].path.as_str(), findings[0].line), ("profiler/src/units.rs", 1));
    }
}
