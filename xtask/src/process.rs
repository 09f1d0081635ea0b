//! Programs that a measurement starts, and facts about processes in procfs. A program runs in a process group of its own,
//! which is killed when its value is dropped, and by the kernel when this process is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::command;

/// Timeout for the next output of a program: it may fill a gibibyte first, on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);

/// Timeout of a program's exit before it is killed.
const EXIT_WITHIN: Duration = Duration::from_secs(5);

const POLL_PERIOD: Duration = Duration::from_millis(20);

/// `USER_HZ`, the same on all x86-64.
const TICKS_PER_SECOND: f64 = 100.0;

/// A command for a program that the kernel kills when this process exits. Without input and output.
pub(super) fn bound(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// The output of a program that is read by lines. Its input is a pipe then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// Neither: input and output are those of the command.
    None,
    Standard,
    Errors,
}

/// A running program. Killed with its process group when dropped.
pub(super) struct Program {
    child: Child,
    name: String,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    stop: Option<Signal>,
}

impl Program {
    /// Starts a command that [`bound`] has returned.
    pub(super) fn start(command: &mut Command, output: Output) -> Result<Self> {
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
        Ok(Self { child, name, input, lines, stop: None })
    }

    /// Sends this signal before the program is killed, for programs whose children leave the process group.
    pub(super) fn stopped_by(mut self, signal: Signal) -> Self {
        self.stop = Some(signal);
        self
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn line(&self) -> Result<String> {
        self.lines.recv_timeout(PATIENCE).with_context(|| format!("`{}` prints nothing more", self.name))
    }

    /// Lines up to the first one that starts with `start`.
    pub(super) fn lines_until(&self, start: &str) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        while let Ok(line) = self.line() {
            lines.push(line);
            if lines.last().is_some_and(|line| line.starts_with(start)) {
                return Ok(lines);
            }
        }
        bail!("`{}` did not print `{start}`, but: {}", self.name, lines.join("\n"))
    }

    /// The rest of the first line that starts with `start`.
    pub(super) fn line_after(&self, start: &str) -> Result<String> {
        let lines = self.lines_until(start)?;
        Ok(lines.last().and_then(|line| line.strip_prefix(start)).unwrap_or_default().to_owned())
    }

    /// Lines that have been printed and not been read.
    pub(super) fn lines_so_far(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    pub(super) fn input(&mut self) -> Result<&mut ChildStdin> {
        self.input.as_mut().with_context(|| format!("the input of `{}` is closed", self.name))
    }

    /// Writes a line to the program's input.
    pub(super) fn send(&mut self, line: &str) -> Result<()> {
        let error = format!("`{}` does not read its input", self.name);
        writeln!(self.input()?, "{line}").context(error)
    }

    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    /// Interrupts it, as Ctrl-C does.
    pub(super) fn interrupt(&self) -> Result<()> {
        kill_process(raw(self.pid())?, Signal::INT).with_context(|| format!("`{}` has exited", self.name))
    }

    pub(super) fn wait(&mut self) -> Result<ExitStatus> {
        self.child.wait().with_context(|| format!("cannot wait for `{}`", self.name))
    }

    /// Polls until `poll` returns a value; fails when the program exits first.
    pub(super) fn until<T>(&mut self, mut poll: impl FnMut(u32) -> Option<T>) -> Result<T> {
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
            if let Some(signal) = self.stop {
                let _ = kill_process(pid, signal);
                let deadline = Instant::now() + EXIT_WITHIN;
                while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                    thread::sleep(POLL_PERIOD);
                }
            }
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

fn raw(pid: u32) -> Result<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw).context("no process ID")
}

/// Runs a command to its end. Returns its exit status, duration in seconds, and maximum resident size (VmHWM) in MiB.
pub(super) fn run_measured(command: &mut Command) -> Result<(ExitStatus, f64, f64)> {
    let started = Instant::now();
    let mut child = command.spawn().with_context(|| format!("could not start `{}`", command::line(command)))?;
    let mut resident_bytes = 0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        // A process that has just exited has no memory.
        resident_bytes = status_bytes(child.id(), "VmHWM:").unwrap_or(resident_bytes);
        thread::sleep(Duration::from_millis(2));
    };
    Ok((status, started.elapsed().as_secs_f64(), super::figures::mib(resident_bytes)))
}

/// Memory of a process by its name in `/proc/PID/status`, in bytes.
pub(super) fn status_bytes(pid: u32, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the process has exited")?;
    field_bytes(&status, name).with_context(|| format!("the kernel does not report `{name}`"))
}

/// The value of a line `NAME: NUMBER kB`, in bytes.
pub(super) fn field_bytes(text: &str, name: &str) -> Option<u64> {
    let kib = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"))?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// CPU time of a process, also of threads that have exited, in seconds.
pub(super) fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("the process has exited")?;
    let fields = stat_fields(&stat);
    let ticks: u32 = fields.get(11..13).context("no CPU times")?.iter().filter_map(|it| it.parse::<u32>().ok()).sum();
    Ok(f64::from(ticks) / TICKS_PER_SECOND)
}

/// CPU time of the running threads of a process in milliseconds, with a resolution of nanoseconds
/// (the first number of `/proc/PID/task/TID/schedstat`).
pub(super) fn thread_cpu_ms(pid: u32) -> Result<f64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).context("the process has exited")?.flatten();
    let of_thread = |thread: fs::DirEntry| -> Option<u64> {
        fs::read_to_string(thread.path().join("schedstat")).ok()?.split(' ').next()?.parse().ok()
    };
    Ok(Duration::from_nanos(threads.filter_map(of_thread).sum()).as_secs_f64() * 1e3)
}

/// Fields of `/proc/PID/stat` after the name, which may contain anything.
fn stat_fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')').map_or_else(Vec::new, |(_, fields)| fields.split_ascii_whitespace().collect())
}

/// All descendants of a process.
pub(super) fn descendants(pid: u32) -> BTreeSet<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some(parent) = stat_fields(&stat).get(1).and_then(|parent| parent.parse().ok()) {
            children.entry(parent).or_default().push(child);
        }
    }
    let mut found = BTreeSet::new();
    let mut open = vec![pid];
    while let Some(parent) = open.pop() {
        let children = children.remove(&parent).unwrap_or_default();
        found.extend(&children);
        open.extend(children);
    }
    found
}

/// The first descendant whose arguments, separated by spaces, match.
pub(super) fn descendant(pid: u32, matches: impl Fn(&str) -> bool) -> Option<u32> {
    descendants(pid).into_iter().find(|&child| matches(&command_line(child)))
}

/// The arguments of a process, separated by spaces.
pub(super) fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim().to_owned()
}

/// Executable memory that a process has mapped from a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) bytes: usize,
    pub(super) file_offset: u64,
    pub(super) path: String,
}

impl Mapping {
    /// Parses a line of `/proc/PID/maps`.
    fn parse(line: &str) -> Option<Self> {
        let path = &line[line.find('/')?..];
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        if !fields.next()?.contains('x') {
            return None;
        }
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (start, end, file_offset) = (hex(start)?, hex(end)?, hex(fields.next()?)?);
        Some(Self { start, bytes: usize::try_from(end.checked_sub(start)?).ok()?, file_offset, path: path.to_owned() })
    }
}

/// The code of files that a process has mapped.
pub(super) fn mappings(pid: u32) -> Result<Vec<Mapping>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).with_context(|| format!("process {pid} has exited"))?;
    Ok(maps.lines().filter_map(Mapping::parse).collect())
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
    fn procfs_is_parsed() {
        assert_eq!(stat_fields("7 (a) b) S 42 7 7 0 -1")[1], "42");
        assert!(stat_fields("7 (a").is_empty());
        let status = "Name:\theapbpf\nVmRSS:\t    200 kB\nRssAnon:\t      64 kB\n";
        assert_eq!(field_bytes(status, "RssAnon:"), Some(64 << 10));
        assert_eq!(field_bytes(status, "VmHWM:"), None);
        let expected = Mapping { start: 0x1000, bytes: 0x2000, file_offset: 0x2000, path: "/usr/lib/my lib.so".into() };
        assert_eq!(Mapping::parse("1000-3000 r-xp 00002000 08:01 42    /usr/lib/my lib.so"), Some(expected));
        for other in ["1000-3000 r--p 00002000 08:01 42 /usr/lib/l.so", "1000-3000 r-xp 00000000 00:00 0 [vdso]", ""] {
            assert_eq!(Mapping::parse(other), None, "{other}");
        }
    }
}
