//! Opens the file behind a mapping, never another file that has the same name now.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::ObjectError;
use super::image::Image;
use crate::ids::Pid;
use crate::linux::proc::maps::{Device, Mapping};
use crate::linux::proc::process::entry_path;

/// Maximum size of a vDSO, in bytes; x86-64 kernels map two to four pages.
const VDSO_BYTES_MAX: u64 = 1 << 18;

/// Opens the file that the process has mapped here.
///
/// The mapping's entry in `/proc/PID/map_files` leads to that file even if it was renamed or deleted, but needs privileges
/// (CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN). Otherwise the path is resolved in the process's root directory, and the file is used
/// only if it is the mapped one.
pub(crate) fn mapped_file(pid: Pid, mapping: &Mapping, path: &Path) -> Result<Image, ObjectError> {
    let entry = format!("map_files/{:x}-{:x}", mapping.start, mapping.end);
    match open_regular(&entry_path(pid, &entry)) {
        Ok(image) => Ok(image),
        Err(ObjectError::NotRegular) => Err(ObjectError::NotRegular),
        Err(_) => from_root(pid, mapping, path),
    }
}

/// Opens a regular file by a path of this process.
pub(crate) fn open_regular(path: &Path) -> Result<Image, ObjectError> {
    // Opening a device can have effects, so check the type first. If the file is replaced in between, at least opening it
    // does not block.
    if !std::fs::metadata(path)?.is_file() {
        return Err(ObjectError::NotRegular);
    }
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    #[expect(clippy::cast_possible_wrap, reason = "the flags use the low bits only")]
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    Image::new(file)
}

fn from_root(pid: Pid, mapping: &Mapping, path: &Path) -> Result<Image, ObjectError> {
    let found = locate(&File::open(entry_path(pid, "root"))?, path)?;
    let metadata = found.metadata()?;
    if (Device::from_raw(metadata.dev()), metadata.ino()) != (mapping.device, mapping.inode) {
        return Err(ObjectError::Gone);
    }
    open_regular(Path::new(&format!("/proc/self/fd/{}", found.as_raw_fd())))
}

/// Opens a regular file of at most `bytes_max` bytes in a directory tree that a target controls.
pub(super) fn beneath(root: &File, path: &Path, bytes_max: u64) -> Result<Image, ObjectError> {
    let found = locate(root, path)?;
    let metadata = found.metadata()?;
    if !metadata.is_file() {
        return Err(ObjectError::NotRegular);
    }
    if metadata.len() > bytes_max {
        return Err(ObjectError::Malformed("the file exceeds the size limit"));
    }
    open_regular(Path::new(&format!("/proc/self/fd/{}", found.as_raw_fd())))
}

/// Finds a file without opening it (`O_PATH`). The target controls the directory tree: its links must not lead out of it, nor through
/// /proc.
fn locate(root: &File, path: &Path) -> Result<File, ObjectError> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
        .map_err(std::io::Error::from)?;
    Ok(File::from(found))
}

/// Copies the vDSO from the process's memory; there is no file.
pub(crate) fn vdso(pid: Pid, mapping: &Mapping) -> Result<Vec<u8>, ObjectError> {
    let size_bytes = mapping.end.0.saturating_sub(mapping.start.0);
    if size_bytes > VDSO_BYTES_MAX {
        return Err(ObjectError::Malformed("the vDSO exceeds the size limit"));
    }
    let length = usize::try_from(size_bytes).map_err(|_| ObjectError::Malformed("the vDSO exceeds memory"))?;
    let mut bytes = vec![0; length];
    File::open(entry_path(pid, "mem"))?.read_exact_at(&mut bytes, mapping.start.0)?;
    Ok(bytes)
}
