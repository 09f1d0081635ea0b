//! The reader process (`heapbpf reader`, started only by the agent).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use heapbpf_linux::companion::{self, Channel};
use heapbpf_linux::confinement::{close_inherited, close_outputs};
use heapbpf_linux::proc::maps::Device;
use heapbpf_linux::proc::mounts;
use heapbpf_linux::proc::process::entry_path;
use heapbpf_linux::rights::Rights;
use heapbpf_linux::walk::{Walk, WalkError};
use rustix::fs::{
    AtFlags, CWD, MemfdFlags, Mode, OFlags, SealFlags, StatxFlags, fcntl_add_seals, fstatfs, memfd_create, openat,
    statx,
};
use rustix::process::geteuid;

use super::{Answer, COPY_BYTES_MAX, Failure, Original, REQUEST_BYTES_MAX, Request};

/// Maximum size of a message with rights: a user can be in 65,536 groups (`NGROUPS_MAX` in include/uapi/linux/limits.h), each of
/// which takes at most 5 bytes.
const RIGHTS_BYTES_MAX: usize = 1 << 19;

/// Answers requests with the rights in the first message, until the agent closes the channel.
pub fn serve() -> io::Result<()> {
    close_inherited();
    close_outputs()?;
    let channel = Channel::of_standard_input()?;
    companion::set_name("heapbpf-reader");
    answer_requests(&channel)
}

pub(super) fn answer_requests(channel: &Channel) -> io::Result<()> {
    let Some((rights, _)) = channel.receive_value::<Option<Rights>>(RIGHTS_BYTES_MAX)? else { return Ok(()) };
    rights.as_ref().map_or(Ok(()), Rights::take_on)?;
    let uid = rights.map_or_else(|| geteuid().as_raw(), |rights| rights.uid());
    while let Some((request, descriptors)) = channel.receive_value(REQUEST_BYTES_MAX)? {
        let given = descriptors.into_iter().next().ok_or(io::ErrorKind::InvalidData)?;
        // `answer` has closed the other files that it opened, because closing can wait for the file system too.
        match answer(channel, uid, given, request) {
            Ok((answer, files)) => {
                let descriptors: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
                channel.send_value(&answer, &descriptors)?;
            }
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
            WalkError::Foreign { .. } | WalkError::NotOurs { .. } | WalkError::Distant(_) => Self::Foreign,
        }
    }
}

fn answer(channel: &Channel, uid: u32, given: OwnedFd, request: Request) -> Result<(Answer, Vec<File>), Failure> {
    // A program of root would otherwise read for the owner of a link what root alone can read.
    let walk = |path: &[u8], follows| -> Result<File, Failure> {
        let mut walk = Walk::beneath(&given, uid)?;
        walk.to(Path::new(OsStr::from_bytes(path)), follows)?;
        Ok(File::from(walk.into_place()))
    };
    match request {
        Request::Open { path, follows, owners, bytes_max } => {
            let found = walk(&path, follows)?;
            let limit = |original: &Original, owner: u32| match owners {
                Some(owners) if !owners.contains(&owner) => Err(Failure::Foreign),
                _ if original.size_bytes > bytes_max => Err(Failure::TooLarge),
                _ => Ok(()),
            };
            let judged = |file: &File| judge(file).and_then(|(original, owner)| limit(&original, owner));
            judged(&found)?;
            let file = open(&found)?;
            judged(&file)?;
            match deliver(channel, found, file, COPY_BYTES_MAX)? {
                (Answer::Large(_), _) => Err(Failure::TooLarge),
                delivered => Ok(delivered),
            }
        }
        Request::Map { path, copy_bytes_max } => {
            let found = match path {
                Some(path) => walk(&path, true)?,
                None => File::from(given),
            };
            judge(&found)?;
            let file = open(&found)?;
            deliver(channel, found, file, copy_bytes_max)
        }
        Request::Read { offset, length } => {
            let given = File::from(given);
            judge(&given)?;
            let mut file = open(&given)?;
            let (original, _) = judge(&file)?;
            file.seek(SeekFrom::Start(offset))?;
            Ok((Answer::Read(original), vec![copy(file, length)?]))
        }
        Request::Touch { pid, address } => {
            File::open(entry_path(pid, "mem"))?.read_exact_at(&mut [0], address)?;
            Ok((Answer::Touched, Vec::new()))
        }
        Request::Reach { path } => {
            let attributes = |path: &Path| statx(CWD, path, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
            // The file system is asked for the last folder of the path that exists, because the kernel may know the names without
            // asking it.
            let path = Path::new(OsStr::from_bytes(&path));
            let _ = path.ancestors().find(|path| attributes(path).is_ok());
            Ok((Answer::Reached, Vec::new()))
        }
        Request::Identify { path } => Ok((Answer::Identified(judge(&walk(&path, true)?)?.0), Vec::new())),
    }
}

/// Opens a file that was judged, whatever its name leads to now.
fn open(found: &File) -> Result<File, Failure> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(openat(CWD, format!("/proc/self/fd/{}", found.as_raw_fd()), flags, Mode::empty())?))
}

/// Returns the file, or a copy where the agent should not read the file itself.
fn deliver(channel: &Channel, found: File, file: File, bytes_max: u64) -> Result<(Answer, Vec<File>), Failure> {
    let (original, _) = judge(&file)?;
    if mounts::is_local_type(fstatfs(&file)?.f_type, original.device) {
        return Ok((Answer::Opened, vec![file]));
    }
    if original.size_bytes > bytes_max {
        return Ok((Answer::Large(original), vec![found]));
    }
    channel.send_value(&Answer::Copying(original.size_bytes), &[])?;
    Ok((Answer::Copied(original), vec![copy(file, original.size_bytes)?, found]))
}

/// Checks that a file is regular, since opening a device or pipe can have effects. Returns the file's identity and its owner.
fn judge(file: &File) -> Result<(Original, u32), Failure> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Failure::NotRegular);
    }
    let original = Original {
        device: Device::from_raw(metadata.dev()),
        inode: metadata.ino(),
        size_bytes: metadata.len(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
    };
    Ok((original, metadata.uid()))
}

/// Copies bytes from the file's position into memory that nobody can change.
fn copy(file: File, length: u64) -> Result<File, Failure> {
    let mut copy = File::from(memfd_create("heapbpf-copy", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    io::copy(&mut (&file).take(length), &mut copy)?;
    copy.rewind()?;
    fcntl_add_seals(&copy, SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL)?;
    Ok(copy)
}
