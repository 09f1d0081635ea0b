//! Programs under measurement: test programs of tests/targets, which allocate as commanded and report what they did, and
//! real programs under load, whose stacks `bench unwind` records.

use std::any::Any;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use heapbpf_tests::nginx::Nginx;
use heapbpf_tests::postgres::Postgres;
use heapbpf_tests::redis::Redis;
use rustix::time::{ClockId, clock_gettime};

use super::Bench;
use super::figures::Spread;
use crate::command;
use crate::process::{Output, PATIENCE, Program, bound, command_line, descendant, descendants};

const BATCHES_MIN: usize = 5;
const POLL_PERIOD: Duration = Duration::from_millis(20);

pub(super) fn build(bench: &Bench, name: &str) -> Result<PathBuf> {
    let program = bench.folder.join(name);
    let flags = "-O2 -g -fno-omit-frame-pointer -fno-optimize-sibling-calls -fno-builtin -pthread";
    let source = bench.repository.root.join("tests/targets").join(name).with_extension("c");
    command::compile("gcc", flags, &source, &program)?;
    Ok(program)
}

/// Compiles and starts a C target, and waits until it is ready: steps.c or turnover.c.
pub(super) fn start(bench: &Bench, name: &str, arguments: &[u32]) -> Result<Program> {
    let mut command = bound(build(bench, name)?);
    Ok(Program::ready(command.args(arguments.iter().map(u32::to_string)))?.0)
}

pub(super) fn numbers<const N: usize>(line: &str) -> Result<[u64; N]> {
    let numbers: Vec<u64> = line.split(' ').map_while(|number| number.parse().ok()).collect();
    let count = numbers.len();
    numbers.try_into().map_err(|_| anyhow::anyhow!("`{line}` has {count} numbers instead of {N}"))
}

/// A program that calls the allocator in a loop, and times each batch of calls: churn.c.
pub(super) struct Churn {
    program: Program,
    calls_per_batch: f64,
}

/// Times of a batch in nanoseconds, the first two of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Batch {
    started: u64,
    ended: u64,
    cpu: u64,
}

impl Churn {
    pub(super) fn start(bench: &Bench, operation: &str, threads: u32) -> Result<Self> {
        Self::run(bound(build(bench, "churn")?).args([operation, &threads.to_string()]))
    }

    pub(super) fn run(command: &mut Command) -> Result<Self> {
        let (program, calls_per_batch) = Program::ready(command)?;
        Ok(Self { program, calls_per_batch: calls_per_batch.parse()? })
    }

    pub(super) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Batches that start from now on and end within `window`; waits longer for the minimum number.
    fn batches(&self, window: Duration) -> Result<Vec<Batch>> {
        let _ = self.program.lines_so_far();
        let started = now_ns();
        let mut batches = Vec::new();
        while batches.len() < BATCHES_MIN || now_ns() < started + ns(window) {
            if now_ns() > started + ns(PATIENCE) {
                bail!("fewer than {BATCHES_MIN} batches in {PATIENCE:?}");
            }
            thread::sleep(POLL_PERIOD);
            for line in self.program.lines_so_far() {
                let [batch_started, ended, cpu] = numbers(&line)?;
                if batch_started >= started {
                    batches.push(Batch { started: batch_started, ended, cpu });
                }
            }
        }
        ensure!(batches.iter().all(|batch| batch.ended >= batch.started), "a batch ended before it started");
        Ok(batches)
    }

    /// CPU time of one call in nanoseconds: the median batch of a window.
    pub(super) fn call_ns(&self, window: Duration) -> Result<f64> {
        let batches = self.batches(window)?;
        Ok(Spread::of(batches.iter().map(|batch| batch.cpu as f64)).median() / self.calls_per_batch)
    }

    /// Calls per second of all threads together.
    pub(super) fn calls_per_second(&self, window: Duration) -> Result<f64> {
        let batches = self.batches(window)?;
        let started = batches.iter().map(|batch| batch.started).min().unwrap_or(0);
        let ended = batches.iter().map(|batch| batch.ended).max().unwrap_or(0);
        Ok(self.calls_per_batch * batches.len() as f64 / Duration::from_nanos(ended - started).as_secs_f64())
    }
}

/// `CLOCK_MONOTONIC`, as the targets print it.
fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Of hoard.c: `structures` of this number of bytes, or this number of `blocks` of 48 to 64 bytes.
pub(super) type Heap = (&'static str, u64);

/// hoard.c: has a heap, of which a known part has leaked, and serves a request each millisecond.
pub(super) struct Hoard {
    program: Program,
    pub(super) truth: Truth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Truth {
    pub(super) held_bytes: u64,
    pub(super) held_count: u64,
    pub(super) leaked_bytes: u64,
    pub(super) leaked_count: u64,
}

impl Hoard {
    pub(super) fn arguments(heap: Heap, threads: u32) -> [String; 3] {
        [heap.0.to_owned(), heap.1.to_string(), threads.to_string()]
    }

    pub(super) fn start(program: &std::path::Path, heap: Heap, threads: u32) -> Result<Self> {
        let (program, truth) = Program::ready(bound(program).args(Self::arguments(heap, threads)))?;
        let [held_bytes, held_count, leaked_bytes, leaked_count] = numbers(&truth)?;
        Ok(Self { program, truth: Truth { held_bytes, held_count, leaked_bytes, leaked_count } })
    }

    pub(super) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// The longest delay of an answer since the previous call, from the time that the request was due.
    pub(super) fn delay_max(&mut self) -> Result<Duration> {
        let [delay_ns, served] = numbers(&self.program.ask("")?)?;
        ensure!(served > 0, "no request was served");
        Ok(Duration::from_nanos(delay_ns))
    }
}

pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) load: &'static str,
    pub(super) interval_bytes: u32,
    pub(super) seconds: u32,
    /// Starts the program and its load in an empty folder, and returns when it works.
    pub(super) start: fn(&Path) -> Result<Running>,
}

pub(super) struct Running {
    pub(super) pids: Vec<u32>,
    /// The program, or the load of a server. Killed first.
    #[expect(dead_code, reason = "held until dropped")]
    load: Program,
    _server: Option<Box<dyn Any>>,
}

impl Running {
    fn start(command: &mut Command) -> Result<Self> {
        let program = Program::start(command, Output::None)?;
        Ok(Self { pids: vec![program.pid()], load: program, _server: None })
    }
}

const fn workload(
    name: &'static str,
    load: &'static str,
    interval_bytes: u32,
    seconds: u32,
    start: fn(&Path) -> Result<Running>,
) -> Workload {
    Workload { name, load, interval_bytes, seconds, start }
}

pub(super) const ALL: &[Workload] = &[
    workload("redis-server", "redis-benchmark", 64, 4, redis),
    workload("nginx", "wrk over gzip'd pages", 1, 6, nginx),
    workload("postgres", "4 backends under pgbench", 1, 6, postgres),
    workload("python3", "a script, PYTHONMALLOC=malloc", 64, 4, python),
    workload("git", "git log -p --stat -M -C", 64, 4, git),
    workload("cc1", "gcc -O2 of a big C file", 128, 4, cc1),
    workload("sqlite3", "inserts from a recursive query", 64, 4, sqlite),
    workload("ffmpeg", "testsrc2 to x264 and AAC", 1, 6, ffmpeg),
    workload("rustc", "a big Rust file, optimised", 128, 4, rustc),
];

fn redis(_: &Path) -> Result<Running> {
    let server = Redis::start();
    let limits = ["config", "set", "maxmemory", "256mb", "maxmemory-policy", "allkeys-random"];
    command::output(Command::new("redis-cli").arg("-s").arg(server.socket()).args(limits))?;
    let mut load = bound("redis-benchmark");
    load.arg("-s").arg(server.socket()).args(["-t", "set,get,lpush,lrange_100,hset,sadd,zadd,mset", "-l", "-q"]);
    let load = Program::start(load.args(["-c", "20", "-n", "20000", "-r", "100000", "-d", "100"]), Output::None)?;
    Ok(Running { pids: vec![server.pid()], load, _server: Some(Box::new(server)) })
}

fn nginx(_: &Path) -> Result<Running> {
    let server = Nginx::start();
    let mut load = bound("wrk");
    load.args(["-t", "1", "-c", "16", "-d", "120s", "-H", "Accept-Encoding: gzip", &server.url()]);
    let load = Program::start(&mut load, Output::None)?;
    Ok(Running { pids: vec![server.worker()], load, _server: Some(Box::new(server)) })
}

const BACKENDS: usize = 4;

fn postgres(_: &Path) -> Result<Running> {
    let server = Postgres::start();
    let mut load = server.client("pgbench");
    load.args(["-n", "-c", &BACKENDS.to_string(), "-T", "120", "postgres"]);
    load.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut load = Program::start(&mut load, Output::None)?;
    // Backends name themselves after their client; others are idle.
    let is_backend = |pid: &u32| command_line(*pid).starts_with("postgres: tests ");
    let pids = load.until(|_| {
        let backends: Vec<u32> = descendants(server.postmaster()).into_iter().filter(is_backend).collect();
        (backends.len() == BACKENDS).then_some(backends)
    })?;
    Ok(Running { pids, load, _server: Some(Box::new(server)) })
}

fn python(folder: &Path) -> Result<Running> {
    let script = folder.join("records.py");
    fs::write(&script, include_str!("../../../tests/targets/records.py"))?;
    let mut python = bound("python3");
    python.arg(&script).env("PYTHONMALLOC", "malloc");
    Running::start(&mut python)
}

const COMMITS: usize = 30_000;
const FILES: usize = 300;
const LINES: usize = 120;

fn git(folder: &Path) -> Result<Running> {
    git_history(folder, COMMITS)?;
    let mut log = git_in(folder);
    log.args(["--no-pager", "log", "-p", "--stat", "-M", "-C"]);
    Running::start(&mut log)
}

fn git_in(folder: &Path) -> Command {
    let mut git = bound("git");
    git.arg("-C").arg(folder).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    git
}

/// Makes a repository with this number of commits in the branch `main`.
pub(super) fn git_history(folder: &Path, commits: usize) -> Result<()> {
    command::output(git_in(folder).args(["init", "-q", "-b", "main"]))?;
    let mut import = Program::start(git_in(folder).args(["fast-import", "--quiet"]), Output::Standard)?;
    let mut input = BufWriter::new(import.input()?);
    write_history(&mut input, commits)?;
    input.flush()?;
    drop(input);
    import.close_input();
    let status = import.wait()?;
    ensure!(status.success(), "git fast-import failed: {status}");
    Ok(())
}

/// Writes commits that each change a few lines of a file, for `git fast-import`.
fn write_history(out: &mut impl Write, commits: usize) -> Result<()> {
    let mut random = 1_u64;
    let mut random_below = |below: usize| {
        // Knuth's MMIX generator: each run makes the same repository.
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(random >> 33).unwrap_or(0) % below
    };
    let mut files: Vec<Vec<u32>> = vec![vec![0; LINES]; FILES];
    for commit in 0..commits {
        let file = if commit < FILES { commit } else { random_below(FILES) };
        for _ in 0..4 {
            files[file][random_below(LINES)] = u32::try_from(commit)?;
        }
        let lines = files[file].iter().enumerate();
        let text: String = lines.map(|(line, by)| format!("line {line} as commit {by} wrote it\n")).collect();
        let message = format!("change file {file}\n");
        writeln!(out, "commit refs/heads/main\ncommitter A <a@b> {} +0000", 1_700_000_000 + commit)?;
        write!(out, "data {}\n{message}", message.len())?;
        write!(out, "M 100644 inline d{}/file{file}.txt\ndata {}\n{text}\n", file % 20, text.len())?;
    }
    writeln!(out, "done")?;
    Ok(())
}

/// Functions in a source file: several times as many as are compiled during the recording.
const FUNCTIONS: usize = 12_000;

fn cc1(folder: &Path) -> Result<Running> {
    let source = folder.join("big.c");
    fs::write(&source, c_source(FUNCTIONS))?;
    let mut gcc = bound("gcc");
    gcc.args(["-O2", "-g", "-c", "-o"]).arg(folder.join("big.o")).arg(&source);
    let mut gcc = Program::start(&mut gcc, Output::None)?;
    let compiler = gcc.until(|pid| descendant(pid, |line| line.contains("/cc1 ")))?;
    Ok(Running { pids: vec![compiler], load: gcc, _server: None })
}

fn rustc(folder: &Path) -> Result<Running> {
    let source = folder.join("big.rs");
    fs::write(&source, rust_source())?;
    // The one in `PATH` may be rustup's, which starts the compiler as another process.
    let root = command::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let mut rustc = bound(Path::new(root.trim()).join("bin/rustc"));
    rustc.args(["--edition=2024", "--crate-type=lib", "-O", "--out-dir"]).arg(folder).arg(&source);
    Running::start(&mut rustc)
}

pub(super) fn c_source(functions: usize) -> String {
    let function = |i: usize| {
        format!(
            "struct s{i} {{ int a, b[{n}]; double c; struct s{i} *next; }};
static int sum{i}(const struct s{i} *s) {{ int t = 0; for (int i = 0; i < {n}; i++) t += s->b[i] * s->a; return t; }}
int walk{i}(struct s{i} *s, int key) {{
    int found = 0;
    while (s) {{
        switch ((s->a ^ key) & 7) {{
        case 0: found += sum{i}(s); break;
        case 1: s->c *= 1.5; break;
        case 2: for (int i = 0; i < {n}; i += 2) s->b[i] = key + i; break;
        case 3: if (s->next && s->next->a > s->a) {{ found--; s = s->next; continue; }} break;
        default: found ^= key >> (s->a & 15);
        }}
        s = s->next;
    }}
    return found;
}}
",
            n = i % 13 + 3
        )
    };
    (0..functions).map(function).collect()
}

fn rust_source() -> String {
    let function = |i: usize| {
        format!(
            "#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct S{i} {{ pub name: String, pub values: Vec<u{width}>, pub next: Option<Box<S{i}>> }}
pub fn walk{i}(items: &[S{i}], key: u64) -> std::collections::BTreeMap<String, u64> {{
    let mut found = std::collections::BTreeMap::new();
    for item in items.iter().filter(|item| item.values.len() as u64 > key % {n}) {{
        let total: u64 = item.values.iter().map(|value| u64::from(*value)).sum();
        *found.entry(format!(\"{{}}-{{key:x}}\", item.name)).or_insert(0) += total;
    }}
    found
}}
",
            width = [8, 16, 32][i % 3],
            n = i % 13 + 3
        )
    };
    (0..FUNCTIONS / 8).map(function).collect()
}

/// Rounds of filling and emptying a table: more than run during the recording.
const SQLITE_ROUNDS: usize = 200;

fn sqlite(folder: &Path) -> Result<Running> {
    let script = folder.join("script.sql");
    let round = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 200000)
INSERT INTO t SELECT i, printf('%d-%s', i, hex(randomblob(12))), i * 0.5 FROM n;
SELECT count(*), group_concat(substr(b, 1, 3)) FROM t WHERE b LIKE '%7A%' GROUP BY a % 100;
DELETE FROM t;
";
    fs::write(
        &script,
        format!(
            "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c REAL);\nCREATE INDEX tb ON t(b);\n{}",
            round.repeat(SQLITE_ROUNDS)
        ),
    )?;
    let mut sqlite = bound("sqlite3");
    sqlite.arg(folder.join("data.sqlite")).stdin(File::open(&script)?);
    Running::start(&mut sqlite)
}

/// ffmpeg, which maps some two hundred modules, encoding a generated picture.
fn ffmpeg(_: &Path) -> Result<Running> {
    let mut ffmpeg = bound("ffmpeg");
    ffmpeg.args(["-nostdin", "-loglevel", "error", "-f", "lavfi", "-i", "testsrc2=size=320x240:rate=30:duration=7200"]);
    ffmpeg.args(["-f", "lavfi", "-i", "sine=frequency=440:duration=7200", "-vf", "scale=160:120,hue=s=0"]);
    ffmpeg.args(["-c:v", "libx264", "-preset", "veryfast", "-c:a", "aac", "-f", "matroska", "-y", "/dev/null"]);
    Running::start(&mut ffmpeg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_an_exact_count_of_numbers() {
        assert_eq!(numbers::<3>("7 9 1").expect("three numbers"), [7, 9, 1]);
        assert!(numbers::<3>("7 9").is_err());
        assert!(numbers::<2>("ready 7").is_err());
        assert_eq!(Hoard::arguments(("blocks", 7), 2), ["blocks", "7", "2"]);
    }
}
