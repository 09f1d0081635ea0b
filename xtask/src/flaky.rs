//! Tests that needed a second try in the gate: they are noted in the target directory, and an error of `cargo xtask check` until
//! they are mended, or listed in a file with a date.
//!
//! ```text
//! test --profile gate ─▶ target/flaky.json ─▶ check: error ─▶ mended NAME
//!                                                     └─────▶ tests/quarantine.toml, for 7 days
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use jiff::civil::Date;
use quick_xml::events::Event;
use quick_xml::{Reader, XmlVersion};
use serde::Deserialize;

use crate::command::{self, Repository};
use crate::test;

const NOTES: &str = "flaky.json";
pub(crate) const QUARANTINE: &str = "tests/quarantine.toml";
const QUARANTINE_DAYS: i32 = 7;
/// How often a mended test must pass.
const RUNS: u32 = 20;

/// Runs a test that needed a second try 20 times, and removes its note if it passes each time.
///
/// `cargo xtask check` lists such tests.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask mended push::windows_arrive_in_order")]
pub(crate) struct Arguments {
    /// Name of the test, without its program.
    #[arg(value_name = "NAME")]
    name: String,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let repository = Repository::find()?;
    let filter = format!("test(={})", arguments.name);
    let runs = RUNS.to_string();
    test::run_with(&["--profile", "default", "--stress-count", &runs, "-E", &filter])?;
    let mut notes = notes(&repository.target)?;
    notes.retain(|name, _| name_of(name) != arguments.name);
    write(&repository.target, &notes)
}

/// Names of tests, after the name of their program, and the commits at which they needed a second try.
type Notes = BTreeMap<String, String>;

/// Since when and why a test may need a second try.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Quarantined {
    since: String,
    reason: String,
}

/// The report of the last run of nextest with the profile of the gate. Its folder does not depend on CARGO_TARGET_DIR.
pub(crate) fn report(root: &Path) -> PathBuf {
    root.join("target/nextest/gate/junit.xml")
}

/// Notes the tests of the last report that needed a second try. Without a report, there are none.
pub(crate) fn note(repository: &Repository) -> Result<()> {
    let path = report(&repository.root);
    let report = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        read => read.with_context(|| format!("could not read `{}`", path.display()))?,
    };
    let found = flaky(&report).with_context(|| format!("`{}` is not a valid report of nextest", path.display()))?;
    if found.is_empty() {
        return Ok(());
    }
    let commit = command::output(std::process::Command::new("git").current_dir(&repository.root).args([
        "rev-parse",
        "--short",
        "HEAD",
    ]))?;
    let mut notes = notes(&repository.target)?;
    notes.extend(found.into_iter().map(|name| (name, commit.trim().to_owned())));
    write(&repository.target, &notes)
}

/// Fails if a test has needed a second try and is neither mended nor in quarantine.
pub(crate) fn check(repository: &Repository) -> Result<()> {
    let (notes, quarantine) = (notes(&repository.target)?, quarantine(&repository.root)?);
    let open: Vec<String> = notes
        .iter()
        .filter(|(name, _)| !quarantine.contains_key(name_of(name)))
        .map(|(name, commit)| format!("  {name}, at {commit}"))
        .collect();
    if open.is_empty() {
        return Ok(());
    }
    bail!(
        "tests have needed a second try:\n{}\nmend each, then run `cargo xtask mended NAME`; or add it to `{QUARANTINE}` for at \
         most {QUARANTINE_DAYS} days",
        open.join("\n")
    )
}

/// Returns what is wrong with the list of tests in quarantine.
pub(crate) fn overdue(root: &Path) -> Result<Vec<String>> {
    let today = jiff::Zoned::now().date();
    Ok(quarantine(root)?.iter().filter_map(|(name, entry)| fault(name, entry, today)).collect())
}

fn fault(name: &str, entry: &Quarantined, today: Date) -> Option<String> {
    let Ok(since) = entry.since.parse::<Date>() else {
        return Some(format!("`{name}`: `{}` is no date: write `2026-01-31`", entry.since));
    };
    let days = (today - since).get_days();
    if entry.reason.is_empty() {
        return Some(format!("`{name}` is in quarantine without a reason"));
    }
    (days > QUARANTINE_DAYS)
        .then(|| format!("`{name}` is in quarantine for {days} days: mend it, then remove the line"))
}

fn quarantine(root: &Path) -> Result<BTreeMap<String, Quarantined>> {
    let text = match fs::read_to_string(root.join(QUARANTINE)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeMap::new()),
        read => read.with_context(|| format!("could not read `{QUARANTINE}`"))?,
    };
    toml::from_str(&text).with_context(|| format!("`{QUARANTINE}` is no list of tests"))
}

fn notes(target: &Path) -> Result<Notes> {
    let path = target.join(NOTES);
    match fs::read(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Notes::new()),
        read => Ok(serde_json::from_slice(&read?).with_context(|| format!("`{}` is no JSON", path.display()))?),
    }
}

fn write(target: &Path, notes: &Notes) -> Result<()> {
    let path = target.join(NOTES);
    let text = serde_json::to_vec_pretty(notes).context("notes are JSON")?;
    fs::write(&path, text).with_context(|| format!("could not write `{}`", path.display()))
}

/// The name of a test without its program.
fn name_of(name: &str) -> &str {
    name.rsplit_once(' ').map_or(name, |(_, name)| name)
}

/// Names of the tests that passed after a failure, after the names of their programs. nextest describes them like Maven
/// Surefire: `<testcase>` with `<flakyFailure>`.
fn flaky(report: &str) -> Result<Vec<String>> {
    let mut reader = Reader::from_str(report);
    let (mut found, mut current) = (Vec::new(), String::new());
    loop {
        match reader.read_event()? {
            Event::Eof => return Ok(found),
            Event::Start(tag) if tag.name().as_ref() == b"testcase" => {
                let attribute = |name: &str| -> Result<String> {
                    let value = tag.try_get_attribute(name)?.with_context(|| format!("a test has no `{name}`"))?;
                    Ok(value.normalized_value(XmlVersion::Explicit1_0)?.into_owned())
                };
                current = format!("{} {}", attribute("classname")?, attribute("name")?);
            }
            Event::Start(tag) if tag.name().as_ref() == b"flakyFailure" && found.last() != Some(&current) => {
                found.push(current.clone());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flaky_tests_are_found() {
        let report = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1">
    <testsuite name="heapbpf-tests::it" tests="3">
        <testcase name="a::passes" classname="heapbpf-tests::it" time="0.5"/>
        <testcase name="a::is_flaky" classname="heapbpf-tests::it" time="17.8">
            <flakyFailure message="thread &apos;x&apos; panicked" type="test failure">text<system-out>a</system-out></flakyFailure>
            <flakyFailure type="test failure"/>
        </testcase>
        <testcase name="a::fails" classname="heapbpf-tests::it"><failure type="x"/><rerunFailure type="x"/></testcase>
    </testsuite>
</testsuites>"#;
        assert_eq!(flaky(report).expect("a report"), ["heapbpf-tests::it a::is_flaky"]);
        assert!(flaky("<a><testcase></a>").is_err());
        assert_eq!(name_of("heapbpf-tests::it a::is_flaky"), "a::is_flaky");
    }

    #[test]
    fn a_quarantine_ends() {
        let entry = |since: &str, reason: &str| Quarantined { since: since.to_owned(), reason: reason.to_owned() };
        let today = Date::constant(2026, 3, 3);
        let fault = |since, reason| fault("x", &entry(since, reason), today);
        assert_eq!(fault("2026-02-24", "kernel"), None);
        assert_eq!(
            fault("2026-02-23", "kernel").as_deref(),
            Some("`x` is in quarantine for 8 days: mend it, then remove the line")
        );
        assert!(fault("2026-02-24", "").is_some_and(|text| text.contains("without a reason")));
        assert!(fault("yesterday", "kernel").is_some_and(|text| text.contains("no date")));
    }

    #[test]
    fn notes_stay_until_they_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let repository = Repository { root: root.to_owned(), target: root.to_owned() };
        check(&repository).expect("nothing is noted");
        write(root, &Notes::from([("it a::b".to_owned(), "0123".to_owned())])).expect("it is ours");
        let text = check(&repository).expect_err("it is noted").to_string();
        assert!(text.contains("  it a::b, at 0123\n"), "{text}");
        fs::create_dir(root.join("tests")).expect("it is new");
        let line = "\"a::b\" = { since = \"2026-02-24\", reason = \"a fault of the kernel\" }";
        fs::write(root.join(QUARANTINE), line).expect("it is ours");
        check(&repository).expect("it is in quarantine");
    }
}
