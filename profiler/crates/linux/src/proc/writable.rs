//! Files of `/proc` by which heapbpf changes processes: itself and targets. Nothing else of `/proc` is written to.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use heapbpf_base::ids::Pid;
use rustix::fs::{CWD, Mode, OFlags, PROC_SUPER_MAGIC, fstatfs, openat};

use super::process::shared_entries;

/// Opens the memory of a process for reading and writing.
pub fn memory(pid: Pid) -> io::Result<File> {
    // A first thread that has exited before others has no memory any more.
    open(&shared_entries(pid).to_string(), "mem")
}

/// Writes to a file of a process.
pub fn write(pid: Pid, entry: &str, text: &str) -> io::Result<()> {
    open(&pid.to_string(), entry)?.write_all(text.as_bytes())
}

/// Writes to a file of this process.
pub(crate) fn write_own(entry: &str, text: &str) -> io::Result<()> {
    open("self", entry)?.write_all(text.as_bytes())
}

/// Opens a file of a process. Fails if another file system is mounted over the file.
fn open(process: &str, entry: &str) -> io::Result<File> {
    let path = Path::new("/proc").join(process).join(entry);
    let file = openat(CWD, path, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    if fstatfs(&file)?.f_type != PROC_SUPER_MAGIC {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not a file of procfs"));
    }
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn memory_is_read_and_written() {
        let word = Box::new(7_u64);
        let address = std::ptr::from_ref(&*word).addr() as u64;
        let memory = memory(Pid(std::process::id())).expect("its own");
        memory.write_all_at(&8_u64.to_ne_bytes(), address).expect("it is mapped");
        let mut bytes = [0; 8];
        memory.read_exact_at(&mut bytes, address).expect("it is mapped");
        assert_eq!(u64::from_ne_bytes(bytes), 8);
    }

    #[test]
    fn only_files_of_procfs_are_opened() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "precious").expect("ours");
        // An absolute path replaces the one before it.
        let error = open("self", path.to_str().expect("a name of letters")).expect_err("another file system");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        write(Pid(std::process::id()), "oom_score_adj", "1").expect("its own");
        assert_eq!(std::fs::read_to_string("/proc/self/oom_score_adj").expect("its own").trim(), "1");
    }
}
