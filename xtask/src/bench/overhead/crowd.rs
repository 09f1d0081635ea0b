//! How long attaching and detaching take with 150 modules in one process, and with many processes.

use std::time::Instant;

use anyhow::{Context as _, Result};

use super::attach;
use super::program::{Output, Program, bound};
use super::tool;
use super::{Bench, verdict};
use crate::bench::document;
use crate::bench::spread::Spread;

/// Limits in milliseconds.
const MODULES_MS_MAX: f64 = 300.0;
const PATTERN_MS_MAX: f64 = 500.0;
const ALL_MS_MAX: f64 = 5000.0;

/// Processes that a pattern matches, and processes with `--all`.
const PATTERN_PROCESSES: usize = 200;
const ALL_PROCESSES: usize = 2000;

/// Recordings of each kind.
const ROUNDS: usize = 5;

/// Loads shared libraries until the code of 150 files is mapped, prints how many there are, and waits.
const MODULES: &str = "
import ctypes, glob, os, sys
def modules():
    code = [line for line in open('/proc/self/maps') if 'x' in line.split()[1] and '/' in line]
    return len({line.split(None, 5)[5] for line in code})
allocators = 'asan tsan lsan ubsan libc.so jemalloc tcmalloc mimalloc heaptrack'.split()
for file in sorted(glob.glob('/usr/lib/*-linux-gnu/*.so.*')):
    if modules() >= 150: break
    if os.path.islink(file) or any(name in file for name in allocators): continue
    try: ctypes.CDLL(file)
    except OSError: pass
print('modules', modules(), flush=True)
sys.stdin.read()
";

/// Milliseconds from the start of heapbpf until it records, and from SIGINT until it has ended.
type Times = (Vec<f64>, Vec<f64>);

pub(super) fn measure(bench: &Bench) -> Result<String> {
    let python = Program::start(bound("/usr/bin/python3").args(["-c", MODULES]), Output::Standard)?;
    let modules = python.line_after("modules ")?;
    // Fills the cache.
    let _ = tool::hooks(bench, python.pid())?;
    let (of_modules, after_modules) = record(bench, &["--pid", &python.pid().to_string()])?;
    drop(python);
    let (of_pattern, after_pattern) = among(bench, PATTERN_PROCESSES, "--cmdline")?;
    let (of_all, after_all) = among(bench, ALL_PROCESSES, "--all")?;
    let row = |name: String, attach: Vec<f64>, end: Vec<f64>, limit: String| {
        vec![name, format!("{:.0}", Spread::new(attach)), format!("{:.0}", Spread::new(end)), limit]
    };
    let median = |times: &[f64]| Spread::new(times.to_vec()).median();
    let limits = [
        format!("attach ≤ {MODULES_MS_MAX}: {}", verdict(median(&of_modules), MODULES_MS_MAX)),
        format!("detach ≤ {PATTERN_MS_MAX}: {}", verdict(median(&after_pattern), PATTERN_MS_MAX)),
        format!("detach ≤ {ALL_MS_MAX}: {}", verdict(median(&after_all), ALL_MS_MAX)),
    ];
    let [first, second, third] = limits;
    let rows = [
        row(format!("one python3 with {modules} modules"), of_modules, after_modules, first),
        row(format!("{PATTERN_PROCESSES} processes, `--cmdline`"), of_pattern, after_pattern, second),
        row(format!("{ALL_PROCESSES} processes, `--all`"), of_all, after_all, third),
    ];
    let head = ["ms, median (extremes)", "start until recording", "SIGINT until exit", "limit"];
    Ok(document::table(&head, &rows))
}

/// Recordings of processes that wait, of which there are so many.
fn among(bench: &Bench, count: usize, selection: &str) -> Result<Times> {
    let program = bench.folder.join("crowd");
    std::fs::copy("/usr/bin/sleep", &program).context("cannot copy `sleep`")?;
    let start = |_| Program::start(bound(&program).arg("infinity"), Output::Errors);
    let _crowd: Vec<Program> = (0..count).map(start).collect::<Result<_>>()?;
    let pattern = program.display().to_string();
    let selection: &[&str] = if selection == "--all" { &["--all"] } else { &[selection, &pattern] };
    record(bench, selection)
}

fn record(bench: &Bench, selection: &[&str]) -> Result<Times> {
    let (mut attach, mut end) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let mut command = bound(&bench.heapbpf);
        command.env("XDG_CACHE_HOME", bench.folder.join("cache"));
        command.args(selection).arg("-o").arg(bench.folder.join("crowd.json"));
        let mut heapbpf = Program::start(&mut command, Output::Errors)?;
        heapbpf.line_after("heapbpf: recording")?;
        attach.push(attach::ms(began.elapsed()));
        std::thread::sleep(std::time::Duration::from_millis(300));
        let stopped = Instant::now();
        heapbpf.interrupt()?;
        let _ = heapbpf.wait()?;
        end.push(attach::ms(stopped.elapsed()));
    }
    Ok((attach, end))
}
