//! Programs that a measurement starts: each in a process group of its own, which is killed when its guard goes, and by
//! the kernel should we be killed ourselves. Measures nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::command;

/// How long a program that was asked to end may take.
const END_WITHIN: Duration = Duration::from_secs(5);

/// How often something that is waited for is looked at.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// CPU time of a process's threads that run now, to the nanosecond (the first number of `/proc/PID/task/TID/schedstat`). `None` for a
/// process that has exited.
pub(crate) fn cpu_time(pid: u32) -> Option<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let of_thread = |thread: fs::DirEntry| -> Option<u64> {
        fs::read_to_string(thread.path().join("schedstat")).ok()?.split(' ').next()?.parse().ok()
    };
    Some(Duration::from_nanos(threads.filter_map(of_thread).sum()))
}

/// A command for a program that the kernel kills when we end, however we end. Silent, with nothing to read.
pub(crate) fn bound(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    silent(command)
}

/// The same, as another user: for programs that refuse to run as root.
pub(crate) fn bound_as(user: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", user, "--regid", user, "--clear-groups", "--pdeathsig", "KILL", "--"]).arg(program);
    silent(command)
}

fn silent(mut command: Command) -> Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// A running program. Killed with its process group when dropped.
pub(crate) struct Guarded {
    child: Child,
    name: String,
    /// What asks it to end, for programs whose children would outlive it.
    stop: Option<Signal>,
}

impl Guarded {
    /// Starts a command made by [`bound`] or [`bound_as`].
    pub(crate) fn spawn(command: &mut Command) -> Result<Self> {
        use std::os::unix::process::CommandExt as _;
        let name = command::line(command);
        let child = command.process_group(0).spawn().with_context(|| format!("could not start `{name}`"))?;
        Ok(Self { child, name, stop: None })
    }

    /// Ends it with this signal first, and kills it only if that does not help.
    pub(crate) fn stopped_by(mut self, signal: Signal) -> Self {
        self.stop = Some(signal);
        self
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The process, for its pipes.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Waits until `look` finds something, and fails when the program ends first or `within` is over.
    pub(crate) fn until<T>(&mut self, within: Duration, mut look: impl FnMut(u32) -> Option<T>) -> Result<T> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(found) = look(self.child.id()) {
                return Ok(found);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("`{}` ended early: {status}", self.name);
            }
            if Instant::now() > deadline {
                bail!("`{}` was not ready within {within:?}", self.name);
            }
            thread::sleep(LOOK_PERIOD);
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // It may have ended by itself; then there is nothing to signal.
        if let (Some(pid), Some(signal)) = (pid, self.stop) {
            let _ = kill_process(pid, signal);
            let deadline = Instant::now() + END_WITHIN;
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                thread::sleep(LOOK_PERIOD);
            }
        }
        if let Some(pid) = pid {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// All processes below one, by number.
pub(crate) fn descendants(pid: u32) -> BTreeSet<u32> {
    let mut parents: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some(parent) = parent_of(&stat) {
            parents.entry(parent).or_default().push(child);
        }
    }
    let mut found = BTreeSet::new();
    let mut open = vec![pid];
    while let Some(parent) = open.pop() {
        let children = parents.remove(&parent).unwrap_or_default();
        found.extend(&children);
        open.extend(children);
    }
    found
}

/// The parent in a line of `/proc/PID/stat`, whose second field is a name that may contain anything.
fn parent_of(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// The arguments of a process, separated by spaces.
pub(crate) fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).replace('\0', " ").trim().to_owned()
}

/// The short name of a process.
pub(crate) fn comm(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

/// The files whose code a process has mapped, each once.
pub(crate) fn modules(pid: u32) -> BTreeSet<String> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    modules_in(&maps)
}

fn modules_in(maps: &str) -> BTreeSet<String> {
    let module = |line: &str| {
        let path = line.find('/').map(|at| &line[at..])?;
        let executable = line.split_ascii_whitespace().nth(1)?.contains('x');
        executable.then(|| path.to_owned())
    };
    maps.lines().filter_map(module).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_do_not_hide_the_parent() {
        assert_eq!(parent_of("7 (a) b) S 42 7 7 0 -1"), Some(42));
        assert_eq!(parent_of("7 (a"), None);
    }

    #[test]
    fn modules_are_files_with_code() {
        let maps = "1000-2000 r-xp 00000000 08:01 42    /usr/lib/my lib.so\n\
                    2000-3000 r--p 00001000 08:01 42    /usr/lib/my lib.so\n\
                    3000-4000 r--p 00000000 08:01 43    /usr/lib/data\n\
                    5000-6000 r-xp 00000000 00:00 0     [vdso]\n";
        assert_eq!(modules_in(maps).into_iter().collect::<Vec<_>>(), ["/usr/lib/my lib.so"]);
    }

    #[test]
    fn a_guard_takes_the_whole_group_with_it() {
        let mut guarded = Guarded::spawn(bound("sh").args(["-c", "sleep 60; true"])).expect("sh is everywhere");
        let child = guarded
            .until(Duration::from_secs(5), |pid| descendants(pid).into_iter().find(|&child| comm(child) == "sleep"))
            .expect("it sleeps");
        drop(guarded);
        let deadline = Instant::now() + Duration::from_secs(5);
        while comm(child) == "sleep" {
            assert!(Instant::now() < deadline, "{child} outlives its guard");
            thread::sleep(LOOK_PERIOD);
        }
    }
}
