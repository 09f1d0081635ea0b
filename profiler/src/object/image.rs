//! An opened module: reads only ranges that are in the file and within the caller's limit. Opens the file behind a
//! mapping, never another file that has the same name now.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, Mode, OFlags, ResolveFlags, SealFlags};

use super::ObjectError;
use crate::address::FileOffset;
use crate::ids::Pid;
use crate::linux::proc::maps::{Device, Mapping};
use crate::linux::proc::process::entry_path;
use crate::linux::rights::Rights;
use crate::reader::{self, Opened, Original, ReadError, Wanted};

/// Rewriting a file in place changes its time, replacing it changes its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub device: Device,
    pub inode: u64,
    pub size_bytes: u64,
    /// Seconds and nanoseconds since the Unix epoch.
    pub modified: (i64, i64),
}

#[derive(Debug)]
pub struct Image {
    file: File,
    /// Of the original, if this is a copy.
    identity: Identity,
    is_copy: bool,
}

impl Image {
    pub fn new(file: File) -> Result<Self, ObjectError> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(ObjectError::NotRegular);
        }
        Ok(Self { identity: identity_of(&metadata), file, is_copy: false })
    }

    /// Opens a file that a target has named.
    pub(crate) fn open_for(rights: &Rights, root: &File, wanted: Wanted<'_>) -> Result<Self, ObjectError> {
        let Opened { file, original } = reader::open(rights, root, wanted)?;
        let Some(Original { device, inode, size_bytes, modified }) = original else { return Self::new(file) };
        let identity = Identity { device: Device::from_raw(device), inode, size_bytes, modified };
        Ok(Self { file, identity, is_copy: true })
    }

    /// Stores the bytes in a memfd, so that all modules are files.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ObjectError> {
        let descriptor = rustix::fs::memfd_create("heapbpf-module", MemfdFlags::CLOEXEC).map_err(io::Error::from)?;
        let mut file = File::from(descriptor);
        file.write_all(bytes)?;
        Self::new(file)
    }

    /// Copies a file of at most `bytes_max` bytes to a sealed memfd, which any process can open and none can change.
    pub fn sealed_copy(&self, bytes_max: u64) -> Result<File, ObjectError> {
        if self.identity.size_bytes > bytes_max {
            return Err(ObjectError::Malformed("the file exceeds the size limit"));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut copy = File::from(rustix::fs::memfd_create("heapbpf-module", flags).map_err(io::Error::from)?);
        // Only copies use the position.
        let mut file = &self.file;
        file.rewind()?;
        if io::copy(&mut file.take(self.identity.size_bytes), &mut copy)? < self.identity.size_bytes {
            return Err(ObjectError::Malformed("the file was truncated"));
        }
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&copy, seals).map_err(io::Error::from)?;
        Ok(copy)
    }

    pub fn identity(&self) -> Identity {
        self.identity
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Valid in this process and its threads as long as this value lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Neither truncated nor rewritten since it was opened.
    pub fn unchanged(&self) -> bool {
        self.is_copy || self.file.metadata().is_ok_and(|metadata| identity_of(&metadata) == self.identity)
    }

    /// Fails if `size_bytes` exceeds `size_bytes_max` or the file.
    pub fn read(&self, offset: FileOffset, size_bytes: u64, size_bytes_max: u64) -> Result<Vec<u8>, ObjectError> {
        let end = offset.0.checked_add(size_bytes).ok_or(ObjectError::Malformed("a range wraps around"))?;
        if end > self.identity.size_bytes {
            return Err(ObjectError::Malformed("a range ends behind the file"));
        }
        if size_bytes > size_bytes_max {
            return Err(ObjectError::Malformed("a table exceeds the size limit"));
        }
        let length = usize::try_from(size_bytes).map_err(|_| ObjectError::Malformed("a range exceeds memory"))?;
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset.0)?;
        Ok(bytes)
    }
}

pub(crate) fn identity_of(metadata: &std::fs::Metadata) -> Identity {
    Identity {
        device: Device::from_raw(metadata.dev()),
        inode: metadata.ino(),
        size_bytes: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
    }
}

/// x86-64 kernels map two to four pages.
const VDSO_BYTES_MAX: u64 = 1 << 18;

/// `/proc/PID/map_files` leads to the mapped file even if renamed or deleted, but needs CAP_CHECKPOINT_RESTORE or
/// CAP_SYS_ADMIN. Otherwise the path is resolved in the process's root, and used only for the mapped file.
pub(crate) fn open_mapped(pid: Pid, mapping: &Mapping, path: &Path) -> Result<Image, ObjectError> {
    let entry = format!("map_files/{:x}-{:x}", mapping.start, mapping.end);
    match open_regular(&entry_path(pid, &entry)) {
        Ok(image) => Ok(image),
        Err(ObjectError::NotRegular) => Err(ObjectError::NotRegular),
        Err(_) => from_root(pid, mapping, path),
    }
}

pub(crate) fn open_regular(path: &Path) -> Result<Image, ObjectError> {
    // Opening a device can have effects. If the file is replaced in between, at least opening it does not block.
    if !std::fs::metadata(path)?.is_file() {
        return Err(ObjectError::NotRegular);
    }
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, OFlags::RDONLY | flags, Mode::empty()).map_err(io::Error::from)?;
    Image::new(file.into())
}

fn from_root(pid: Pid, mapping: &Mapping, path: &Path) -> Result<Image, ObjectError> {
    let found = locate(&File::open(entry_path(pid, "root"))?, path)?;
    let metadata = found.metadata()?;
    if (Device::from_raw(metadata.dev()), metadata.ino()) != (mapping.device, mapping.inode) {
        return Err(ObjectError::Gone);
    }
    open_regular(Path::new(&format!("/proc/self/fd/{}", found.as_raw_fd())))
}

impl From<ReadError> for ObjectError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Silent => Self::Silent,
            ReadError::NotRegular => Self::NotRegular,
            ReadError::TooLarge => Self::Malformed("the file exceeds the size limit"),
            ReadError::Foreign => Self::Malformed("it, or a link to it, belongs to another user"),
            ReadError::Io(error) => error.into(),
        }
    }
}

/// The user of heapbpf controls the directory tree.
pub(super) fn open_beneath(root: &File, path: &Path, bytes_max: u64) -> Result<Image, ObjectError> {
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

/// Does not open the file (`O_PATH`). Links must not lead out of the target's directory tree, nor through /proc.
pub(crate) fn locate(root: &File, path: &Path) -> Result<File, ObjectError> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let found = rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
        .map_err(io::Error::from)?;
    Ok(File::from(found))
}

pub(crate) fn read_vdso(pid: Pid, mapping: &Mapping) -> Result<Vec<u8>, ObjectError> {
    let size_bytes = mapping.end.0.saturating_sub(mapping.start.0);
    if size_bytes > VDSO_BYTES_MAX {
        return Err(ObjectError::Malformed("the vDSO exceeds the size limit"));
    }
    let length = usize::try_from(size_bytes).map_err(|_| ObjectError::Malformed("the vDSO exceeds memory"))?;
    let mut bytes = vec![0; length];
    File::open(entry_path(pid, "mem"))?.read_exact_at(&mut bytes, mapping.start.0)?;
    Ok(bytes)
}
