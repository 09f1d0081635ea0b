//! The bytes of an opened module. Owns the file descriptor; reads only ranges that are in the file and within the caller's limit.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use rustix::fs::{MemfdFlags, SealFlags};

use super::ObjectError;
use crate::address::FileOffset;
use crate::linux::proc::maps::Device;

const COPY_BYTES: usize = 1 << 20;

/// Identity of a file. Rewriting a file in place changes its time, replacing it changes its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub device: Device,
    pub inode: u64,
    pub size_bytes: u64,
    /// Modification time: seconds and nanoseconds since the Unix epoch.
    pub modified: (i64, i64),
}

#[derive(Debug)]
pub struct Image {
    file: File,
    identity: Identity,
}

impl Image {
    /// Takes ownership of an opened regular file.
    pub fn new(file: File) -> Result<Self, ObjectError> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(ObjectError::NotRegular);
        }
        Ok(Self { identity: identity_of(&metadata), file })
    }

    /// Stores bytes that are in no file in a memfd, so that all modules are files.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ObjectError> {
        let descriptor =
            rustix::fs::memfd_create("heapbpf-module", MemfdFlags::CLOEXEC).map_err(std::io::Error::from)?;
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

    pub fn identity(&self) -> Identity {
        self.identity
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// A path to exactly this file, valid in this process and its threads as long as this value lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// Whether the file has neither been truncated nor rewritten since it was opened.
    pub fn unchanged(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| identity_of(&metadata) == self.identity)
    }

    /// Reads `size_bytes` at `offset`. Fails if that exceeds `size_bytes_max` or the file.
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
