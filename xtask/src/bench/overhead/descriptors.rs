//! What the kernel tells of the BPF programs and maps that a process holds open, and of its memory.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result};

/// A descriptor's facts by name (`/proc/PID/fdinfo/N`).
pub(super) type Facts = BTreeMap<String, u64>;

/// `BPF_PROG_TYPE_KPROBE`, which uprobe programs are.
const UPROBE_PROGRAM: u64 = 2;

/// All descriptors of a process with this fact, each object once. Links name their program's id, too.
fn objects(pid: u32, id: &str, fact: &str) -> Result<Vec<Facts>> {
    let folder = format!("/proc/{pid}/fdinfo");
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("process {pid} has ended"))? {
        // One may have been closed since.
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        let facts = parse(&text);
        if let Some(&number) = facts.get(id).filter(|_| facts.contains_key(fact)) {
            found.insert(number, facts);
        }
    }
    Ok(found.into_values().collect())
}

/// Lines of `name:\tnumber`; others are left out.
fn parse(text: &str) -> Facts {
    let fact = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    text.lines().filter_map(fact).collect()
}

/// How long and how often programs ran, counted while `kernel.bpf_stats_enabled` is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Runs {
    pub(super) ns: u64,
    pub(super) count: u64,
}

/// Runs of all uprobe programs of a process.
pub(super) fn runs(pid: u32) -> Result<Runs> {
    let mut runs = Runs::default();
    for facts in objects(pid, "prog_id", "run_cnt")? {
        let fact = |name: &str| facts.get(name).copied().unwrap_or(0);
        if fact("prog_type") == UPROBE_PROGRAM {
            runs.ns += fact("run_time_ns");
            runs.count += fact("run_cnt");
        }
    }
    Ok(runs)
}

/// Kernel memory of a process's map with these sizes of key and value, in bytes.
pub(super) fn map_bytes(pid: u32, key_bytes: u64, value_bytes: u64) -> Result<u64> {
    let maps = objects(pid, "map_id", "memlock")?;
    let is_it =
        |facts: &&Facts| facts.get("key_size") == Some(&key_bytes) && facts.get("value_size") == Some(&value_bytes);
    let map = maps.iter().find(is_it).with_context(|| format!("no map of {key_bytes} and {value_bytes} bytes"))?;
    map.get("memlock").copied().context("the kernel does not tell a map's memory")
}

/// Memory of a process that is its own, in bytes: neither files nor the ring that it shares with the kernel.
pub(super) fn anonymous_bytes(pid: u32) -> Result<u64> {
    let status =
        fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("process {pid} has ended"))?;
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB")?.parse().ok());
    let kib: u64 = kib.context("the kernel does not tell RssAnon")?;
    Ok(kib * 1024)
}

/// Memory of the kernel's object caches, in bytes.
pub(super) fn slab_bytes() -> Result<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo")?;
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("Slab:")?.trim().strip_suffix(" kB")?.parse().ok());
    let kib: u64 = kib.context("the kernel does not tell Slab")?;
    Ok(kib * 1024)
}

/// CPU time of a process so far, in seconds.
pub(super) fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid} has ended"))?;
    let ticks = ticks(&stat).context("no times in its stat")?;
    Ok(f64::from(u32::try_from(ticks)?) / TICKS_PER_SECOND)
}

/// `USER_HZ`, the same on all x86-64.
const TICKS_PER_SECOND: f64 = 100.0;

/// User and system time in a line of `/proc/PID/stat`, whose second field is a name that may contain anything.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Has the kernel count the runs of BPF programs while it lives.
pub(super) struct RunStatistics {
    before: String,
}

const STATISTICS: &str = "/proc/sys/kernel/bpf_stats_enabled";

impl RunStatistics {
    /// From now on.
    pub(super) fn enable() -> Result<Self> {
        let before = fs::read_to_string(STATISTICS)?;
        fs::write(STATISTICS, "1")?;
        Ok(Self { before })
    }
}

impl Drop for RunStatistics {
    fn drop(&mut self) {
        let _ = fs::write(STATISTICS, self.before.trim());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_numbers_with_names() {
        let facts = parse("pos:\t0\nflags:\t02000002\nprog_tag:\t5a1b\nrun_cnt:\t12\nprog_id:\t7\n");
        assert_eq!((facts["run_cnt"], facts["prog_id"]), (12, 7));
        assert!(!facts.contains_key("prog_tag"));
    }

    #[test]
    fn times_stand_behind_the_name() {
        assert_eq!(ticks("7 (a) 9 b) S 1 2 3 4 5 6 7 8 9 10 40 2 0 0"), Some(42));
        assert_eq!(ticks("7 (a"), None);
    }
}
