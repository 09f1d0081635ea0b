//! Programs that a command starts, and facts about processes in procfs. A program is killed with its process group when
//! its value is dropped, and by the kernel when this process is killed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use procfs::process::{MMPermissions, MMapPath, Process};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use crate::command;

/// Timeout for the next output of a program: it may fill a gibibyte first, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);
const POLL_PERIOD: Duration = Duration::from_millis(20);

/// A command for a program that the kernel kills when this process exits. Without input and output.
pub(crate) fn bound(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The output of a program that is read by lines. Its input is a pipe then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Neither: input and output are those of the command.
    None,
    Standard,
    Errors,
}

pub(crate) struct Program {
    child: Child,
    name: String,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Program {
    pub(crate) fn start(command: &mut Command, output: Output) -> Result<Self> {
        let name = command::line(command);
        match output {
            Output::None => {}
            Output::Standard => {
                command.stdin(Stdio::piped()).stdout(Stdio::piped());
            }
            Output::Errors => {
                command.stdin(Stdio::piped()).stderr(Stdio::piped());
            }
        }
        let mut child = command.process_group(0).spawn().with_context(|| format!("could not start `{name}`"))?;
        let (sender, lines) = mpsc::channel();
        let stdout = child.stdout.take().map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        if let Some(pipe) = stdout.or_else(|| child.stderr.take().map(|pipe| Box::new(pipe) as _)) {
            thread::spawn(move || {
                BufReader::new(pipe).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
            });
        }
        let input = child.stdin.take();
        Ok(Self { child, name, input, lines })
    }

    /// Starts a command, and waits until it prints `ready`. Returns the rest of that line, too.
    pub(crate) fn ready(command: &mut Command) -> Result<(Self, String)> {
        let program = Self::start(command, Output::Standard)?;
        let rest = program.line_after("ready")?.trim().to_owned();
        Ok((program, rest))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn line(&self) -> Result<String> {
        self.lines.recv_timeout(PATIENCE).with_context(|| format!("`{}` prints nothing more", self.name))
    }

    pub(crate) fn lines_until(&self, start: &str) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        while let Ok(line) = self.line() {
            lines.push(line);
            if lines.last().is_some_and(|line| line.starts_with(start)) {
                return Ok(lines);
            }
        }
        bail!("`{}` did not print `{start}`, but: {}", self.name, lines.join("\n"))
    }

    pub(crate) fn line_after(&self, start: &str) -> Result<String> {
        let lines = self.lines_until(start)?;
        Ok(lines.last().and_then(|line| line.strip_prefix(start)).unwrap_or_default().to_owned())
    }

    pub(crate) fn lines_so_far(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    pub(crate) fn input(&mut self) -> Result<&mut ChildStdin> {
        self.input.as_mut().with_context(|| format!("the input of `{}` is closed", self.name))
    }

    pub(crate) fn send(&mut self, line: &str) -> Result<()> {
        let error = format!("`{}` does not read its input", self.name);
        writeln!(self.input()?, "{line}").context(error)
    }

    pub(crate) fn ask(&mut self, line: &str) -> Result<String> {
        self.send(line)?;
        self.line()
    }

    /// Writes a line, which the program answers with `done`.
    pub(crate) fn order(&mut self, line: &str) -> Result<()> {
        let answer = self.ask(line)?;
        ensure!(answer == "done", "`{}` answers `{answer}` to `{line}`", self.name);
        Ok(())
    }

    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    pub(crate) fn interrupt(&self) -> Result<()> {
        kill_process(raw(self.pid())?, Signal::INT).with_context(|| format!("`{}` has exited", self.name))
    }

    pub(crate) fn wait(&mut self) -> Result<ExitStatus> {
        self.child.wait().with_context(|| format!("cannot wait for `{}`", self.name))
    }

    /// Waits until the program has exited, and leaves its exit status and its CPU time readable.
    pub(crate) fn until_exited(&self) -> Result<()> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(raw(self.pid())?), options);
        status.with_context(|| format!("cannot wait for `{}`", self.name)).map(drop)
    }

    /// `None` if the program still runs after this time.
    pub(crate) fn wait_for(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        let started = Instant::now();
        loop {
            let status = self.child.try_wait()?;
            if status.is_some() || started.elapsed() >= limit {
                return Ok(status);
            }
            thread::sleep(POLL_PERIOD);
        }
    }

    /// Polls until `poll` returns a value; fails when the program exits first.
    pub(crate) fn until<T>(&mut self, mut poll: impl FnMut(u32) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = poll(self.pid()) {
                return Ok(found);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("`{}` exited early: {status}", self.name);
            }
            if Instant::now() > deadline {
                bail!("`{}` was not ready within {PATIENCE:?}", self.name);
            }
            thread::sleep(POLL_PERIOD);
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Ok(pid) = raw(self.pid())
            && matches!(self.child.try_wait(), Ok(None))
        {
            // The program may exit by itself at any time; then there is nothing to signal.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

fn raw(pid: u32) -> Result<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw).context("no process ID")
}

/// Runs a command to its end. Returns its exit status, duration in seconds, and maximum resident size in MiB.
pub(crate) fn run_measured(command: &mut Command) -> Result<(ExitStatus, f64, f64)> {
    let started = Instant::now();
    let mut child = command.spawn().with_context(|| format!("could not start `{}`", command::line(command)))?;
    let mut resident_bytes = 0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        // A process that has just exited has no memory.
        resident_bytes = memory(child.id()).map_or(resident_bytes, |memory| memory.resident_max);
        thread::sleep(Duration::from_millis(2));
    };
    Ok((status, started.elapsed().as_secs_f64(), resident_bytes as f64 / f64::from(1 << 20)))
}

fn process(pid: u32) -> Result<Process> {
    Process::new(pid.cast_signed()).with_context(|| format!("process {pid} has exited"))
}

/// Memory of a process in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) resident: u64,
    pub(crate) resident_max: u64,
    /// Without pages of files and shared pages: RssAnon.
    pub(crate) anonymous: u64,
}

pub(crate) fn memory(pid: u32) -> Result<Memory> {
    let status = process(pid)?.status()?;
    let bytes = |kib: Option<u64>| kib.map(|kib| kib * 1024).context("a process that has exited has no memory");
    Ok(Memory { resident: bytes(status.vmrss)?, resident_max: bytes(status.vmhwm)?, anonymous: bytes(status.rssanon)? })
}

/// CPU time of a process, also of threads that have exited, in seconds.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = process(pid)?.stat()?;
    Ok((stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64)
}

/// CPU time of the running threads of a process in milliseconds, with a resolution of nanoseconds.
pub(crate) fn thread_cpu_ms(pid: u32) -> Result<f64> {
    let threads = process(pid)?.tasks()?;
    let ns = threads.filter_map(|thread| Some(thread.ok()?.schedstat().ok()?.sum_exec_runtime)).sum();
    Ok(Duration::from_nanos(ns).as_secs_f64() * 1e3)
}

pub(crate) fn descendants(pid: u32) -> BTreeSet<u32> {
    let stats = procfs::process::all_processes().into_iter().flatten().filter_map(|process| process.ok()?.stat().ok());
    let parents: Vec<(u32, u32)> = stats.map(|stat| (stat.pid.cast_unsigned(), stat.ppid.cast_unsigned())).collect();
    let mut found = BTreeSet::new();
    let mut open = vec![pid];
    while let Some(parent) = open.pop() {
        let children = parents.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child);
        open.extend(children.filter(|child| found.insert(*child)));
    }
    found
}

/// The first descendant whose arguments, separated by spaces, match.
pub(crate) fn descendant(pid: u32, matches: impl Fn(&str) -> bool) -> Option<u32> {
    descendants(pid).into_iter().find(|&child| matches(&command_line(child)))
}

pub(crate) fn command_line(pid: u32) -> String {
    process(pid).ok().and_then(|process| process.cmdline().ok()).unwrap_or_default().join(" ").trim().to_owned()
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    pub(crate) bytes: usize,
    pub(crate) file_offset: u64,
    pub(crate) path: String,
}

pub(crate) fn mappings(pid: u32) -> Result<Vec<Mapping>> {
    let code = process(pid)?.maps()?.into_iter().filter(|map| map.perms.contains(MMPermissions::EXECUTE));
    let of_file = code.filter_map(|map| match map.pathname {
        MMapPath::Path(path) => Some((map.address, map.offset, path)),
        _ => None,
    });
    of_file
        .map(|((start, end), file_offset, path)| {
            let path = path.to_string_lossy().into_owned();
            Ok(Mapping { start, bytes: usize::try_from(end - start)?, file_offset, path })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_controlled_by_lines() {
        let mut cat = Program::start(&mut bound("cat"), Output::Standard).expect("cat can be started");
        cat.send("one").expect("cat reads");
        cat.send("two 2").expect("cat reads");
        assert_eq!(cat.line_after("two ").expect("cat prints its input"), "2");
        cat.close_input();
        assert!(cat.wait().expect("is a child").success());
        assert!(cat.line_after("three").is_err());
    }

    #[test]
    fn dropping_a_program_kills_its_process_group() {
        let mut shell = Program::start(bound("sh").args(["-c", "sleep 60; true"]), Output::None).expect("sh starts");
        let child = shell.until(|pid| descendant(pid, |line| line == "sleep 60")).expect("it sleeps");
        drop(shell);
        let deadline = Instant::now() + Duration::from_secs(5);
        while command_line(child) == "sleep 60" {
            assert!(Instant::now() < deadline, "{child} survives");
            thread::sleep(POLL_PERIOD);
        }
    }

    #[test]
    fn facts_about_this_process() {
        let pid = std::process::id();
        let memory = memory(pid).expect("it runs");
        assert!(memory.resident > 0 && memory.resident_max >= memory.resident && memory.anonymous > 0);
        assert!(thread_cpu_ms(pid).expect("it runs") > 0.0 && cpu_seconds(pid).is_ok());
        let program = std::env::current_exe().expect("a test has a path");
        assert!(mappings(pid).expect("it runs").iter().any(|mapping| program.ends_with(&mapping.path)));
        assert!(mappings(pid).expect("it runs").iter().all(|mapping| mapping.path.starts_with('/')));
    }
}
