//! The reader process (`heapbpf reader`, started only by the agent).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path};

use rustix::fs::{
    CWD, FsWord, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, fstat, fstatfs, memfd_create, openat, readlinkat,
};

use super::{Answer, Failure, Original, REQUEST_BYTES_MAX, Request};
use crate::linux::companion::{self, Channel};
use crate::linux::confinement::close_inherited;
use crate::linux::rights::Rights;

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

fn open(channel: &Channel, uid: u32, root: &OwnedFd, request: &Request) -> Result<(Answer, File), Failure> {
    let found = Walk::new(root, uid)?.to(Path::new(OsStr::from_bytes(&request.path)), request.follows)?;
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

/// On the way to a file, beneath a root directory that links do not leave. Links of other users than root and `uid` are not followed: they
/// could lead a program of root to what root alone can read.
struct Walk<'a> {
    root: &'a OwnedFd,
    place: File,
    uid: u32,
    links_left: u32,
}

/// As many as the kernel follows (`MAXSYMLINKS` in include/linux/namei.h).
const LINKS_MAX: u32 = 40;

impl<'a> Walk<'a> {
    fn new(root: &'a OwnedFd, uid: u32) -> io::Result<Self> {
        Ok(Self { root, place: root.try_clone()?.into(), uid, links_left: LINKS_MAX })
    }

    fn to(mut self, path: &Path, follows: bool) -> Result<File, Failure> {
        self.enter(path, follows)?;
        Ok(self.place)
    }

    fn enter(&mut self, path: &Path, follows: bool) -> Result<(), Failure> {
        let mut components = path.components().peekable();
        while let Some(component) = components.next() {
            match component {
                Component::Prefix(_) | Component::CurDir => {}
                Component::RootDir => self.place = self.root.try_clone()?.into(),
                Component::ParentDir if self.is_root()? => {}
                Component::ParentDir => self.place = self.entry(OsStr::new(".."))?,
                Component::Normal(name) => {
                    let entry = self.entry(name)?;
                    let metadata = entry.metadata()?;
                    let is_followed = follows || components.peek().is_some();
                    match metadata.is_symlink() && is_followed {
                        true if ![0, self.uid].contains(&metadata.uid()) => return Err(Failure::Foreign),
                        true => self.follow(&entry)?,
                        false => self.place = entry,
                    }
                }
            }
        }
        Ok(())
    }

    fn follow(&mut self, link: &File) -> Result<(), Failure> {
        self.links_left = self.links_left.checked_sub(1).ok_or(Failure::System(libc::ELOOP))?;
        let target = readlinkat(link, "", Vec::new())?;
        self.enter(Path::new(OsStr::from_bytes(target.as_bytes())), true)
    }

    fn entry(&self, name: &OsStr) -> rustix::io::Result<File> {
        openat(&self.place, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).map(File::from)
    }

    fn is_root(&self) -> rustix::io::Result<bool> {
        let [root, place] = [fstat(self.root)?, fstat(&self.place)?];
        Ok((root.st_dev, root.st_ino) == (place.st_dev, place.st_ino))
    }
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
