//! `cargo xtask nightly`: what takes longer than the gate may, or is up to chance. Results go into the ledger of `tests/ledger.toml`,
//! whose age `cargo xtask tidy` checks.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum as _;
use serde::{Deserialize, Serialize};

use crate::command::{self, Repository};
use crate::packages;
use crate::process::{Output, Program, bound};

pub(crate) const LEDGER: &str = "tests/ledger.toml";
/// Random values of tests are the same in each run of the gate (`.cargo/config.toml`), and new ones here.
const SEED: &str = "PROPTEST_RNG_SEED";

/// Runs what takes longer than the gate may, or is up to chance: fuzzing, kills at random times, other kernels, tests again and again
/// beside other work.
///
/// All suites take about three hours on two processors. Each is a command of its own, which is printed. Fails if any has failed, after
/// all were run.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo xtask nightly --record                         all suites, and their results into tests/ledger.toml
  cargo xtask nightly --shard 1/4                      the first of four parts, for four machines
  cargo xtask nightly --suite repeat --repeat 20       all tests 20 times, every second time beside other work
  cargo xtask nightly --suite fuzz --suite soak        two suites")]
pub(crate) struct Arguments {
    /// Run the suites of part I of N.
    #[arg(long, value_name = "I/N", value_parser = shard)]
    shard: Option<(usize, usize)>,
    /// Run this suite. May be given several times. Default: all.
    #[arg(long, value_name = "NAME")]
    suite: Vec<Suite>,
    /// How often the suite `repeat` runs all tests.
    #[arg(long, value_name = "TIMES", default_value_t = 4)]
    repeat: u32,
    /// Write results into the ledger.
    #[arg(long)]
    record: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    /// All tests again, every second time beside two busy loops, with other random values.
    Repeat,
    /// All versions of CPython and Node.js, each compiler and garbage collector of Java and JavaScript, and estimates of each allocator in
    /// each place; other tests take the oldest and the newest version with the usual options, and estimates of one place.
    Versions,
    /// The HTML page and flame graphs in a browser, with sizes and colours of screens, large documents and rules of accessibility; other
    /// formats in heaptrack_gui and massif-visualizer.
    Page,
    /// A recording for half an hour, whose memory stays flat.
    Soak,
    /// Every parser of untrusted bytes.
    Fuzz,
    /// Programs of many kinds, to which the inline engine is attached and detached at random times.
    Attack,
    /// Kills of heapbpf's processes at random times.
    Kills,
    /// 2,000 random programs whose counts are known.
    Model,
    /// How often 95 % intervals of real recordings contain the truth.
    Coverage,
    /// The oldest kernel that is supported.
    OldestKernel,
    /// The newest kernel, which preempts everywhere.
    NewestKernel,
    /// Committed objects and pages, built anew, a program for arm64, and examples in documentation.
    Objects,
    /// Licences, sources and duplicates of libraries.
    Deny,
}

impl Suite {
    /// Words after `cargo`.
    fn commands(self, repeat: u32) -> Vec<Vec<String>> {
        let all = |lines: &[&str]| -> Vec<Vec<String>> {
            lines.iter().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
        };
        match self {
            Self::Repeat => (0..repeat).flat_map(|_| all(&["xtask test --profile default"])).collect(),
            Self::Versions => all(&[
                "xtask test --profile default --run-ignored all -E test(/^(interpreters|java|javascript|matrix)::/)",
            ]),
            Self::Page => all(&[
                "xtask test --profile default --run-ignored all -E test(/^viewers::(desktop|flamegraph|html|html_panels|live)::/)",
            ]),
            Self::Soak => all(&["xtask bench soak"]),
            Self::Fuzz => all(&["xtask fuzz --seconds 180"]),
            Self::Attack => all(&["xtask faults --engine inline"]),
            Self::Kills => all(&["xtask faults", "xtask test --profile default -E test(/^keeper_kills::/)"]),
            Self::Model => all(&["xtask test --profile default --no-capture --run-ignored only -E test(/^model::/)"]),
            Self::Coverage => {
                all(&["xtask test --profile default --no-capture --run-ignored only -E test(/^coverage::/)"])
            }
            Self::OldestKernel => all(&["xtask vm --kernel 5.10"]),
            Self::NewestKernel => all(&["xtask vm --kernel 7 --preempt full"]),
            Self::Objects => all(&[
                "xtask build-ebpf --install --check",
                "xtask build-page --check",
                "test --locked --doc --workspace",
                "xtask build --target aarch64-unknown-linux-gnu",
            ]),
            Self::Deny => all(&[
                "deny check bans licenses sources",
                "deny --manifest-path profiler-ebpf/Cargo.toml --config deny.toml check bans licenses sources",
            ]),
        }
    }

    /// A variable that makes tests take longer than in the gate.
    fn variable(self) -> Option<&'static str> {
        match self {
            Self::Versions => Some("HEAPBPF_ALL_VERSIONS"),
            Self::Kills => Some("HEAPBPF_FAULTS_RANDOM"),
            _ => None,
        }
    }

    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// The last run of a suite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) commit: String,
    /// Seconds since 1970.
    pub(crate) unix_seconds: u64,
    /// How long it took.
    pub(crate) seconds: u64,
    pub(crate) result: String,
    /// Of random values, where the suite has them.
    pub(crate) seed: u64,
}

/// Entries by the names of suites.
pub(crate) type Ledger = BTreeMap<String, Entry>;

pub(crate) fn ledger(root: &Path) -> Result<Ledger> {
    let text = fs::read_to_string(root.join(LEDGER)).unwrap_or_default();
    toml::from_str(&text).with_context(|| format!("`{LEDGER}` is no ledger"))
}

fn shard(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(part, of)| Some((part.parse().ok()?, of.parse().ok()?)));
    numbers
        .filter(|&(part, of)| (1..=of).contains(&part))
        .ok_or_else(|| format!("`{text}` is no part: write `1/4` for the first of four"))
}

fn chosen(arguments: &Arguments) -> Vec<Suite> {
    let all: Vec<Suite> =
        if arguments.suite.is_empty() { Suite::value_variants().to_vec() } else { arguments.suite.clone() };
    let (part, of) = arguments.shard.unwrap_or((1, 1));
    all.into_iter().skip(part - 1).step_by(of).collect()
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let repository = Repository::find()?;
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let commit = command::output(Command::new("git").current_dir(&repository.root).args(["rev-parse", "HEAD"]))?;
    let mut failed = Vec::new();
    for suite in chosen(arguments) {
        let (begun, seed) = (Instant::now(), now().as_secs());
        eprintln!("\n==> {}", suite.name());
        let outcome = run_suite(&repository, suite, arguments.repeat, seed);
        let result = if outcome.is_ok() { "passed" } else { "failed" }.to_owned();
        println!("{}: {result} after {} s", suite.name(), begun.elapsed().as_secs());
        if let Err(error) = &outcome {
            eprintln!("{}: {error:#}", suite.name());
            failed.push(suite.name());
        }
        if arguments.record {
            let (commit, unix_seconds) = (commit.trim().to_owned(), now().as_secs());
            let entry = Entry { commit, unix_seconds, seconds: begun.elapsed().as_secs(), result, seed };
            record(&repository.root, suite.name(), entry)?;
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}

fn record(root: &Path, suite: String, entry: Entry) -> Result<()> {
    let mut ledger = ledger(root)?;
    ledger.insert(suite, entry);
    let text =
        format!("# The last run of each suite of `cargo xtask nightly --record`.\n\n{}", toml::to_string(&ledger)?);
    fs::write(root.join(LEDGER), text).with_context(|| format!("could not write `{LEDGER}`"))
}

/// All commands are run, also after one has failed.
fn run_suite(repository: &Repository, suite: Suite, repeat: u32, seed: u64) -> Result<()> {
    if suite == Suite::Deny && command::find("cargo-deny").is_none() {
        command::run(repository.cargo().args(["install", "cargo-deny", "--version", "~0.20", "--locked", "--debug"]))?;
    }
    if suite == Suite::Page {
        packages::install(packages::DESKTOP)?;
    }
    let mut failures = Vec::new();
    let commands = suite.commands(repeat);
    let count = commands.len();
    for (index, words) in commands.into_iter().enumerate() {
        let _load = (suite == Suite::Repeat && index % 2 == 1).then(load).transpose()?;
        let mut cargo = repository.cargo();
        cargo.envs(suite.variable().map(|name| (name, "1")));
        let outcome = command::run(cargo.args(&words).env(SEED, (seed + index as u64).to_string()));
        failures.extend(outcome.err().map(|error| format!("{} of {count}: {error:#}", index + 1)));
    }
    if failures.is_empty() { Ok(()) } else { bail!("{}", failures.join("\n")) }
}

/// Two busy processes, which are killed when they are dropped.
fn load() -> Result<[Program; 2]> {
    let busy = || Program::start(bound("sh").args(["-c", "while :; do :; done"]), Output::None);
    Ok([busy()?, busy()?])
}

/// Ages beyond which an entry is worth a warning, and beyond which it is an error.
const WARNING: Age = Age { time: Duration::from_secs(5 * 86_400), commits: 100 };
const ERROR: Age = Age { time: Duration::from_secs(10 * 86_400), commits: 200 };

#[derive(Clone, Copy, Debug)]
struct Age {
    time: Duration,
    commits: u64,
}

impl Age {
    fn exceeds(self, limit: Self) -> bool {
        self.time > limit.time || self.commits > limit.commits
    }
}

/// Returns warnings about suites that have not been run lately, and errors about those that have failed or were not run for long.
/// Only suites of the ledger count: a suite that was never recorded is a warning.
pub(crate) fn overdue(root: &Path) -> Result<(Vec<String>, Vec<String>)> {
    let (mut warnings, mut errors) = (Vec::new(), Vec::new());
    let ledger = ledger(root)?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    for suite in Suite::value_variants().iter().map(|suite| suite.name()) {
        let remedy = format!("run `cargo xtask nightly --suite {suite} --record`");
        let Some(entry) = ledger.get(&suite) else {
            warnings.push(format!("`{suite}` was never run: {remedy}"));
            continue;
        };
        if entry.result != "passed" {
            errors.push(format!("`{suite}` has {}: mend it, then {remedy}", entry.result));
        }
        let range = format!("{}..HEAD", entry.commit);
        let count = command::output(Command::new("git").current_dir(root).args(["rev-list", "--count", &range]));
        // Unknown in a shallow clone.
        let commits = count.ok().and_then(|count| count.trim().parse().ok()).unwrap_or(0);
        let age = Age { time: now.saturating_sub(Duration::from_secs(entry.unix_seconds)), commits };
        let text =
            format!("`{suite}` was last run {} days and {commits} commits ago: {remedy}", age.time.as_secs() / 86_400);
        if age.exceeds(ERROR) {
            errors.push(text);
        } else if age.exceeds(WARNING) {
            warnings.push(text);
        }
    }
    Ok((warnings, errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_complete_and_disjoint() {
        let of = |shard| {
            let arguments = Arguments { shard, suite: Vec::new(), repeat: 1, record: false };
            chosen(&arguments)
        };
        let mut all: Vec<_> = (1..=4).flat_map(|part| of(Some((part, 4)))).map(Suite::name).collect();
        let mut whole: Vec<_> = of(None).into_iter().map(Suite::name).collect();
        all.sort();
        whole.sort();
        assert_eq!(all, whole);
        assert_eq!(shard("2/4"), Ok((2, 4)));
        for wrong in ["0/4", "5/4", "1", "a/b"] {
            assert!(shard(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn results_are_read_as_they_were_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        fs::create_dir(root.join("tests")).expect("it is new");
        assert!(ledger(root).expect("none is empty").is_empty());
        let entry = |result: &str| Entry {
            commit: "0123".to_owned(),
            unix_seconds: 1_700_000_000,
            seconds: 60,
            result: result.to_owned(),
            seed: 7,
        };
        record(root, "fuzz".to_owned(), entry("passed")).expect("writable");
        record(root, "oldest-kernel".to_owned(), entry("failed")).expect("writable");
        let read = ledger(root).expect("readable");
        assert_eq!((read.len(), &read["fuzz"], &read["oldest-kernel"]), (2, &entry("passed"), &entry("failed")));
        let (warnings, errors) = overdue(root).expect("readable");
        assert_eq!(warnings.len(), Suite::value_variants().len() - 2, "those that were never run: {warnings:?}");
        // One has failed, and both are years old.
        assert_eq!(errors.len(), 3, "{errors:?}");
    }
}
