//! heapbpf while it records a program until that ends: its memory, its CPU time, its report.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::bench::process::{Guarded, comm, descendants};

/// heapbpf's exit codes for a profile: whole, or lacking something that it names.
const DONE: [i32; 2] = [0, 3];

/// How long it may take to find the place of a process that it was started in.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);

/// `USER_HZ`, the same on all x86-64.
const TICKS_PER_SECOND: f64 = 100.0;

/// The running heapbpf.
pub(super) struct Agent {
    guarded: Guarded,
    /// The process itself or, through sudo, one below it.
    pid: u32,
}

/// Memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    /// With pages of files, which the kernel may take back, and with the ring that it shares with the kernel.
    pub(super) resident_bytes: u64,
    /// Its own alone.
    pub(super) anonymous_bytes: u64,
}

impl Memory {
    /// Reads `/proc/PID/status`.
    fn parse(status: &str) -> Option<Self> {
        let bytes = |name: &str| {
            let kib = status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"))?;
            kib.parse::<u64>().ok()?.checked_mul(1024)
        };
        Some(Self { resident_bytes: bytes("VmRSS:")?, anonymous_bytes: bytes("RssAnon:")? })
    }
}

/// What is read of its report.
#[derive(Debug, Deserialize)]
pub(super) struct Report {
    pub(super) started_unix_ns: u64,
    pub(super) ended_unix_ns: u64,
    pub(super) targets: Vec<Target>,
    pub(super) health: Health,
}

/// A process.
#[derive(Debug, Deserialize)]
pub(super) struct Target {
    pub(super) totals: Totals,
}

/// What lived in the end.
#[derive(Debug, Deserialize)]
pub(super) struct Totals {
    pub(super) live_bytes: f64,
    pub(super) live_samples: u64,
}

/// How the recording went.
#[derive(Debug, Deserialize)]
pub(super) struct Health {
    pub(super) events: u64,
    pub(super) lost: BTreeMap<String, u64>,
}

impl Agent {
    /// Starts a command that ends up as heapbpf, and waits until it records.
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut guarded = Guarded::spawn(command)?;
        let mut errors = BufReader::new(guarded.child().stderr.take().context("it was asked for above")?);
        let mut said = String::new();
        loop {
            let mut line = String::new();
            if errors.read_line(&mut line)? == 0 {
                bail!("heapbpf failed: {}", said.trim());
            }
            if line.starts_with("heapbpf: recording") {
                break;
            }
            said.push_str(&line);
        }
        // What else it says must not fill the pipe.
        std::thread::spawn(move || errors.take(1 << 30).read_to_end(&mut Vec::new()));
        let pid = guarded.until(BEGIN_WITHIN, |pid| {
            std::iter::once(pid).chain(descendants(pid)).find(|&pid| comm(pid) == "heapbpf")
        })?;
        Ok(Self { guarded, pid })
    }

    /// What it has in memory now.
    pub(super) fn memory(&self) -> Result<Memory> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).context("heapbpf has ended")?;
        Memory::parse(&status).context("the kernel does not tell VmRSS and RssAnon")
    }

    /// CPU time that it has taken so far, all threads together, in seconds.
    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).context("heapbpf has ended")?;
        cpu_seconds(&stat).with_context(|| format!("no times in `{stat}`"))
    }

    /// Waits for its end, which that of its target is, and reads the report.
    pub(super) fn finish(mut self, report: &Path) -> Result<Report> {
        let status = self.guarded.child().wait()?;
        if !status.code().is_some_and(|code| DONE.contains(&code)) {
            bail!("heapbpf failed: {status}");
        }
        let file = File::open(report).with_context(|| format!("could not open `{}`", report.display()))?;
        serde_json::from_reader(BufReader::new(file)).with_context(|| format!("`{}` is no report", report.display()))
    }
}

/// User and system time in a line of `/proc/PID/stat`, whose second field is a name that may contain anything.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u32>().ok()?.checked_add(fields.next()?.parse().ok()?)?;
    Some(f64::from(ticks) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_in_kibibytes() {
        let status = "Name:\theapbpf\nVmRSS:\t    200 kB\nRssAnon:\t      64 kB\nRssFile:\t     136 kB\n";
        let expected = Memory { resident_bytes: 200 << 10, anonymous_bytes: 64 << 10 };
        assert_eq!(Memory::parse(status), Some(expected));
        assert_eq!(Memory::parse("VmRSS:\t200 kB\n"), None);
    }

    #[test]
    fn times_stand_behind_the_name() {
        assert_eq!(cpu_seconds("7 (a) 9 b) S 1 2 3 4 5 6 7 8 9 10 140 10 0 0"), Some(1.5));
        assert_eq!(cpu_seconds("7 (a"), None);
    }
}
