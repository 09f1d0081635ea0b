//! Which file a process runs.

use std::io;
use std::os::unix::fs::MetadataExt;

use super::maps::Device;
use super::process::entry_path;
use crate::ids::Pid;

/// A file by its place in a file system, not by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileIdentity {
    device: Device,
    inode: u64,
}

impl FileIdentity {
    /// The file with this inode on this device, both as `stat` reports them.
    pub(crate) fn new(device: Device, inode: u64) -> Self {
        Self { device, inode }
    }
}

/// The process's executable.
///
/// # Errors
///
/// When the process has ended, has none, or may not be looked at.
pub(crate) fn identity(pid: Pid) -> io::Result<FileIdentity> {
    let metadata = std::fs::metadata(entry_path(pid, "exe"))?;
    Ok(FileIdentity { device: Device::from_raw(metadata.dev()), inode: metadata.ino() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_told_apart_by_their_file() {
        let own = identity(Pid(std::process::id())).expect("this process runs");
        let mut sleep = std::process::Command::new("sleep").arg("9").spawn().expect("sleep starts");
        let other = identity(Pid(sleep.id()));
        let _ = sleep.kill();
        let _ = sleep.wait();
        assert_ne!(own, other.expect("it ran"));
        assert!(identity(Pid(u32::MAX)).is_err());
    }
}
