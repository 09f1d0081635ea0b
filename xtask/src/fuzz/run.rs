//! Runs one fuzz target under libFuzzer and reads its log.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::FOLDER;
use super::toolchain::TARGET;
use crate::command;
use crate::repository::Repository;

/// What a run may take.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    /// Duration of the run.
    pub(super) seconds: u64,
    /// Duration of one input.
    pub(super) input_seconds: u64,
    /// Memory of the target.
    pub(super) memory_mib: u64,
}

/// What a run gave.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    target: String,
    pub(super) executions: u64,
    executions_per_second: u64,
    /// Edges of the control flow that were executed.
    coverage: u64,
    /// Inputs in the corpus.
    inputs: u64,
    peak_mib: u64,
    /// The input that ended the run, and the command that repeats it; or the log where there is none.
    finding: Option<String>,
}

impl Outcome {
    /// Names of the columns.
    pub(super) const HEADING: &str =
        "target           executions   per second   coverage     inputs   peak MiB   findings";

    /// A line for an error message.
    pub(super) fn finding(&self) -> Option<String> {
        self.finding.as_ref().map(|finding| format!("  {}: {finding}", self.target))
    }

    /// Reads what libFuzzer wrote; a last line that is missing leaves zeros.
    fn parse(target: &str, log: &str) -> Self {
        let statistic = |name: &str| {
            let value =
                log.lines().rev().find_map(|line| line.strip_prefix("stat::")?.strip_prefix(name)?.strip_prefix(':'));
            value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        let status = log.lines().rev().find(|line| line.contains(" cov: ")).unwrap_or_default();
        let words: Vec<&str> = status.split_whitespace().collect();
        let word_after =
            |name: &str| words.iter().position(|word| *word == name).and_then(|at| words.get(at + 1).copied());
        let number = |text: Option<&str>| text.and_then(|text| text.split('/').next()?.parse().ok()).unwrap_or(0);
        Self {
            target: target.to_owned(),
            executions: statistic("number_of_executed_units"),
            executions_per_second: statistic("average_exec_per_sec"),
            coverage: number(word_after("cov:")),
            inputs: number(word_after("corp:")),
            peak_mib: statistic("peak_rss_mb"),
            finding: None,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, executions, executions_per_second, coverage, inputs, peak_mib, finding } = self;
        let findings = u8::from(finding.is_some());
        write!(
            f,
            "{target:<15} {executions:>11} {executions_per_second:>12} {coverage:>10} {inputs:>10} {peak_mib:>10} {findings:>10}"
        )
    }
}

/// Runs a target that is built. New inputs go to fuzz/corpus, those that break it to fuzz/artifacts.
pub(super) fn run(repository: &Repository, target: &str, limits: Limits) -> Result<Outcome> {
    let folder = repository.root.join(FOLDER);
    let (corpus, artifacts) = (folder.join("corpus").join(target), folder.join("artifacts").join(target));
    for folder in [&corpus, &artifacts] {
        fs::create_dir_all(folder).with_context(|| format!("could not create `{}`", folder.display()))?;
    }
    let log_path = artifacts.join("log.txt");
    let log = File::create(&log_path).with_context(|| format!("could not create `{}`", log_path.display()))?;
    let binary = repository.target.join(FOLDER).join(TARGET).join("release").join(target);
    let mut fuzzer = Command::new(&binary);
    fuzzer.args([
        format!("-max_total_time={}", limits.seconds),
        format!("-timeout={}", limits.input_seconds),
        format!("-rss_limit_mb={}", limits.memory_mib),
        format!("-artifact_prefix={}/", artifacts.display()),
        "-print_final_stats=1".to_owned(),
    ]);
    let dictionary = folder.join("dictionaries").join(format!("{target}.dict"));
    if dictionary.exists() {
        fuzzer.arg(format!("-dict={}", dictionary.display()));
    }
    // Names of hooks are leaked on purpose; memory that grows runs into the limit.
    fuzzer.env("ASAN_OPTIONS", "detect_leaks=0");
    fuzzer.arg(corpus).arg(folder.join("seeds").join(target)).current_dir(&repository.root);
    let status = fuzzer.stdout(log.try_clone()?).stderr(log).status();
    let status = status.with_context(|| format!("could not start `{}`", command::line(&fuzzer)))?;
    let log = String::from_utf8_lossy(&fs::read(&log_path)?).into_owned();
    let mut outcome = Outcome::parse(target, &log);
    if !status.success() {
        outcome.finding = Some(match written_input(&log) {
            Some(input) => {
                format!("{}; repeat with `{} {}`", reason(&log), shown(repository, &binary), shown(repository, &input))
            }
            None => format!("{status}, see `{}`", shown(repository, &log_path)),
        });
    }
    Ok(outcome)
}

/// A path from the repository's root, where it is below.
fn shown(repository: &Repository, path: &Path) -> String {
    path.strip_prefix(&repository.root).unwrap_or(path).display().to_string()
}

/// The input that libFuzzer wrote to a file.
fn written_input(log: &str) -> Option<PathBuf> {
    log.lines().find_map(|line| line.split_once("Test unit written to ")).map(|(_, path)| PathBuf::from(path.trim()))
}

/// The first line of the log that says what is wrong.
fn reason(log: &str) -> &str {
    let marks = ["panicked at", "ERROR: "];
    let line = log.lines().find(|line| marks.iter().any(|mark| line.contains(mark)));
    line.map_or("ended early", str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "INFO: Running with entropic power schedule (0xFF, 100).\n\
        #2\tINITED cov: 61 ft: 62 corp: 1/1b exec/s: 0 rss: 40Mb\n\
        #262144\tpulse  cov: 92 ft: 170 corp: 31/2340b lim: 4096 exec/s: 131072 rss: 88Mb\n\
        #600000\tDONE   cov: 93 ft: 171 corp: 32/2400b lim: 4096 exec/s: 120000 rss: 91Mb\n\
        stat::number_of_executed_units: 600000\n\
        stat::average_exec_per_sec:     120000\n\
        stat::peak_rss_mb:              91\n";

    #[test]
    fn statistics_are_read_from_the_log() {
        let expected = Outcome {
            target: "elf".to_owned(),
            executions: 600_000,
            executions_per_second: 120_000,
            coverage: 93,
            inputs: 32,
            peak_mib: 91,
            finding: None,
        };
        assert_eq!(Outcome::parse("elf", LOG), expected);
        assert_eq!(Outcome::parse("elf", "").executions, 0);
    }

    #[test]
    fn findings_are_read_from_the_log() {
        let log = format!(
            "thread '<unnamed>' panicked at src/a.rs:7:5:\nindex out of bounds\n==7== ERROR: libFuzzer: deadly signal\n\
             artifact_prefix='fuzz/artifacts/elf/'; Test unit written to fuzz/artifacts/elf/crash-0a1b\n{LOG}"
        );
        assert_eq!(written_input(&log), Some(PathBuf::from("fuzz/artifacts/elf/crash-0a1b")));
        assert_eq!(reason(&log), "thread '<unnamed>' panicked at src/a.rs:7:5:");
        assert_eq!(written_input(LOG), None);
    }
}
