//! Kernel facts: privileges, version, and whether a process's code equals its files.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

/// Fails the test unless it runs as root.
#[track_caller]
pub fn require_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test attaches probes and needs root: run `cargo xtask test` with sudo"
    );
}

/// Returns the major and minor version of the running kernel.
pub fn version() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("procfs is mounted");
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse().ok());
    numbers.next().zip(numbers.next()).unwrap_or_else(|| panic!("no version in `{release}`"))
}

/// Returns a process's state: `R`unning, `S`leeping, s`T`opped, … (`/proc/PID/stat`).
#[track_caller]
pub fn state(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_else(|error| panic!("stat of {pid}: {error}"));
    // The name before it may contain any character.
    let behind_name = stat.rsplit_once(") ").map(|(_, behind)| behind);
    behind_name.and_then(|behind| behind.chars().next()).unwrap_or_else(|| panic!("no state in `{stat}`"))
}

/// Whether a signal was sent to a process, and not delivered to it.
#[track_caller]
pub fn is_pending(pid: u32, signal: rustix::process::Signal) -> bool {
    is_in_set(pid, "ShdPnd:", signal)
}

/// Whether a process ignores a signal.
#[track_caller]
pub fn ignores(pid: u32, signal: rustix::process::Signal) -> bool {
    is_in_set(pid, "SigIgn:", signal)
}

#[track_caller]
fn is_in_set(pid: u32, set: &str, signal: rustix::process::Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_else(|error| panic!("{pid}: {error}"));
    let signals = status.lines().find_map(|line| line.strip_prefix(set)).expect("the kernel writes it");
    let signals = u64::from_str_radix(signals.trim(), 16).expect("a number");
    signals & 1 << (signal.as_raw() - 1) != 0
}

/// Returns the ids of a process's threads.
#[track_caller]
pub fn tasks(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap_or_else(|error| panic!("tasks of {pid}: {error}"));
    tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the thread that traces a process.
#[track_caller]
pub fn tracer(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_else(|error| panic!("{pid}: {error}"));
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).expect("the kernel writes it");
    Some(tracer.trim().parse().expect("a number")).filter(|&tracer| tracer != 0)
}

/// Returns the children of all threads of a process, including zombies.
#[track_caller]
pub fn children(pid: u32) -> Vec<u32> {
    // A thread may exit during this.
    let path = |task: u32| format!("/proc/{pid}/task/{task}/children");
    let children = tasks(pid).into_iter().filter_map(|task| fs::read_to_string(path(task)).ok());
    let numbers = |text: String| -> Vec<u32> {
        text.split_ascii_whitespace().map(|number| number.parse().expect("the kernel writes numbers")).collect()
    };
    children.flat_map(numbers).collect()
}

/// Like [`children`], without heapbpf's own: its keeper is a child too, and so is a command before its exec.
#[track_caller]
pub fn commands(pid: u32) -> Vec<u32> {
    let mut children = children(pid);
    // A companion has another name until it sets its own. An exited process is no command either.
    let own = fs::canonicalize(crate::heapbpf::binary()).expect("heapbpf is built");
    children.retain(|child| fs::read_link(format!("/proc/{child}/exe")).is_ok_and(|file| file != own));
    children
}

/// Returns the keeper of a heapbpf, once it runs.
#[track_caller]
pub fn keeper(heapbpf: u32) -> Option<u32> {
    children(heapbpf).into_iter().find(|child| comm(*child) == "heapbpf-keeper")
}

/// Returns the process of a thread; `None` if it has exited.
pub fn process_of(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// Returns a thread of a process whose entries have its memory: another than the first one if that has exited.
fn thread_with_memory(pid: u32) -> u32 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let threads = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_memory = |tid: &u32| fs::read_to_string(format!("/proc/{tid}/maps")).is_ok_and(|maps| !maps.is_empty());
    threads.into_iter().find(has_memory).unwrap_or(pid)
}

/// Returns bytes in the executable file mappings of a process that differ from their files, normally breakpoints, as
/// `module+0xoffset`.
#[track_caller]
pub fn changed_code(pid: u32) -> Vec<String> {
    changed_code_in(pid, |_| true).unwrap_or_else(|error| panic!("code of {pid}: {error}"))
}

/// Like [`changed_code`], for selected modules. A mapping that disappears during this is skipped. Fails if no module is
/// selected.
pub fn changed_code_in(pid: u32, is_wanted: impl Fn(&str) -> bool) -> io::Result<Vec<String>> {
    let pid = thread_with_memory(pid);
    let maps = || fs::read_to_string(format!("/proc/{pid}/maps"));
    let (before, memory) = (maps()?, File::open(format!("/proc/{pid}/mem"))?);
    let mut changed = Vec::new();
    let mut compared = 0;
    for line in before.lines() {
        let Some(mapping) = CodeMapping::parse(line).filter(|mapping| is_wanted(&mapping.path)) else { continue };
        // Has no file. Stubs stay mapped, because the process may have copied their addresses.
        if mapping.path.starts_with("/memfd:heapbpf-stubs") {
            continue;
        }
        let compared_now = mapping.compare(&memory);
        let is_gone = || Ok::<_, io::Error>(!maps()?.lines().any(|now| now == line));
        match compared_now {
            Ok((bytes, places)) => {
                compared += bytes;
                if !places.is_empty() && !is_gone()? {
                    changed.extend(places);
                }
            }
            Err(error) if !is_gone()? => return Err(error),
            Err(_) => {}
        }
    }
    if compared == 0 { Err(io::Error::other("there is no code to compare")) } else { Ok(changed) }
}

/// Writes a breakpoint into the code of a process, as a uprobe that the kernel could not unregister leaves one. `place`
/// is one of [`changed_code`]'s. The process must not be about to execute it.
#[track_caller]
pub fn plant_breakpoint(pid: u32, place: &str) {
    let (path, offset) = place.rsplit_once("+0x").expect("a place");
    let offset = u64::from_str_radix(offset, 16).expect("a number");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    let mapping = maps.lines().filter_map(CodeMapping::parse).find(|mapping| {
        mapping.path == path && (mapping.offset..mapping.offset + mapping.length as u64).contains(&offset)
    });
    let mapping = mapping.unwrap_or_else(|| panic!("{place} is not mapped"));
    let memory = File::options().write(true).open(format!("/proc/{pid}/mem")).expect("root may write memory");
    memory.write_all_at(&[0xcc], mapping.start + offset - mapping.offset).expect("mapped");
    assert!(changed_code(pid).iter().any(|changed| changed == place), "{place} had a breakpoint");
}

/// Returns the `comm` of a process; empty if it has exited.
pub fn comm(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Fails unless a process's code equals its files, now or within two minutes: the kernel removes probes shortly after
/// their owner was killed.
#[track_caller]
pub fn assert_no_probes(pid: u32) {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let changed = changed_code(pid);
        if changed.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left in the code of {pid}: {changed:?}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Resources of a process.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    /// Open files.
    pub descriptors: usize,
    /// Memory.
    pub resident_bytes: u64,
}

impl Resources {
    /// Reads the resources of a process.
    #[track_caller]
    pub fn of(pid: u32) -> Self {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap_or_else(|error| panic!("{pid}: {error}"));
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it still runs");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_ascii_whitespace().next());
        let kibibytes: u64 = resident.and_then(|number| number.parse().ok()).expect("it has memory");
        Self { descriptors: descriptors.count(), resident_bytes: kibibytes << 10 }
    }

    /// Returns the maximum of each.
    pub fn max(self, other: Self) -> Self {
        Self {
            descriptors: self.descriptors.max(other.descriptors),
            resident_bytes: self.resident_bytes.max(other.resident_bytes),
        }
    }
}

/// An executable mapping of a file.
struct CodeMapping {
    start: u64,
    length: usize,
    offset: u64,
    path: String,
}

impl CodeMapping {
    /// Returns the number of compared bytes, and the addresses of those that differ from the file.
    fn compare(&self, memory: &File) -> io::Result<(usize, Vec<String>)> {
        let (mut now, mut original) = (vec![0; self.length], vec![0; self.length]);
        let file = File::open(&self.path)?;
        memory.read_exact_at(&mut now, self.start)?;
        // A mapping's last page may extend beyond the file; its rest is zeros.
        let length = file.metadata()?.len().saturating_sub(self.offset);
        let in_file = usize::try_from(length).unwrap_or(usize::MAX).min(self.length);
        file.read_exact_at(&mut original[..in_file], self.offset)?;
        if now == original {
            return Ok((in_file, Vec::new()));
        }
        let differing = now.iter().zip(&original).enumerate().filter(|(_, (now, original))| now != original);
        let place = |(at, _)| format!("{}+{:#x}", self.path, self.offset + at as u64);
        Ok((in_file, differing.map(place).collect()))
    }

    /// Parses a line of `/proc/PID/maps`; `None` for anything but code of a file.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (range, permissions, offset) = (fields.next()?, fields.next()?, fields.next()?);
        let path = fields.nth(2).filter(|path| path.starts_with('/'))?;
        if !permissions.contains('x') {
            return None;
        }
        let (start, end) = range.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        Some(Self {
            start,
            length: usize::try_from(end - start).ok()?,
            offset: u64::from_str_radix(offset, 16).ok()?,
            path: path.to_owned(),
        })
    }
}

/// Waits until a condition holds.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    const WITHIN: Duration = Duration::from_secs(120);
    let deadline = Instant::now() + WITHIN;
    while !is_so() {
        assert!(Instant::now() < deadline, "not so after {WITHIN:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_mappings_are_parsed() {
        let code = CodeMapping::parse("7f00-9f00 r-xp 00026000 08:01 42    /usr/lib/libc.so.6").expect("this is code");
        assert_eq!((code.start, code.length, code.offset), (0x7f00, 0x2000, 0x26000));
        assert_eq!(code.path, "/usr/lib/libc.so.6");
        for other in ["7f00-9f00 r--p 00026000 08:01 42 /usr/lib/libc.so.6", "7f00-9f00 r-xp 0 00:00 0 [vdso]", ""] {
            assert!(CodeMapping::parse(other).is_none(), "{other}");
        }
    }

    #[test]
    fn a_process_without_probes_has_unchanged_code() {
        require_root();
        assert_eq!(changed_code(std::process::id()), Vec::<String>::new());
    }
}
