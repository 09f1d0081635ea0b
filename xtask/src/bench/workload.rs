//! Workloads of `bench overhead --part programs`: fixed amounts of work of programs that wait until a tool is attached. All
//! of them map private copies of the allocators, so that probes of other tools and processes do not affect the figures.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{Bench, programs};
use crate::command;
use crate::process::{Output, Program, bound, mappings, thread_cpu_ms};

/// Libraries of which workloads map a copy.
const COPIED: [&str; 2] = ["libc.so.6", "libjemalloc.so.2"];
/// Where Debian installs libraries.
pub(super) const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

pub(super) struct Workload {
    /// Value of `--only`, and head of the table.
    pub(super) name: &'static str,
    pub(super) description: &'static str,
    /// Rounds of the work, for tools that make a call up to ten times as expensive, and for others.
    rounds: [u32; 2],
    prepare: fn(&Bench, &Path) -> Result<Job>,
}

const fn workload(
    name: &'static str,
    description: &'static str,
    rounds: [u32; 2],
    prepare: fn(&Bench, &Path) -> Result<Job>,
) -> Workload {
    Workload { name, description, rounds, prepare }
}

pub(super) const ALL: [Workload; 10] = [
    workload("pairs", "a malloc of 64 to 1087 bytes and its free", [40, 4], |bench, _| measured(bench, "pairs")),
    workload("mixed", "mixed sizes, 500,000 live blocks", [1, 1], |bench, _| measured(bench, "mixed")),
    workload("threads", "8 threads, which free each other's blocks", [6, 1], |bench, _| measured(bench, "threads")),
    workload("redis", "redis-server (jemalloc), SET", [1, 1], |_, folder| redis(folder, &["-n", "60000"])),
    workload("redis-P16", "the same, 16 in a pipeline", [1, 1], |_, folder| {
        redis(folder, &["-n", "300000", "-P", "16"])
    }),
    workload("sqlite3", "60,000 INSERT into an indexed table in memory", [1, 1], |_, folder| sqlite(folder)),
    workload("python3", "JSON", [30, 30], |bench, _| Ok(python(bench, "pymalloc"))),
    workload("python3-malloc", "the same, `PYTHONMALLOC=malloc`", [30, 30], |bench, _| Ok(python(bench, "malloc"))),
    workload("git", "`git log --stat` of 12,000 commits", [1, 1], |_, folder| git(folder)),
    workload("cc1", "gcc's C compiler at `-O2`", [1, 1], |_, folder| cc1(folder)),
];

/// How expensive a tool makes a call: it selects the amount of work of small loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expense {
    Low,
    High,
}

/// A command without the tool's part.
pub(super) struct Job {
    command: Vec<PathBuf>,
    environment: Vec<String>,
    drive: Drive,
}

enum Drive {
    /// The program answers the number of rounds with `done`.
    Rounds,
    /// The program reads this input, works, and exits.
    Input(String),
    /// A redis-server on this port, and options of redis-benchmark.
    Redis(String, &'static [&'static str]),
}

/// A workload whose files exist.
pub(super) struct Prepared<'a> {
    pub(super) workload: &'a Workload,
    job: Job,
    library: PathBuf,
}

/// CPU time of the program and wall-clock time, in seconds per round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) cpu: f64,
    pub(super) wall: f64,
}

impl Workload {
    pub(super) fn prepare<'a>(&'a self, bench: &Bench) -> Result<Prepared<'a>> {
        let library = bench.folder.join("library");
        if !library.exists() {
            fs::create_dir(&library)?;
            for name in COPIED {
                fs::copy(Path::new(LIBRARIES).join(name), library.join(name))?;
            }
        }
        let job = (self.prepare)(bench, &bench.empty_folder("work")?)?;
        Ok(Prepared { workload: self, job, library })
    }

    pub(super) fn rounds(&self, expense: Expense) -> u32 {
        self.rounds[usize::from(expense == Expense::High)]
    }
}

/// The program of a workload, waiting for its work or done with it.
pub(super) struct Held<'a> {
    program: Program,
    drive: &'a Drive,
}

impl Prepared<'_> {
    /// Starts the program with variables of the tool, and waits until it waits for its work.
    pub(super) fn start(&self, environment: &[String]) -> Result<Held<'_>> {
        // Variables of the tool apply to the program alone, not to those that start it.
        let mut command = bound("/usr/bin/env");
        command.arg(format!("LD_LIBRARY_PATH={}", self.library.display()));
        command.args(self.job.environment.iter().chain(environment));
        command.args(&self.job.command);
        let drive = &self.job.drive;
        let program = match drive {
            Drive::Rounds => Program::ready(&mut command)?.0,
            Drive::Input(_) => {
                let mut program = Program::start(&mut command, Output::Errors)?;
                program.until(|pid| reads_input(pid).then_some(()))?;
                program
            }
            Drive::Redis(port, _) => {
                let mut server = Program::start(&mut command, Output::None)?;
                server.until(|_| {
                    let answer = command::output(Command::new("redis-cli").args(["-p", port, "ping"]));
                    answer.is_ok_and(|answer| answer.trim() == "PONG").then_some(())
                })?;
                server
            }
        };
        let library = self.library.to_string_lossy();
        let is_private = mappings(program.pid())?.iter().any(|mapping| mapping.path.starts_with(&*library));
        ensure!(is_private, "the program does not map the private copies in `{library}`");
        Ok(Held { program, drive })
    }
}

impl Held<'_> {
    pub(super) fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Whether the work ends with the program.
    pub(super) fn exits(&self) -> bool {
        matches!(self.drive, Drive::Input(_))
    }

    /// Lets the program do rounds that are not measured, if its work has rounds, and returns their number. In them the dynamic linker
    /// resolves its slots: before that, the inline engine leaves them alone, and every call meets a probe.
    pub(super) fn warm_up(&mut self) -> Result<u32> {
        if !matches!(self.drive, Drive::Rounds) {
            return Ok(0);
        }
        self.work(1)?;
        Ok(1)
    }

    pub(super) fn work(&mut self, rounds: u32) -> Result<Work> {
        let (cpu_before, started) = (thread_cpu_ms(self.pid())?, Instant::now());
        match self.drive {
            Drive::Rounds => self.program.order(&rounds.to_string())?,
            Drive::Input(input) => {
                self.program.send(input)?;
                self.program.close_input();
                self.program.until_exited()?;
            }
            Drive::Redis(port, options) => {
                let mut load = Command::new("redis-benchmark");
                load.args(["-p", port, "-q", "-t", "set", "-c", "16", "-r", "100000", "-d", "100"]).args(*options);
                command::output(&mut load)?;
            }
        }
        let wall = started.elapsed().as_secs_f64();
        // Also readable of a process that has exited and not been waited for.
        let cpu = (thread_cpu_ms(self.pid())? - cpu_before) / 1e3;
        ensure!(cpu > 0.0, "the program did not work");
        Ok(Work { cpu: cpu / f64::from(rounds), wall: wall / f64::from(rounds) })
    }

    /// Lets the program exit: tools in it write their profiles then.
    pub(super) fn end(mut self) -> Result<()> {
        if let Drive::Redis(..) = self.drive {
            let pid = Pid::from_raw(self.pid().cast_signed()).context("no process ID")?;
            kill_process(pid, Signal::TERM)?;
        }
        self.program.close_input();
        let status = self.program.wait()?;
        let errors = self.program.lines_so_far().join("; ");
        ensure!(status.success(), "the program failed: {status}: {errors}");
        Ok(())
    }
}

/// Whether a process waits in `read(0, …)`.
fn reads_input(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|call| call.starts_with("0 0x0 "))
}

fn measured(bench: &Bench, work: &str) -> Result<Job> {
    let program = bench.folder.join("measured");
    if !program.exists() {
        programs::build(bench, "measured")?;
    }
    Ok(Job { command: vec![program, work.into()], environment: Vec::new(), drive: Drive::Rounds })
}

fn redis(folder: &Path, options: &'static [&'static str]) -> Result<Job> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let fixed = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"];
    let words = ["redis-server", "--port", &port].into_iter().chain(fixed).map(PathBuf::from);
    let command = words.chain([folder.to_owned()]).collect();
    Ok(Job { command, environment: Vec::new(), drive: Drive::Redis(port, options) })
}

const ROWS: u32 = 60_000;

fn sqlite(folder: &Path) -> Result<Job> {
    let script = folder.join("rows.sql");
    let insert = |row: u32| {
        let text = row.wrapping_mul(2_654_435_761);
        format!("INSERT INTO t VALUES({row}, '{text:08x}, text of row {row}', {}.5);\n", row / 2)
    };
    let rows: String = (0..ROWS).map(insert).collect();
    let head = "CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT, c REAL);\nCREATE INDEX tb ON t(b);\nBEGIN;\n";
    fs::write(&script, format!("{head}{rows}COMMIT;\n"))?;
    let command = ["sqlite3", ":memory:"].map(PathBuf::from).to_vec();
    Ok(Job { command, environment: Vec::new(), drive: Drive::Input(format!(".read {}", script.display())) })
}

fn python(bench: &Bench, allocator: &str) -> Job {
    let script = bench.repository.root.join("tests/targets/documents.py");
    let environment = vec![format!("PYTHONMALLOC={allocator}")];
    Job { command: vec!["/usr/bin/python3".into(), script], environment, drive: Drive::Rounds }
}

const COMMITS: usize = 12_000;

fn git(folder: &Path) -> Result<Job> {
    programs::git_history(folder, COMMITS)?;
    let mut command = ["git", "-C"].map(PathBuf::from).to_vec();
    command.push(folder.to_owned());
    command.extend(["--no-pager", "log", "--stat", "-M", "-C", "--stdin"].map(PathBuf::from));
    let environment = ["GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null"].map(str::to_owned).to_vec();
    Ok(Job { command, environment, drive: Drive::Input("main".to_owned()) })
}

/// Functions in the compiled file.
const FUNCTIONS: usize = 100;

fn cc1(folder: &Path) -> Result<Job> {
    let source = folder.join("big.c");
    fs::write(&source, programs::c_source(FUNCTIONS))?;
    let compiler = command::output(Command::new("gcc").arg("-print-prog-name=cc1"))?;
    let mut command = vec![PathBuf::from(compiler.trim())];
    command.extend(["-quiet", "-O2", "-o"].map(PathBuf::from));
    command.extend([folder.join("big.s"), "-".into()]);
    Ok(Job { command, environment: Vec::new(), drive: Drive::Input(format!("#include \"{}\"", source.display())) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_read_their_input_are_recognised() {
        let mut cat = Program::start(&mut bound("cat"), Output::Standard).expect("cat can be started");
        cat.until(|pid| reads_input(pid).then_some(())).expect("cat reads");
        let mut sleep = Program::start(bound("sleep").arg("60"), Output::None).expect("sleep can be started");
        let name = |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        sleep.until(|pid| (name(pid).trim() == "sleep").then_some(())).expect("sleep runs");
        assert!(!reads_input(sleep.pid()));
    }

    #[test]
    fn the_cpu_time_of_a_program_remains_readable_until_it_is_waited_for() {
        let input = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit".to_owned();
        let drive = Drive::Input(input);
        let mut program = Program::start(&mut bound("sh"), Output::Standard).expect("sh can be started");
        program.until(|pid| reads_input(pid).then_some(())).expect("sh reads");
        let mut held = Held { program, drive: &drive };
        let work = held.work(1).expect("it works");
        assert!(work.cpu > 0.0 && work.wall > 0.0, "{work:?}");
        held.end().expect("it exits with 0");
    }

    #[test]
    fn names_are_distinct() {
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|workload| workload.name).collect();
        assert_eq!(names.len(), ALL.len());
    }
}
