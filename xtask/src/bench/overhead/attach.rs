//! How long attaching and detaching take with a process of many modules, and whether a process is as fast afterwards as
//! it was before.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::breakpoints::{Instruction, wait_until_gone};
use super::churn::{self, Churn};
use super::crowd;
use super::program::{Output, Program, bound};
use super::tool::{self, Tool};
use super::{Bench, verdict};
use crate::bench::document;
use crate::bench::process;
use crate::bench::spread::Spread;

/// How long attaching may take, in milliseconds.
const ATTACH_MS_MAX: f64 = 150.0;

/// Loads extension modules until it has mapped the code of thirty files, says of how many it has, and waits.
const MANY_MODULES: &str = "
import importlib, sys
def modules():
    code = [line for line in open('/proc/self/maps') if 'x' in line.split()[1] and '/' in line]
    return len({line.split(None, 5)[5] for line in code})
for name in '''_asyncio _bz2 _ctypes _curses _dbm _decimal _hashlib _json _lzma _multiprocessing _opcode _posixshmem
        _queue _sqlite3 _ssl _uuid mmap readline resource termios _crypt _elementtree _contextvars _csv _zoneinfo
        audioop nis ossaudiodev syslog _lsprof _testcapi _curses_panel'''.split():
    if modules() >= 30: break
    try: importlib.import_module(name)
    except ImportError: pass
print('modules', modules(), flush=True)
sys.stdin.read()
";

/// Milliseconds of one recording.
struct Times {
    attach: f64,
    /// CPU time of the agent until then.
    attach_cpu: f64,
    detach: f64,
    end: f64,
}

/// Attaches time and again.
pub(super) fn measure(bench: &Bench) -> Result<String> {
    let python = Program::start(bound("/usr/bin/python3").args(["-c", MANY_MODULES]), Output::Standard)?;
    let modules = python.line_after("modules ")?;
    // Fills the cache, and brings files into memory.
    let hooks = tool::hooks(bench, python.pid())?;
    let free = hooks.iter().find(|hook| hook.function == "free").context("free is hooked")?;
    let free = Instruction::find(python.pid(), &free.module, free.offset)?;
    let (mut times, mut by_frame_pointers) = (Vec::new(), Vec::new());
    for _ in 0..bench.rounds {
        times.push(record(bench, python.pid(), "auto", &free)?);
        by_frame_pointers.push(record(bench, python.pid(), "fp", &free)?.attach);
    }
    let spread = |of: fn(&Times) -> f64| Spread::new(times.iter().map(of).collect());
    let attach = spread(|it| it.attach);
    let row = |name: &str, spread: &Spread| vec![name.to_owned(), format!("{spread:.0}")];
    let rows = [
        row("from the start of heapbpf until it records, tables cached", &attach),
        row("its CPU time until then", &spread(|it| it.attach_cpu)),
        row("the first with `--unwind fp`", &Spread::new(by_frame_pointers)),
        row("from SIGINT until the process has its own code again", &spread(|it| it.detach)),
        row("from SIGINT until heapbpf has ended, reports written", &spread(|it| it.end)),
    ];
    let head = [&format!("a python3 with {modules} modules"), "ms, median (extremes)"];
    Ok(format!(
        "{}\nAttaching: at most {ATTACH_MS_MAX} ms is asked for: {}. {}\n\n{}",
        document::table(&head, &rows),
        verdict(attach.median(), ATTACH_MS_MAX),
        afterwards(bench)?,
        crowd::measure(bench)?
    ))
}

/// One recording from start to end. `probed` is an instruction that carries a probe meanwhile.
fn record(bench: &Bench, pid: u32, unwind: &str, probed: &Instruction) -> Result<Times> {
    let began = Instant::now();
    let mut command = bench.heapbpf(pid);
    command.args(["--unwind", unwind, "-o"]).arg(bench.folder.join("attach.json"));
    let mut heapbpf = Program::start(&mut command, Output::Errors)?;
    heapbpf.line_after("heapbpf: recording")?;
    let attach = began.elapsed();
    let attach_cpu = process::cpu_time(heapbpf.pid()).context("the kernel has no schedstat")?;
    std::thread::sleep(Duration::from_millis(100));
    let stopped = Instant::now();
    heapbpf.interrupt()?;
    while probed.is_breakpoint()? {
        std::thread::sleep(Duration::from_micros(200));
    }
    let detach = stopped.elapsed();
    let _ = heapbpf.wait()?;
    let end = stopped.elapsed();
    wait_until_gone(pid)?;
    Ok(Times { attach: ms(attach), attach_cpu: ms(attach_cpu), detach: ms(detach), end: ms(end) })
}

pub(super) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Speed of a process after heapbpf over its speed before.
fn afterwards(bench: &Bench) -> Result<String> {
    let program = churn::build(&bench.repository.root, "churn", &bench.folder)?;
    let churn = Churn::start(&program, "malloc", 1)?;
    let mut ratios = Vec::new();
    for _ in 0..bench.rounds {
        let before = churn.call_ns(bench.window)?;
        let attached = Tool::Heapbpf(&["--interval", "1"]).attach(bench, churn.pid(), &[])?;
        let _ = churn.call_ns(bench.window)?;
        let _ = attached.detach()?;
        ratios.push(churn.call_ns(bench.window)? / before);
    }
    Ok(format!("A malloc and its free after heapbpf ÷ before it: {:.2}.", Spread::new(ratios)))
}
