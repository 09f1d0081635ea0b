//! How long it takes from the end of a recording to its flame graph, with ten thousand callsites to be named by DWARF.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::program::{Output, Program, bound};
use super::report::Report;
use super::{Bench, verdict};
use crate::bench::document;
use crate::bench::spread::Spread;
use crate::command;

/// Functions that each call malloc.
const SITES: usize = 10_000;

/// Functions that one other function calls.
const SITES_PER_GROUP: usize = 100;

/// How long it may take, in seconds.
const SECONDS_MAX: f64 = 2.0;

/// Measures a recording that writes a flame graph, time and again.
pub(super) fn measure(bench: &Bench) -> Result<String> {
    let program = build(&bench.folder)?;
    let (mut seconds, mut callsites) = (Vec::new(), 0);
    for _ in 0..bench.rounds {
        seconds.push(record(bench, &program, "svg")?);
    }
    // What the flame graphs were made of: in a recording of its own, whose time does not count.
    record(bench, &program, "json")?;
    let report = Report::read(&bench.folder.join("sites.json"))?;
    callsites += report.callsites().filter(|callsite| callsite.alloc_count > 0.0).count();
    ensure!(callsites >= SITES, "only {callsites} callsites");
    let spread = Spread::new(seconds);
    let rows = [vec![format!("{callsites} callsites of {SITES} functions"), format!("{spread:.2}")]];
    let head = ["from SIGINT until heapbpf has ended, flame graph written", "s, median (extremes)"];
    let met = verdict(spread.median(), SECONDS_MAX);
    Ok(format!("{}\nAt most {SECONDS_MAX} s is asked for: {met}.\n", document::table(&head, &rows)))
}

/// One recording; seconds from its end.
fn record(bench: &Bench, program: &Path, extension: &str) -> Result<f64> {
    let mut target = Program::start(&mut bound(program), Output::Standard)?;
    target.line_after("ready")?;
    let output = bench.folder.join("sites").with_extension(extension);
    let mut command = bench.heapbpf(target.pid());
    command.args(["--interval", "1", "-o"]).arg(&output);
    let mut heapbpf = Program::start(&mut command, Output::Errors)?;
    heapbpf.line_after("heapbpf: recording")?;
    target.tell("go")?;
    target.line_after("done")?;
    let stopped = Instant::now();
    heapbpf.interrupt()?;
    let status = heapbpf.wait()?;
    let seconds = stopped.elapsed().as_secs_f64();
    ensure!(status.success() && output.exists(), "heapbpf failed: {status}");
    Ok(seconds)
}

/// A program of many small functions, with DWARF.
fn build(folder: &Path) -> Result<PathBuf> {
    let (source, program) = (folder.join("sites.c"), folder.join("sites"));
    fs::write(&source, text()?)?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-g", "-fno-builtin", "-fno-optimize-sibling-calls", "-o"]).arg(&program).arg(&source);
    command::run(&mut gcc)?;
    Ok(program)
}

fn text() -> Result<String> {
    let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\nstatic void *volatile kept;\n");
    for site in 0..SITES {
        writeln!(
            text,
            "__attribute__((noinline)) static void site_{site}(void) {{\n    kept = malloc({});\n}}",
            site + 1
        )?;
    }
    let groups = SITES.div_ceil(SITES_PER_GROUP);
    for group in 0..groups {
        writeln!(text, "__attribute__((noinline)) static void group_{group}(void) {{")?;
        for site in (group * SITES_PER_GROUP..SITES).take(SITES_PER_GROUP) {
            writeln!(text, "    site_{site}();")?;
        }
        writeln!(text, "}}")?;
    }
    writeln!(text, "int main(void) {{\n    static char line[64];\n    puts(\"ready\");\n    fflush(stdout);")?;
    writeln!(text, "    while (fgets(line, sizeof line, stdin)) {{")?;
    for group in 0..groups {
        writeln!(text, "        group_{group}();")?;
    }
    writeln!(text, "        puts(\"done\");\n        fflush(stdout);\n    }}\n}}")?;
    Ok(text)
}
