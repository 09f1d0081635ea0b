//! Runs `cargo test` and gives tests that failed a second try, one at a time: a machine that is busy or slow can fail a test
//! of a live system. A test that fails twice has failed.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, bail};

use crate::command;

/// More failures have a common cause, which a second try would only hide.
const FAILURES_MAX: usize = 5;

/// What a run of `cargo test` printed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    has_passed: bool,
    /// Names of failed tests.
    failed: BTreeSet<String>,
    /// cargo's arguments for the test programs that failed.
    targets: BTreeSet<String>,
    /// Tests that passed.
    passed: usize,
    /// Test programs that began, and those that printed a result.
    begun: usize,
    ended: usize,
    /// Failures by these results.
    failures: usize,
    /// Lines on failed tests: programs can have tests of the same name.
    failed_lines: usize,
}

/// `test` makes the command `cargo test` with further arguments.
pub(crate) fn run(first: &mut Command, test: impl Fn(&[&str]) -> Command) -> Result<()> {
    let outcome = observe(first)?;
    try_again(&outcome, |words| observe(&mut test(words)))
}

fn try_again(first: &Outcome, mut test: impl FnMut(&[&str]) -> Result<Outcome>) -> Result<()> {
    let Outcome { has_passed, failed, targets, .. } = first;
    if *has_passed {
        return Ok(());
    }
    if failed.is_empty() || targets.is_empty() {
        bail!("`cargo test` failed before or after the tests: see above");
    }
    if first.begun != first.ended || first.failures != first.failed_lines || failed.len() != first.failed_lines {
        bail!("a test program ended early, or not all failed tests are known: there is no second try");
    }
    if failed.len() > FAILURES_MAX {
        bail!("{} failed, which is too many for a second try", counted(failed.len()));
    }
    eprintln!("\n{} failed: a second try, one at a time", counted(failed.len()));
    let mut passed = 0;
    for target in targets {
        let mut words = selecting(target);
        words.extend(["--", "--exact", "--test-threads=1"]);
        words.extend(failed.iter().map(String::as_str));
        let outcome = test(&words)?;
        if !outcome.has_passed {
            bail!("tests of `{target}` failed twice");
        }
        if outcome.passed == 0 {
            bail!("`{target}` failed without naming a test, as when it crashes");
        }
        passed += outcome.passed;
    }
    if passed < failed.len() {
        bail!("of {} that failed, only {passed} could be run again", counted(failed.len()));
    }
    eprintln!("\n{} failed at first and passed when run again, alone:", counted(failed.len()));
    failed.iter().for_each(|name| eprintln!("    {name}"));
    Ok(())
}

/// cargo's words for a test program, from those that it prints. Integration tests stay selected in the whole workspace: for their
/// package alone, cargo enables fewer features of libraries, and compiles these and heapbpf again.
fn selecting(target: &str) -> Vec<&str> {
    let words: Vec<&str> = target.split_ascii_whitespace().collect();
    match words[..] {
        ["-p", _, "--test", program] => vec!["--workspace", "--test", program],
        _ => words,
    }
}

fn counted(count: usize) -> String {
    if count == 1 { "1 test".to_owned() } else { format!("{count} tests") }
}

/// Runs the command and passes on what it prints.
fn observe(test: &mut Command) -> Result<Outcome> {
    eprintln!("+ {}", command::line(test));
    let mut child = test
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("could not start `{}`", command::line(test)))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (mut results, mut errors) = (Outcome::default(), Outcome::default());
    thread::scope(|scope| {
        let (results, errors) = (&mut results, &mut errors);
        scope.spawn(move || stderr.map(|stderr| pass_on(stderr, std::io::stderr(), |line| errors.read_cargo(line))));
        stdout.map(|stdout| pass_on(stdout, std::io::stdout(), |line| results.read_result(line))).transpose()
    })
    .context("cannot pass on the output of tests")?;
    Ok(Outcome { has_passed: child.wait()?.success(), targets: errors.targets, ..results })
}

fn pass_on(from: impl Read, mut to: impl Write, mut read: impl FnMut(&str)) -> std::io::Result<()> {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        to.flush()?;
        read(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    Ok(())
}

impl Outcome {
    /// Reads a line of a test program's standard output.
    fn read_result(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("test ").and_then(|line| line.strip_suffix(" ... FAILED")) {
            self.failed.insert(name.trim_end_matches(" - should panic").to_owned());
            self.failed_lines += 1;
        }
        let is_count = |rest: &str| rest.split_once(" test").is_some_and(|(count, _)| count.parse::<usize>().is_ok());
        self.begun += usize::from(line.strip_prefix("running ").is_some_and(is_count));
        if let Some(result) = line.strip_prefix("test result: ") {
            let count = |what: &str| {
                let counts = result.split(['.', ';']).filter_map(|part| part.trim().strip_suffix(what));
                counts.filter_map(|count| count.trim().parse::<usize>().ok()).sum::<usize>()
            };
            self.ended += 1;
            self.passed += count(" passed");
            self.failures += count(" failed");
        }
    }

    /// Reads a line of cargo's standard error, whose last ones name what failed.
    fn read_cargo(&mut self, line: &str) {
        let named = line.strip_prefix("    `").or_else(|| line.strip_prefix("error: test failed, to rerun pass `"));
        let target = named.and_then(|line| line.strip_suffix('`')).filter(|target| target.starts_with("-p "));
        self.targets.extend(target.map(str::to_owned));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_and_their_programs_are_read() {
        let mut outcome = Outcome::default();
        let printed = "running 3 tests\ntest a::one ... ok\ntest a::two ... FAILED\ntest three - should panic ... FAILED\n\
            failures:\n    a::two\ntest result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out; finished \
            in 0.50s\nrunning 1 test\ntest four ... ignored\n";
        printed.lines().for_each(|line| outcome.read_result(line));
        let printed = "     Running tests/a.rs (target/debug/deps/a-0123)\nerror: 2 targets failed:\n    \
            `-p heapbpf-tests --test environment`\n    `-p heapbpf --lib`\n    `-p xtask --bin xtask`\nerror: test failed, to \
            rerun pass `-p xtask --bin xtask`\n";
        printed.lines().for_each(|line| outcome.read_cargo(line));
        let expected = Outcome {
            failed: BTreeSet::from(["a::two".to_owned(), "three".to_owned()]),
            targets: ["-p heapbpf-tests --test environment", "-p heapbpf --lib", "-p xtask --bin xtask"]
                .map(String::from)
                .into(),
            has_passed: false,
            passed: 1,
            begun: 2,
            ended: 1,
            failures: 2,
            failed_lines: 2,
        };
        assert_eq!(outcome, expected);
    }

    fn failed(names: &str, targets: &[&str]) -> Outcome {
        let targets = targets.iter().map(ToString::to_string).collect();
        let failed: BTreeSet<String> = names.split_ascii_whitespace().map(String::from).collect();
        let (failures, failed_lines) = (failed.len(), failed.len());
        Outcome { failed, targets, failures, failed_lines, begun: 9, ended: 9, ..Outcome::default() }
    }

    fn check(first: &Outcome, has_passed: bool, passed: usize) -> Result<(), String> {
        let tried = try_again(first, |words| {
            let is_expected = words[2..].starts_with(&["--lib", "--", "--exact", "--test-threads=1"]);
            assert!(is_expected && words[6..].iter().all(|name| first.failed.contains(*name)), "{words:?}");
            Ok(Outcome { has_passed, passed, ..Outcome::default() })
        });
        tried.map_err(|error| error.to_string())
    }

    #[test]
    fn a_test_that_passes_alone_has_passed() {
        let passed = Outcome { has_passed: true, ..Outcome::default() };
        assert_eq!(check(&passed, false, 0), Ok(()), "nothing is run again");
        let one = failed("a::two", &["-p x --lib"]);
        assert_eq!(check(&one, true, 1), Ok(()));
        assert_eq!(check(&one, false, 1), Err("tests of `-p x --lib` failed twice".to_owned()));
        let crashed = check(&failed("a::two", &["-p x --lib", "-p y --lib"]), true, 0).expect_err("not run again");
        assert_eq!(crashed, "`-p x --lib` failed without naming a test, as when it crashes");
        let unknown = check(&failed("a b", &["-p x --lib"]), true, 1).expect_err("one was not run again");
        assert_eq!(unknown, "of 2 tests that failed, only 1 could be run again");
        assert_eq!(check(&failed("a b c d e", &["-p x --lib"]), true, 5), Ok(()));
        let many = check(&failed("a b c d e f", &["-p x --lib"]), true, 6).expect_err("too many");
        assert_eq!(many, "6 tests failed, which is too many for a second try");
        assert!(check(&failed("", &["-p x --lib"]), true, 0).is_err(), "a test program was killed");
        assert!(check(&failed("", &[]), true, 0).is_err(), "nothing was compiled");
    }

    #[test]
    fn integration_tests_stay_selected_in_the_workspace() {
        assert_eq!(selecting("-p heapbpf-tests --test startup"), ["--workspace", "--test", "startup"]);
        assert_eq!(selecting("-p heapbpf --lib"), ["-p", "heapbpf", "--lib"]);
    }

    #[test]
    fn programs_that_end_early_have_no_second_try() {
        for change in [
            |outcome: &mut Outcome| outcome.ended = 8,
            |outcome: &mut Outcome| outcome.failures = 2,
            |outcome: &mut Outcome| (outcome.failures, outcome.failed_lines) = (2, 2),
        ] {
            let mut first = failed("a::two", &["-p x --lib"]);
            change(&mut first);
            assert!(check(&first, true, 1).expect_err("not all are known").contains("no second try"), "{first:?}");
        }
    }
}
