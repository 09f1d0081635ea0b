//! `cargo xtask fuzz`: builds the targets of `fuzz/`, runs them under libFuzzer, and reads its log, without cargo-fuzz.

use std::fmt::Display;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, bail};
use regex::Regex;

use crate::command::{self, Repository};
use crate::packages;

const FOLDER: &str = "fuzz";

/// Fuzzes the parsers of everything that a target process or a user's file controls.
///
/// Builds the targets in fuzz/ with coverage instrumentation and AddressSanitizer, runs each from its seeds, and prints
/// executions, coverage and findings. Fails when an input crashes a target, takes more than 10 seconds or more than 2 GiB, and prints
/// the path of that input.
#[derive(clap::Args)]
#[command(after_help = "Compilers, the first that is complete:
  1. a nightly toolchain of rustup: rustup toolchain install nightly --profile minimal
  2. the compiler that builds xtask, with RUSTC_BOOTSTRAP=1, if it comes with the sanitizers' runtimes (rustup's do)
and with either: a C++ compiler (Debian: g++, installed if it is missing)

Examples:
  cargo xtask fuzz                                  20 seconds for each target
  cargo xtask fuzz --target walks --seconds 3600    one target for an hour")]
pub(crate) struct Arguments {
    /// Seconds that each target runs.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Target to run: a file in fuzz/fuzz_targets, without its extension. May be given several times. Default: all.
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// Number of targets that run at the same time.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..))]
    jobs: u8,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let toolchain = Toolchain::find()?;
    packages::install(packages::FUZZ)?;
    let repository = Repository::find()?;
    let targets = chosen(&all(&repository.root.join(FOLDER))?, &arguments.target)?;
    eprintln!("compiler: {}", toolchain.0.as_deref().unwrap_or("the one of this xtask, with RUSTC_BOOTSTRAP=1"));
    command::run(&mut toolchain.build(&repository, &targets))?;
    let outcomes = run_all(&repository, &targets, arguments)?;
    let executions: u64 = outcomes.iter().map(|outcome| outcome.statistics[0]).sum();
    println!("fuzz: {executions} executions of {} targets", outcomes.len());
    let findings =
        outcomes.iter().filter_map(|outcome| Some(format!("  {}: {}", outcome.target, outcome.finding.as_ref()?)));
    let findings: Vec<_> = findings.collect();
    if !findings.is_empty() {
        bail!("{} findings:\n{}", findings.len(), findings.join("\n"));
    }
    Ok(())
}

fn all(folder: &Path) -> Result<Vec<String>> {
    let folder = folder.join("fuzz_targets");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("could not list `{}`", folder.display()))? {
        let name = entry?.file_name();
        names.extend(name.to_string_lossy().strip_suffix(".rs").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

fn chosen(all: &[String], named: &[String]) -> Result<Vec<String>> {
    if let Some(unknown) = named.iter().find(|name| !all.contains(name)) {
        bail!("`{unknown}` is not a fuzz target; there are {}", all.join(", "));
    }
    Ok(if named.is_empty() { all.to_vec() } else { named.to_vec() })
}

fn run_all(repository: &Repository, targets: &[String], arguments: &Arguments) -> Result<Vec<Outcome>> {
    println!("{}", row("target", &COLUMNS.map(|(heading, _)| heading), "findings"));
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = run_target(repository, target, arguments.seconds);
            if let Ok(Outcome { statistics, finding, .. }) = &outcome {
                println!("{}", row(target, &statistics.map(|value| value.to_string()), u8::from(finding.is_some())));
            }
            outcomes.lock().expect("no thread panics with the lock").push(outcome);
        }
    };
    let jobs = targets.len().min(arguments.jobs.into());
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    outcomes.into_inner().expect("no thread panics with the lock").into_iter().collect()
}

fn row(target: &str, statistics: &[impl Display], findings: impl Display) -> String {
    let statistics: String = statistics.iter().map(|value| format!(" {value:>11}")).collect();
    format!("{target:<15}{statistics} {findings:>10}")
}

/// The only target of heapbpf. Specified, so that the flags are not applied to build scripts and macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Coverage as libFuzzer reads it, comparisons for it to solve, and AddressSanitizer, which enforces the memory limits.
const FLAGS: [&str; 7] = [
    "--cfg fuzzing",
    "-Zsanitizer=address",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// A nightly of rustup by name, or the toolchain that builds xtask, with `RUSTC_BOOTSTRAP`.
struct Toolchain(Option<String>);

impl Toolchain {
    fn find() -> Result<Self> {
        let listed = command::output(Command::new("rustup").args(["toolchain", "list"])).unwrap_or_default();
        let mut candidates = nightlies(&listed).into_iter().map(Some).chain([None]).map(Self);
        candidates.find(Self::has_sanitizer).context(
            "no compiler has AddressSanitizer's runtime; install one: rustup toolchain install nightly --profile minimal",
        )
    }

    fn has_sanitizer(&self) -> bool {
        let mut rustc = self.tool("rustc");
        let folder = command::output(rustc.args(["--print", "target-libdir", "--target", TARGET]));
        folder.is_ok_and(|folder| has_runtime(Path::new(folder.trim())))
    }

    fn tool(&self, name: &str) -> Command {
        let mut command = match &self.0 {
            Some(_) => Command::new("rustup"),
            None if name == "cargo" => command::cargo(),
            None => Command::new(name),
        };
        match &self.0 {
            Some(nightly) => command.args(["run", nightly, name]),
            None => command.env("RUSTC_BOOTSTRAP", "1"),
        };
        command
    }

    fn build(&self, repository: &Repository, targets: &[String]) -> Command {
        let mut cargo = self.tool("cargo");
        cargo.args(["build", "--release", "--locked", "--target", TARGET]);
        cargo.arg("--manifest-path").arg(repository.root.join(FOLDER).join("Cargo.toml"));
        cargo.arg("--target-dir").arg(repository.target.join(FOLDER));
        cargo.args(targets.iter().flat_map(|target| ["--bin", target]));
        cargo.env_remove("CARGO_ENCODED_RUSTFLAGS").env("RUSTFLAGS", FLAGS.join(" "));
        cargo
    }
}

fn nightlies(listed: &str) -> Vec<String> {
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| name.starts_with("nightly")).map(str::to_owned).collect()
}

fn has_runtime(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().ends_with("_rt.asan.a"))
}

/// Limits of one input.
const INPUT_SECONDS: u64 = 10;
const INPUT_MIB: u64 = 2048;

/// Statistics, and the pattern of each in the log of libFuzzer, whose last match counts.
const COLUMNS: [(&str, &str); 5] = [
    ("executions", r"stat::number_of_executed_units:\s*(\d+)"),
    ("per second", r"stat::average_exec_per_sec:\s*(\d+)"),
    // Edges of the control flow that were executed.
    ("coverage", r" cov: (\d+)"),
    ("inputs", r" corp: (\d+)"),
    ("peak MiB", r"stat::peak_rss_mb:\s*(\d+)"),
];

struct Outcome {
    target: String,
    statistics: [u64; COLUMNS.len()],
    /// The failing input, and the command that repeats it; or the log where there is none.
    finding: Option<String>,
}

/// Missing statistics are zero.
fn statistics(log: &str) -> [u64; COLUMNS.len()] {
    COLUMNS.map(|(_, pattern)| {
        let found = Regex::new(pattern).expect("is valid").captures_iter(log).last();
        found.and_then(|found| found[1].parse().ok()).unwrap_or(0)
    })
}

/// Runs a built target. New inputs are stored in fuzz/corpus, failing ones in fuzz/artifacts.
fn run_target(repository: &Repository, target: &str, seconds: u64) -> Result<Outcome> {
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
        format!("-max_total_time={}", seconds),
        format!("-timeout={INPUT_SECONDS}"),
        format!("-rss_limit_mb={INPUT_MIB}"),
        format!("-artifact_prefix={}/", artifacts.display()),
        "-print_final_stats=1".to_owned(),
    ]);
    let dictionary = folder.join("dictionaries").join(format!("{target}.dict"));
    if dictionary.exists() {
        fuzzer.arg(format!("-dict={}", dictionary.display()));
    }
    // Names of hooks are leaked on purpose; growing memory exceeds the limit.
    fuzzer.env("ASAN_OPTIONS", "detect_leaks=0");
    fuzzer.arg(corpus).arg(folder.join("seeds").join(target)).current_dir(&repository.root);
    let status = fuzzer.stdout(log.try_clone()?).stderr(log).status();
    let status = status.with_context(|| format!("could not start `{}`", command::line(&fuzzer)))?;
    let log = String::from_utf8_lossy(&fs::read(&log_path)?).into_owned();
    let shown = |path: &Path| path.strip_prefix(&repository.root).unwrap_or(path).display().to_string();
    let finding = (!status.success()).then(|| match written_input(&log) {
        Some(input) => format!("{}; repeat with `{} {}`", reason(&log), shown(&binary), shown(&input)),
        None => format!("{status}, see `{}`", shown(&log_path)),
    });
    Ok(Outcome { target: target.to_owned(), statistics: statistics(&log), finding })
}

fn written_input(log: &str) -> Option<PathBuf> {
    log.lines().find_map(|line| line.split_once("Test unit written to ")).map(|(_, path)| PathBuf::from(path.trim()))
}

fn reason(log: &str) -> &str {
    let marks = ["panicked at", "ERROR: "];
    let line = log.lines().find(|line| marks.iter().any(|mark| line.contains(mark)));
    line.map_or("ended early", str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_chosen_by_name() {
        let all = ["elf", "walks"].map(str::to_owned);
        assert_eq!(chosen(&all, &[]).expect("all"), all);
        assert_eq!(chosen(&all, &all[1..]).expect("one"), all[1..]);
        let error = chosen(&all, &["elves".to_owned()]).expect_err("unknown").to_string();
        assert!(error.contains("elf, walks"), "{error}");
    }

    #[test]
    fn every_target_is_built_and_has_seeds() {
        let folder = crate::command::root().expect("there is a repository").join(FOLDER);
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        for name in all(&folder).expect("targets") {
            assert!(manifest.contains(&format!("name = \"{name}\"")), "`{name}` is not in the manifest");
            let seeds = fs::read_dir(folder.join("seeds").join(&name)).map_or(0, Iterator::count);
            assert!(seeds > 0, "`{name}` has no seeds");
        }
    }

    #[test]
    fn nightlies_are_found_among_toolchains() {
        let listed =
            "stable-x86_64-unknown-linux-gnu (active, default)\nnightly-2026-05-19-x86_64-unknown-linux-gnu\n1.95.0\n";
        assert_eq!(nightlies(listed), ["nightly-2026-05-19-x86_64-unknown-linux-gnu"]);
        assert!(nightlies("no installed toolchains\n").is_empty());
    }

    #[test]
    fn runtimes_are_found_by_their_file() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(!has_runtime(folder.path()));
        fs::write(folder.path().join("librustc-stable_rt.asan.a"), "").expect("a file");
        assert!(has_runtime(folder.path()));
        assert!(!has_runtime(&folder.path().join("missing")));
    }

    const LOG: &str = "INFO: Running with entropic power schedule (0xFF, 100).\n\
        #2\tINITED cov: 61 ft: 62 corp: 1/1b exec/s: 0 rss: 40Mb\n\
        #262144\tpulse  cov: 92 ft: 170 corp: 31/2340b lim: 4096 exec/s: 131072 rss: 88Mb\n\
        #600000\tDONE   cov: 93 ft: 171 corp: 32/2400b lim: 4096 exec/s: 120000 rss: 91Mb\n\
        stat::number_of_executed_units: 600000\n\
        stat::average_exec_per_sec:     120000\n\
        stat::peak_rss_mb:              91\n";

    #[test]
    fn statistics_are_read_from_the_log() {
        assert_eq!(statistics(LOG), [600_000, 120_000, 93, 32, 91]);
        assert_eq!(statistics(""), [0; 5]);
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
