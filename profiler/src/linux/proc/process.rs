//! Who a process is: its arguments, its name, when it started, which program it runs. Read once per question; nothing is
//! cached, because every answer may change.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::ProcError;
use super::maps::DELETED;
#[cfg(test)]
use super::stat::Stat;
#[cfg(test)]
use crate::ids::StartTime;
use crate::ids::{Pid, Tid};

/// Inode of the initial PID namespace's entry in `/proc/PID/ns` (`PROC_PID_INIT_INO` in
/// <https://github.com/torvalds/linux/blob/v6.12/include/linux/proc_ns.h#L42>).
const INITIAL_PID_NAMESPACE_INODE: u64 = 0xEFFF_FFFC;

/// Most bytes of a command line that are read. A target may write what it likes there, up to megabytes.
const ARGUMENTS_BYTES_MAX: u64 = 1 << 20;

/// Whether the process exists (a zombie does).
pub(crate) fn exists(pid: Pid) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// The arguments that the process was started with, `argv[0]` first, or what it made of them since. Empty for kernel
/// threads, zombies and a process that is just executing a program. Bytes that are not UTF-8 become `U+FFFD`.
///
/// # Errors
///
/// If there is no such process, or it may not be read.
pub(crate) fn arguments(pid: Pid) -> Result<Vec<String>, ProcError> {
    let bytes = read(pid, "cmdline", ARGUMENTS_BYTES_MAX)?;
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    Ok(bytes.split(|&byte| byte == 0).map(|argument| String::from_utf8_lossy(argument).into_owned()).collect())
}

/// The kernel's name for the process, at most 15 bytes. Bytes that are not UTF-8 become `U+FFFD`.
///
/// # Errors
///
/// If there is no such process, or it may not be read.
pub(crate) fn comm(pid: Pid) -> Result<String, ProcError> {
    let bytes = read(pid, "comm", 64)?;
    Ok(String::from_utf8_lossy(bytes.strip_suffix(b"\n").unwrap_or(&bytes)).into_owned())
}

/// When the process started.
///
/// # Errors
///
/// If there is no such process, or it may not be read.
#[cfg(test)]
pub(crate) fn start_time(pid: Pid) -> Result<StartTime, ProcError> {
    Stat::read(pid).map(|stat| stat.start_ticks)
}

/// The processes there are, by rising number; kernel threads and zombies are among them. Some may have ended already.
///
/// # Errors
///
/// If `/proc` cannot be listed.
pub(crate) fn all() -> Result<Vec<Pid>, ProcError> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc").map_err(ProcError::List)? {
        let name = entry.map_err(ProcError::List)?.file_name();
        pids.extend(name.to_str().and_then(number));
    }
    pids.sort_unstable();
    Ok(pids)
}

/// The process whose directory has this name; `None` for `/proc`'s other entries.
pub(crate) fn number(name: &str) -> Option<Pid> {
    // `parse` would take a sign.
    let digits = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| name.parse().ok().map(Pid)).flatten()
}

/// The program that the process runs, as the process names its path, without the ` (deleted)` that the kernel puts behind
/// it when the file is gone. A file whose name really ends like this looks the same.
///
/// # Errors
///
/// If there is no such process, it may not be read, or it is a kernel thread.
pub(crate) fn executable(pid: Pid) -> Result<PathBuf, ProcError> {
    let path = fs::read_link(entry_path(pid, "exe")).map_err(|source| ProcError::from_io(pid, "exe", source))?;
    let bytes = path.as_os_str().as_bytes();
    Ok(PathBuf::from(OsStr::from_bytes(bytes.strip_suffix(DELETED).unwrap_or(bytes))))
}

/// Whether this process is in the initial PID namespace, so that the PIDs it sees are those that the kernel side
/// reports.
///
/// # Errors
///
/// If `/proc` is not mounted.
pub(crate) fn in_initial_pid_namespace() -> Result<bool, ProcError> {
    let metadata = fs::metadata("/proc/self/ns/pid").map_err(|source| ProcError::Io {
        pid: Pid(std::process::id()),
        entry: "ns/pid",
        source,
    })?;
    Ok(metadata.ino() == INITIAL_PID_NAMESPACE_INODE)
}

/// Path of an entry of the process's directory.
pub(crate) fn entry_path(pid: Pid, entry: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{entry}"))
}

/// The kernel's name for a thread of the process (`/proc/PID/task/TID/comm`), at most 15 bytes. Bytes that are not UTF-8 become
/// `U+FFFD`.
///
/// # Errors
///
/// If the process has no such thread, or it may not be read.
pub(crate) fn thread_name(pid: Pid, tid: Tid) -> Result<String, ProcError> {
    const NAME_BYTES_MAX: u64 = 64;
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/task/{}/comm", tid.0))
        .and_then(|file| file.take(NAME_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|source| ProcError::from_io(pid, "task", source))?;
    let name = String::from_utf8_lossy(&bytes);
    Ok(name.strip_suffix('\n').unwrap_or(&name).to_owned())
}

/// The first `bytes_max` bytes of an entry.
pub(super) fn read(pid: Pid, entry: &'static str, bytes_max: u64) -> Result<Vec<u8>, ProcError> {
    // Room for all of an ordinary entry: the kernel puts a command line together anew for each call.
    let mut bytes = Vec::with_capacity(4096);
    File::open(entry_path(pid, entry))
        .and_then(|file| file.take(bytes_max).read_to_end(&mut bytes))
        .map_err(|source| ProcError::from_io(pid, entry, source))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::object::fixture::Running;

    /// A PID that no kernel gives out: `PID_MAX_LIMIT` is 2^22.
    const NOBODY: Pid = Pid(1 << 22);

    #[test]
    fn a_child_is_described_as_it_was_started() {
        // It sleeps by then: between exec and its first instruction a process has no arguments yet.
        let mut child = Running::sleep(Path::new("/bin/sleep"));
        let pid = child.pid();
        let described = (arguments(pid), comm(pid), executable(pid), start_time(pid), start_time(pid));
        child.end();
        assert_eq!(described.0.expect("readable"), ["/bin/sleep", "1000"]);
        assert_eq!(described.1.expect("readable"), "sleep");
        assert!(described.2.expect("readable").ends_with("sleep"));
        assert_eq!(described.3.expect("readable"), described.4.expect("readable"));
        assert!(matches!(arguments(pid), Err(ProcError::NoSuchProcess { .. })));
    }

    #[test]
    fn a_later_process_starts_later() {
        let first_process = start_time(Pid(1)).expect("init is readable");
        assert!(first_process < start_time(Pid(std::process::id())).expect("readable"));
    }

    #[test]
    fn this_process_and_its_child_are_among_all() {
        let child = Running::sleep(Path::new("/bin/sleep"));
        let all = all().expect("/proc is mounted");
        assert!(all.is_sorted_by(|first, second| first < second), "{all:?}");
        for pid in [Pid(1), Pid(std::process::id()), child.pid()] {
            assert!(all.contains(&pid), "{pid} is not in {all:?}");
        }
    }

    #[test]
    fn processes_are_told_from_other_entries() {
        for (name, pid) in [("1", Some(1)), ("4194303", Some(4_194_303)), ("self", None), ("", None), ("+5", None)] {
            assert_eq!(number(name), pid.map(Pid), "{name}");
        }
        assert_eq!(number("4294967296"), None);
    }

    proptest! {
        #[test]
        fn any_entry_is_survived(name in any::<String>()) {
            let _ = number(&name);
        }

        #[test]
        fn any_number_is_a_process(pid in any::<u32>()) {
            prop_assert_eq!(number(&pid.to_string()), Some(Pid(pid)));
        }
    }

    #[test]
    fn who_is_missing_is_named() {
        let error = comm(NOBODY).expect_err("nobody has this PID");
        assert!(error.to_string().starts_with("no process `4194304`"), "{error}");
        assert!(!exists(NOBODY));
        assert!(exists(Pid(std::process::id())));
    }

    #[test]
    fn the_namespace_is_compared_with_the_initial_one() {
        let link = fs::read_link("/proc/self/ns/pid").expect("readable");
        let initial = link.to_str() == Some("pid:[4026531836]");
        assert_eq!(in_initial_pid_namespace().expect("readable"), initial);
    }
}
