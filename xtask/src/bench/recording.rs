//! Runs of the built heapbpf, and what their reports say. Knows the command line and the JSON report, nothing else of
//! heapbpf.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::process::{comm, cpu_time, descendants};
use crate::command;
use crate::privilege::Privilege;
use crate::repository::{self, Repository};

/// heapbpf's exit codes for a profile: whole, or lacking something that it names.
const DONE: [i32; 2] = [0, 3];

/// The binary, and how to run it as root.
pub(crate) struct Heapbpf {
    binary: PathBuf,
    privilege: Privilege,
}

impl Heapbpf {
    /// The binary that `HEAPBPF_BIN` names, or else one built now, in release mode.
    pub(crate) fn find(repository: &Repository) -> Result<Self> {
        let privilege = Privilege::find();
        if privilege == Privilege::Missing {
            bail!("watching another process takes root, and sudo is not to be had here: run as root");
        }
        if let Some(given) = std::env::var_os("HEAPBPF_BIN") {
            return Ok(Self { binary: given.into(), privilege });
        }
        let mut cargo = Command::new(repository::cargo());
        command::run(cargo.current_dir(&repository.root).args(["build", "--release", "--package", "heapbpf"]))?;
        Ok(Self { binary: repository.target.join("release/heapbpf"), privilege })
    }

    /// The binary.
    pub(crate) fn binary(&self) -> &Path {
        &self.binary
    }

    /// A command that profiles these processes, with its cache of unwind tables below `cache`.
    pub(crate) fn command(&self, pids: &[u32], cache: &Path) -> Result<Command> {
        let mut command = self.privilege.command("env").context("neither root nor sudo")?;
        let mut assignment = std::ffi::OsString::from("XDG_CACHE_HOME=");
        assignment.push(cache);
        command.arg(assignment).arg("RUST_LOG=heapbpf=info").arg(&self.binary);
        for pid in pids {
            command.args(["--pid", &pid.to_string()]);
        }
        Ok(command)
    }
}

/// A running heapbpf, which records. Waited for or killed when dropped.
pub(crate) struct Recording {
    child: Child,
    /// From its start until it recorded.
    pub(crate) attached_after: Duration,
    /// Milliseconds of that on a processor; the rest is waiting for the disk, the kernel, or other programs.
    pub(crate) processor_ms: Option<f64>,
    /// Milliseconds of that for unwind tables: to build or read them, and to write them to the kernel.
    pub(crate) tables_ms: [f64; 2],
}

impl Recording {
    /// Starts a command and waits until its probes are in place.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let started = Instant::now();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        let mut recording = Self { child, attached_after: Duration::ZERO, processor_ms: None, tables_ms: [0.0; 2] };
        let mut errors = BufReader::new(recording.child.stderr.take().context("it was asked for above")?);
        let mut said = String::new();
        loop {
            let mut line = String::new();
            if errors.read_line(&mut line)? == 0 {
                bail!("`{}` failed: {}", command::line(command), said.trim());
            }
            if line.starts_with("heapbpf: recording") {
                break;
            }
            said.push_str(&line);
        }
        recording.attached_after = started.elapsed();
        recording.processor_ms = processor_ms(recording.child.id());
        recording.tables_ms = tables_ms(&said);
        // What else it says must not fill the pipe.
        std::thread::spawn(move || errors.take(1 << 30).read_to_end(&mut Vec::new()));
        Ok(recording)
    }

    /// Waits for its end: after its duration, or when its targets have ended.
    pub(crate) fn finish(mut self) -> Result<()> {
        let status = self.child.wait()?;
        if !status.code().is_some_and(|code| DONE.contains(&code)) {
            bail!("heapbpf failed: {status}");
        }
        Ok(())
    }
}

/// CPU time of heapbpf's threads: those of the process itself or, through sudo, of one below it.
fn processor_ms(started: u32) -> Option<f64> {
    let processes = std::iter::once(started).chain(descendants(started));
    let pid = processes.into_iter().find(|&pid| comm(pid) == "heapbpf")?;
    Some(cpu_time(pid)?.as_secs_f64() * 1e3)
}

/// What heapbpf's log says of its tables, over all targets.
fn tables_ms(said: &str) -> [f64; 2] {
    let mut sums = [0.0; 2];
    for line in said.lines().filter(|line| line.contains("unwind tables of process")) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let times = words.windows(2).filter(|pair| pair[1] == "ms").filter_map(|pair| pair[0].parse::<f64>().ok());
        sums.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
    }
    sums
}

impl Drop for Recording {
    fn drop(&mut self) {
        // Through sudo the signal does not arrive; heapbpf ends with its duration or its target then.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is read of a report.
#[derive(Debug, Deserialize)]
pub(crate) struct Report {
    pub(crate) targets: Vec<Target>,
    pub(crate) health: Health,
}

/// A process.
#[derive(Debug, Deserialize)]
pub(crate) struct Target {
    pub(crate) callsites: Vec<Callsite>,
}

/// A stack.
#[derive(Debug, Deserialize)]
pub(crate) struct Callsite {
    /// The caller of the allocator's function first.
    pub(crate) stack: Vec<Frame>,
    /// `complete`, or why it ends where it does.
    pub(crate) end: Option<String>,
    /// How many blocks it stands for.
    pub(crate) alloc_count: f64,
}

/// A frame.
#[derive(Debug, Deserialize)]
pub(crate) struct Frame {
    pub(crate) function: Option<String>,
    pub(crate) module: Option<String>,
    pub(crate) address: String,
    pub(crate) inlined: bool,
}

/// How the recording went.
#[derive(Debug, Deserialize)]
pub(crate) struct Health {
    /// Stacks by how they end.
    pub(crate) unwind: BTreeMap<String, u64>,
}

impl Report {
    /// Reads a report.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("could not open `{}`", path.display()))?;
        serde_json::from_reader(BufReader::new(file)).with_context(|| format!("`{}` is no report", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_tables_are_read_from_the_log() {
        let said = " INFO heapbpf: unwind tables of process 1: 12.5 ms to build or read, 3.0 ms to write\n WARN other\n \
                    INFO heapbpf: unwind tables of process 2: 0.5 ms to build or read, 1.0 ms to write\n";
        assert_eq!(tables_ms(said), [13.0, 4.0]);
    }
}
