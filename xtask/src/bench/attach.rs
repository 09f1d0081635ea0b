//! `bench overhead --part attach`: attaching to many modules and processes, and detaching.

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::figures::{self, Spread, ms, ratios, verdict};
use super::programs::Churn;
use super::tool::{self, Agent, Setup, Tool};
use crate::process::{Output, Program, bound, thread_cpu_ms};

const ATTACH_MS_MAX: f64 = 150.0;
const MODULES_MS_MAX: f64 = 300.0;
const PATTERN_MS_MAX: f64 = 2000.0;
const PATTERN_DETACH_MS_MAX: f64 = 500.0;
const ALL_MS_MAX: f64 = 5000.0;

const PATTERN_PROCESSES: usize = 500;
const ALL_PROCESSES: usize = 2000;
const ROUNDS: usize = 5;

/// Loads files until the code of `COUNT` files is mapped, prints their number, and waits. `LOAD` is code that loads files while
/// `is_enough()` is false.
const MODULES: &str = "
import ctypes, glob, importlib, os, sys
def modules():
    code = [line for line in open('/proc/self/maps') if 'x' in line.split()[1] and '/' in line]
    return len({line.split(None, 5)[5] for line in code})
def is_enough():
    return modules() >= COUNT
LOAD
print('modules', modules(), flush=True)
sys.stdin.read()
";

const EXTENSIONS: &str = "
for name in '''_asyncio _bz2 _ctypes _curses _dbm _decimal _hashlib _json _lzma _multiprocessing _opcode _posixshmem
        _queue _sqlite3 _ssl _uuid mmap readline resource termios _crypt _elementtree _contextvars _csv _zoneinfo
        audioop nis ossaudiodev syslog _lsprof _testcapi _curses_panel'''.split():
    if is_enough(): break
    try: importlib.import_module(name)
    except ImportError: pass
";

const LIBRARIES: &str = "
allocators = 'asan tsan lsan ubsan libc.so jemalloc tcmalloc mimalloc heaptrack'.split()
for file in sorted(glob.glob('/usr/lib/*-linux-gnu/*.so.*')):
    if is_enough(): break
    if os.path.islink(file) or any(name in file for name in allocators): continue
    try: ctypes.CDLL(file)
    except OSError: pass
";

fn python(count: u32, load: &str) -> Result<(Program, String)> {
    let script = MODULES.replace("COUNT", &count.to_string()).replace("LOAD", load);
    let python = Program::start(bound("/usr/bin/python3").args(["-c", &script]), Output::Standard)?;
    let modules = python.line_after("modules ")?;
    Ok((python, modules))
}

/// In milliseconds.
struct Times {
    attach: f64,
    attach_cpu: f64,
    /// From the interrupt until a probed instruction has its original code.
    detach: f64,
    exit: f64,
}

pub(super) fn measure(setup: &Setup) -> Result<String> {
    let (python, modules) = python(30, EXTENSIONS)?;
    // Also fills the cache, and brings files into memory.
    let hooks = tool::hooks(setup, python.pid())?;
    let free = hooks.iter().find(|hook| hook.function == "free").context("free is hooked")?;
    let free = tool::instruction(python.pid(), free)?;
    let (mut times, mut by_frame_pointers) = (Vec::new(), Vec::new());
    let pid = python.pid().to_string();
    for _ in 0..setup.bench.rounds {
        times.push(record(setup, &["--pid", &pid], Some(&free))?);
        tool::wait_until_detached(python.pid())?;
        by_frame_pointers.push(record(setup, &["--pid", &pid, "--unwind", "fp"], None)?.attach);
        tool::wait_until_detached(python.pid())?;
    }
    let spread = |of: fn(&Times) -> f64| Spread::of(times.iter().map(of));
    let attach = spread(|times| times.attach);
    let rows = [
        ("from the start of heapbpf until it records, tables cached", attach.clone()),
        ("its CPU time until then", spread(|times| times.attach_cpu)),
        ("the first with `--unwind fp`", Spread::of(by_frame_pointers)),
        ("from SIGINT until the process has its original code", spread(|times| times.detach)),
        ("from SIGINT until heapbpf exits, reports written", spread(|times| times.exit)),
    ];
    let head = [&*format!("a python3 with {modules} modules"), "ms, median (extremes)"];
    Ok(format!(
        "{}\nLimit for attaching: {ATTACH_MS_MAX} ms: {}. {}\n\n{}",
        figures::pairs(head, rows.map(|(name, spread)| (name, format!("{spread:.0}")))),
        verdict(attach.median(), ATTACH_MS_MAX),
        afterwards(setup)?,
        many(setup)?
    ))
}

/// `probed` is an instruction whose breakpoint shows that heapbpf has detached.
fn record(setup: &Setup, options: &[&str], probed: Option<&(File, u64)>) -> Result<Times> {
    let mut command = setup.bench.command(&setup.bench.heapbpf);
    let mut agent = Agent::start(command.args(options), &setup.bench.folder.join("attach.json"))?;
    let attach_cpu = thread_cpu_ms(agent.pid())?;
    thread::sleep(Duration::from_millis(300));
    let stopped = Instant::now();
    agent.interrupt()?;
    while probed.map_or(Ok(false), tool::is_breakpoint)? {
        thread::sleep(Duration::from_micros(200));
    }
    let detach = ms(stopped.elapsed());
    agent.wait()?;
    Ok(Times { attach: ms(agent.attached_after), attach_cpu, detach, exit: ms(stopped.elapsed()) })
}

fn afterwards(setup: &Setup) -> Result<String> {
    let churn = Churn::start(&setup.bench, "malloc", 1)?;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for _ in 0..setup.bench.rounds {
        before.push(churn.call_ns(setup.window)?);
        let attached = Tool::Heapbpf(&["--interval", "1"]).attach(setup, churn.pid(), &[])?;
        churn.call_ns(setup.window)?;
        attached.detach(churn.pid())?;
        after.push(churn.call_ns(setup.window)?);
    }
    Ok(format!("A malloc and its free after a recording ÷ before it: {:.2}.", ratios(&after, &before)))
}

fn many(setup: &Setup) -> Result<String> {
    let (python, modules) = python(150, LIBRARIES)?;
    // Fills the cache.
    tool::hooks(setup, python.pid())?;
    let of_modules = record_many(setup, &["--pid", &python.pid().to_string()])?;
    drop(python);
    let of_pattern = record_sleeping(setup, PATTERN_PROCESSES, "--cmdline")?;
    let of_all = record_sleeping(setup, ALL_PROCESSES, "--all")?;
    let row = |name: String, (attach, exit): &(Spread, Spread), limited: &str, limit: f64| {
        let figure = if limited == "attach" { attach } else { exit };
        let limit = format!("{limited} ≤ {limit}: {}", verdict(figure.median(), limit));
        vec![name, format!("{attach:.0}"), format!("{exit:.0}"), limit]
    };
    let rows = [
        row(format!("one python3 with {modules} modules"), &of_modules, "attach", MODULES_MS_MAX),
        row(format!("{PATTERN_PROCESSES} processes, `--cmdline`"), &of_pattern, "attach", PATTERN_MS_MAX),
        row("the same processes".to_owned(), &of_pattern, "detach", PATTERN_DETACH_MS_MAX),
        row(format!("{ALL_PROCESSES} processes, `--all`"), &of_all, "detach", ALL_MS_MAX),
    ];
    let head = ["ms, median (extremes)", "start until recording", "SIGINT until exit", "limit"];
    Ok(figures::table(&head, &rows))
}

fn record_sleeping(setup: &Setup, count: usize, selection: &str) -> Result<(Spread, Spread)> {
    let program = setup.bench.folder.join("crowd");
    std::fs::copy("/usr/bin/sleep", &program).context("cannot copy `sleep`")?;
    let start = |_| Program::start(bound(&program).arg("infinity"), Output::None);
    let _processes: Vec<Program> = (0..count).map(start).collect::<Result<_>>()?;
    let pattern = program.display().to_string();
    let selection: &[&str] = if selection == "--all" { &["--all"] } else { &[selection, &pattern] };
    record_many(setup, selection)
}

/// Milliseconds from the start of heapbpf until it records, and from SIGINT until it exits.
fn record_many(setup: &Setup, selection: &[&str]) -> Result<(Spread, Spread)> {
    let times = (0..ROUNDS).map(|_| record(setup, selection, None)).collect::<Result<Vec<_>>>()?;
    Ok((Spread::of(times.iter().map(|times| times.attach)), Spread::of(times.iter().map(|times| times.exit))))
}
