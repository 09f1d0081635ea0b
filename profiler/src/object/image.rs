//! The bytes of an opened module. Owns the file descriptor; reads only ranges that lie in the file and are no longer
//! than the caller expects.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, SealFlags};

use super::ObjectError;
use crate::address::FileOffset;
use crate::linux::proc::maps::Device;

/// Bytes that are copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// What makes a file the same file. A file that is rewritten in place changes its time; one that is replaced, its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The file system's device.
    pub device: Device,
    /// Inode on it.
    pub inode: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Last change of contents: seconds and nanoseconds since the Unix epoch.
    pub modified: (i64, i64),
}

/// An opened file.
#[derive(Debug)]
pub struct Image {
    file: File,
    identity: Identity,
}

impl Image {
    /// Takes over an opened regular file.
    ///
    /// # Errors
    ///
    /// If it is not a regular file.
    pub fn new(file: File) -> Result<Self, ObjectError> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(ObjectError::NotRegular);
        }
        Ok(Self { identity: identity_of(&metadata), file })
    }

    /// Puts bytes that are in no file into one that only this process has, so that all modules are alike.
    ///
    /// # Errors
    ///
    /// If there is no memory or no descriptor left.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ObjectError> {
        let descriptor =
            rustix::fs::memfd_create("heapbpf-module", MemfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let mut file = File::from(descriptor);
        file.write_all(bytes)?;
        Self::new(file)
    }

    /// Copies the file to one that nobody can change, and that any process can open.
    ///
    /// # Errors
    ///
    /// If the file is larger than `bytes_max` or shorter than it was, or there is no memory or no descriptor left.
    pub fn sealed_copy(&self, bytes_max: u64) -> Result<File, ObjectError> {
        if self.identity.size_bytes > bytes_max {
            return Err(ObjectError::Malformed("the file is larger than is believable"));
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut copy = File::from(rustix::fs::memfd_create("heapbpf-module", flags).map_err(std::io::Error::from)?);
        let mut part = vec![0; COPY_BYTES];
        let mut at = 0;
        while at < self.identity.size_bytes {
            let rest = usize::try_from(self.identity.size_bytes - at).unwrap_or(usize::MAX);
            let part = &mut part[..rest.min(COPY_BYTES)];
            self.file.read_exact_at(part, at)?;
            copy.write_all(part)?;
            at += part.len() as u64;
        }
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&copy, seals).map_err(std::io::Error::from)?;
        Ok(copy)
    }

    /// Which file it is.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// A path that leads to exactly this file as long as this value lives, in this process and its threads.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Whether the file is still what it was when it was opened: not truncated or rewritten in place.
    pub fn unchanged(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| identity_of(&metadata) == self.identity)
    }

    /// Reads `size_bytes` from `offset`.
    ///
    /// # Errors
    ///
    /// If that is more than `size_bytes_max`, or not all of it is in the file.
    pub fn read(&self, offset: FileOffset, size_bytes: u64, size_bytes_max: u64) -> Result<Vec<u8>, ObjectError> {
        let end = offset.0.checked_add(size_bytes).ok_or(ObjectError::Malformed("a range wraps around"))?;
        if end > self.identity.size_bytes {
            return Err(ObjectError::Malformed("a range ends behind the file"));
        }
        if size_bytes > size_bytes_max {
            return Err(ObjectError::Malformed("a table is larger than is believable"));
        }
        let length = usize::try_from(size_bytes).map_err(|_| ObjectError::Malformed("a range exceeds memory"))?;
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset.0)?;
        Ok(bytes)
    }
}

/// The identity of the file with this metadata.
pub(crate) fn identity_of(metadata: &std::fs::Metadata) -> Identity {
    Identity {
        device: Device::from_raw(metadata.dev()),
        inode: metadata.ino(),
        size_bytes: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
    }
}
