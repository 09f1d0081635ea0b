//! The reader process (`heapbpf reader`, started only by the agent).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, FsWord, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fstatfs, memfd_create, openat};

use super::{Answer, Failure, Original, REQUEST_BYTES_MAX, Request};
use crate::linux::companion::{self, Channel};
use crate::linux::confinement::close_inherited;
use crate::linux::rights::Rights;
use crate::linux::walk::{Walk, WalkError};

/// A user can be in 65,536 groups (`NGROUPS_MAX` in include/uapi/linux/limits.h), each of at most 5 bytes here.
const RIGHTS_BYTES_MAX: usize = 1 << 19;
/// Maximum size of a copy.
const COPY_BYTES_MAX: u64 = 256 << 20;

/// File systems that answer by themselves, whose files the agent can read at any time: numbers of `f_type` in statfs(2).
const LOCAL: [FsWord; 12] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0x0102_1994, // tmpfs
    0x794c_7630, // overlayfs
    0x7371_7368, // SquashFS
    0xe0f5_e1e2, // EROFS
    0x8584_58f6, // ramfs
    0xf2f5_2010, // F2FS
    0x9660,      // ISO 9660
    0x2fc1_2fc1, // ZFS
    0xca45_1a4e, // bcachefs
];

/// Answers requests with the rights that the first message has, until the agent closes the channel.
pub fn serve() -> io::Result<()> {
    close_inherited();
    let channel = Channel::of_standard_input()?;
    companion::set_name("heapbpf-reader");
    answer_requests(&channel)
}

pub(super) fn answer_requests(channel: &Channel) -> io::Result<()> {
    let Some((rights, _)) = channel.receive_value::<Rights>(RIGHTS_BYTES_MAX)? else { return Ok(()) };
    rights.take_on()?;
    while let Some((request, descriptors)) = channel.receive_value(REQUEST_BYTES_MAX)? {
        let root = descriptors.into_iter().next().ok_or(io::ErrorKind::InvalidData)?;
        match open(channel, rights.uid(), &root, &request) {
            Ok((answer, file)) => channel.send_value(&answer, &[file.as_fd()])?,
            Err(failure) => channel.send_value(&Answer::Failed(failure), &[])?,
        }
    }
    Ok(())
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::System(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(error: rustix::io::Errno) -> Self {
        Self::System(error.raw_os_error())
    }
}

impl From<WalkError> for Failure {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::System(error) => error.into(),
            WalkError::Foreign { .. } | WalkError::NotOurs { .. } => Self::Foreign,
        }
    }
}

fn open(channel: &Channel, uid: u32, root: &OwnedFd, request: &Request) -> Result<(Answer, File), Failure> {
    // A program of root would otherwise read for the owner of a link what root alone can read.
    let mut walk = Walk::beneath(root, uid)?;
    walk.to(Path::new(OsStr::from_bytes(&request.path)), request.follows)?;
    let found = File::from(walk.into_place());
    // Opening a device or pipe can have effects. What was judged is opened, whatever its name leads to now.
    judge(&found, request)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(openat(CWD, format!("/proc/self/fd/{}", found.as_raw_fd()), flags, Mode::empty())?);
    let original = judge(&file, request)?;
    if LOCAL.contains(&fstatfs(&file)?.f_type) {
        return Ok((Answer::Opened, file));
    }
    if original.size_bytes > COPY_BYTES_MAX {
        return Err(Failure::TooLarge);
    }
    channel.send_value(&Answer::Copying(original.size_bytes), &[])?;
    Ok((Answer::Copied(original), copy(&file, original.size_bytes)?))
}

fn judge(file: &File, request: &Request) -> Result<Original, Failure> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Failure::NotRegular);
    }
    if request.owners.is_some_and(|owners| !owners.contains(&metadata.uid())) {
        return Err(Failure::Foreign);
    }
    if metadata.len() > request.bytes_max {
        return Err(Failure::TooLarge);
    }
    Ok(Original {
        device: metadata.dev(),
        inode: metadata.ino(),
        size_bytes: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
    })
}

/// Copies a file into memory that nobody can change.
fn copy(file: &File, size_bytes: u64) -> Result<File, Failure> {
    let mut copy = File::from(memfd_create("heapbpf-copy", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    io::copy(&mut file.take(size_bytes), &mut copy)?;
    copy.rewind()?;
    fcntl_add_seals(&copy, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(copy)
}
