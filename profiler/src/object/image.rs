//! An opened module: reads only ranges that are in the file and within the caller's limit. Opens the file behind a
//! mapping, never another file that has the same name now.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use heapbpf_base::address::FileOffset;
use heapbpf_base::ids::Pid;
use heapbpf_base::shown;
use heapbpf_linux::known;
use heapbpf_linux::proc::maps::{Device, FileIdentity, Mapping, file_mappings};
use heapbpf_linux::proc::mounts;
use heapbpf_linux::proc::process::{self, entry_path};
use heapbpf_linux::rights::Rights;
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, ResolveFlags, SealFlags, openat};
use rustix::io::Errno;

use super::ObjectError;
use super::distant::Distant;
use crate::reader::{self, Mapped, Opened, Original, ReadError, Wanted};

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
    contents: Contents,
    /// Of the original, if this is a copy.
    identity: Identity,
    /// The file itself, if it is not opened here (`O_PATH`).
    original: Option<File>,
    /// Whether its symbol tables may be read.
    has_symbols: bool,
}

#[derive(Debug)]
enum Contents {
    File(File),
    Copy(File),
    /// Of a file system that may not answer, and too large for a copy.
    Distant(Distant),
}

impl Image {
    pub fn new(file: File) -> Result<Self, ObjectError> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(ObjectError::NotRegular);
        }
        Ok(Self { identity: identity_of(&metadata), contents: Contents::File(file), original: None, has_symbols: true })
    }

    /// Opens a file that a target has named.
    pub(crate) fn open_for(rights: &Rights, root: &File, wanted: Wanted<'_>) -> Result<Self, ObjectError> {
        let Opened { file, original } = reader::open(rights, root, wanted)?;
        match original {
            None => Self::new(file),
            Some(original) => Ok(Self {
                contents: Contents::Copy(file),
                identity: original.into(),
                original: None,
                has_symbols: true,
            }),
        }
    }

    fn of_module(module: reader::Module, rights: Option<Rights>) -> Result<Self, ObjectError> {
        Ok(match module {
            reader::Module::Local(file) => Self::new(file)?,
            reader::Module::Distant { copy, original, file } => Self {
                identity: original.into(),
                contents: match copy {
                    Some(copy) => Contents::Copy(copy),
                    None => Contents::Distant(Distant::new(file.try_clone()?, original, rights)),
                },
                original: Some(file),
                has_symbols: true,
            },
        })
    }

    /// Without its symbol tables, which are too large to be read.
    pub(super) fn without_symbols(self) -> Self {
        Self { has_symbols: false, ..self }
    }

    pub(super) fn has_symbols(&self) -> bool {
        self.has_symbols
    }

    /// With a copy of a small file that this process does not open, for when its file system answers no more.
    pub(super) fn kept(self) -> Self {
        let is_room = COPIED_BYTES.load(Ordering::Relaxed) < COPIES_BYTES_MAX;
        match &self.contents {
            Contents::Distant(distant) if is_room && self.identity.size_bytes <= COPY_BYTES_MAX => match distant.copy()
            {
                Ok(copy) => {
                    COPIED_BYTES.fetch_add(self.identity.size_bytes, Ordering::Relaxed);
                    Self { contents: Contents::Copy(copy), ..self }
                }
                Err(_) => self,
            },
            _ => self,
        }
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
        let mut file = match &self.contents {
            Contents::File(file) | Contents::Copy(file) => file,
            Contents::Distant(distant) => return distant.copy(),
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut copy = File::from(rustix::fs::memfd_create("heapbpf-module", flags).map_err(io::Error::from)?);
        // Only copies use the position.
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

    pub(crate) fn file_identity(&self) -> FileIdentity {
        FileIdentity::new(self.identity.device, self.identity.inode)
    }

    /// The contents, or the file itself, not opened for reading, if it is large and its file system may not answer.
    pub fn file(&self) -> &File {
        match &self.contents {
            Contents::File(file) | Contents::Copy(file) => file,
            Contents::Distant(distant) => &distant.file,
        }
    }

    /// The file itself, for probes.
    pub(crate) fn original(&self) -> &File {
        self.original.as_ref().unwrap_or_else(|| self.file())
    }

    /// Whether this process does not open the file, because its file system may not answer.
    pub(crate) fn is_distant(&self) -> bool {
        self.original.is_some()
    }

    /// Has the kernel map the page of an address of a process, if the file's file system may not answer.
    pub(crate) fn touch(&self, pid: Pid, address: u64) -> Result<(), ObjectError> {
        self.original.as_ref().map_or(Ok(()), |file| Ok(reader::touch(file, pid, address)?))
    }

    /// Has the kernel read a page of the file, if its file system may not answer. `rights` are those of a process that has mapped it.
    pub(crate) fn prefetch(&self, rights: Option<&Rights>, offset: FileOffset) -> Result<(), ObjectError> {
        match (&self.original, rights) {
            (None, _) => Ok(()),
            (Some(file), Some(_)) => Ok(reader::read(rights, file, &self.identity.into(), offset.0, 1).map(drop)?),
            (Some(_), None) => Err(ObjectError::Gone),
        }
    }

    /// Whether this process has the contents.
    pub(crate) fn is_whole(&self) -> bool {
        !matches!(self.contents, Contents::Distant(_))
    }

    /// Shares the file with this image.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let contents = match &self.contents {
            Contents::File(file) => Contents::File(file.try_clone()?),
            Contents::Copy(file) => Contents::Copy(file.try_clone()?),
            Contents::Distant(distant) => Contents::Distant(distant.try_clone()?),
        };
        let original = self.original.as_ref().map(File::try_clone).transpose()?;
        Ok(Self { contents, identity: self.identity, original, has_symbols: self.has_symbols })
    }

    /// Valid in this process and its threads as long as this value lives.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file().as_raw_fd()))
    }

    /// Neither truncated nor rewritten since it was opened.
    pub fn unchanged(&self) -> bool {
        match &self.contents {
            Contents::File(file) => file.metadata().is_ok_and(|metadata| identity_of(&metadata) == self.identity),
            // Each read of a part checks it.
            Contents::Copy(_) | Contents::Distant(_) => true,
        }
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
        match &self.contents {
            Contents::File(file) | Contents::Copy(file) => {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, offset.0)?;
                Ok(bytes)
            }
            Contents::Distant(distant) => distant.read(offset.0, length),
        }
    }
}

impl From<Identity> for Original {
    fn from(identity: Identity) -> Self {
        let Identity { device, inode, size_bytes, modified } = identity;
        Self { device, inode, size_bytes, modified }
    }
}

impl From<Original> for Identity {
    fn from(original: Original) -> Self {
        let Original { device, inode, size_bytes, modified } = original;
        Self { device, inode, size_bytes, modified }
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

/// Maximum size of a module that is copied, and of all copies. Parts of others are read when they are needed.
const COPY_BYTES_MAX: u64 = 16 << 20;
const COPIES_BYTES_MAX: u64 = 256 << 20;

static COPIED_BYTES: AtomicU64 = AtomicU64::new(0);

/// `/proc/PID/map_files` leads to the mapped file even if renamed or deleted, but needs CAP_CHECKPOINT_RESTORE or
/// CAP_SYS_ADMIN. Otherwise the path is resolved in the process's root, and used only for the mapped file. The reader opens what
/// this process could have to wait for.
pub(crate) fn open_mapped(pid: Pid, mapping: &Mapping, path: &Path) -> Result<Image, ObjectError> {
    let entry = entry_path(pid, &format!("map_files/{:x}-{:x}", mapping.start, mapping.end));
    let is_local = mounts::is_local(pid, mapping.device);
    if is_local {
        match open_regular(&entry) {
            Err(ObjectError::NotRegular) => return Err(ObjectError::NotRegular),
            Err(_) => {}
            Ok(image) => return if is_of(&image, pid, mapping) { Ok(image) } else { Err(ObjectError::Replaced) },
        }
    }
    let rights = Some(Rights::of(pid).ok_or(ObjectError::Gone)?);
    let read = |mapped: Mapped<'_>| {
        open_by_reader(rights.as_ref(), mapped).map_err(|error| match mounts::point_of(pid, mapping.device) {
            Some(point) if error == ObjectError::Silent => ObjectError::Unanswered(shown::os_text(&point).into()),
            _ => error,
        })
    };
    match openat(CWD, &entry, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) if !is_local => read(Mapped::File(&file.into())),
        _ => {
            let image = read(Mapped::At(&process::root(pid)?, path))?;
            let is_mapped = image.file_identity() == FileIdentity::new(mapping.device, mapping.inode);
            if is_mapped { Ok(image) } else { Err(ObjectError::Gone) }
        }
    }
}

/// Whether a file that was opened by the place of a mapping is that mapping's: another file may have been mapped there since the mapping
/// was read. Overlays and btrfs report other devices for files than for mappings, and overlays other inodes.
fn is_of(image: &Image, pid: Pid, mapping: &Mapping) -> bool {
    let is_there = || file_mappings(pid).is_ok_and(|mappings| mappings.contains(mapping));
    let has_inode = image.identity.inode == mapping.inode;
    if image.identity.device == mapping.device { has_inode } else { has_inode || is_there() }
}

/// Opens a file of this machine that a recording names.
pub(crate) fn open_recorded(path: &Path) -> Result<Image, ObjectError> {
    open_by_reader(None, Mapped::At(&own_root()?, path)).map(Image::kept)
}

/// Opens a file of this machine that the user of heapbpf names. The reader opens what this process could have to wait for.
pub(super) fn open_named(path: &Path) -> Result<Image, ObjectError> {
    if mounts::first_distant(path).is_none() {
        return open_regular(path);
    }
    reader::reach(None, path).map_err(|silent| ObjectError::Unanswered(shown::os_text(&silent.point).into()))?;
    open_by_reader(None, Mapped::At(&own_root()?, &std::path::absolute(path)?))
}

fn own_root() -> io::Result<File> {
    Ok(openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?.into())
}

pub(super) fn open_by_reader(rights: Option<&Rights>, mapped: Mapped<'_>) -> Result<Image, ObjectError> {
    let module = reader::open_mapped(rights, mapped, 0)?;
    Image::of_module(module, rights.cloned())
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

impl From<ReadError> for ObjectError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Silent => Self::Silent,
            ReadError::NotRegular => Self::NotRegular,
            ReadError::TooLarge => Self::Malformed("the file exceeds the size limit"),
            ReadError::Foreign => Self::Malformed("it, or a link to it, belongs to another user"),
            ReadError::Changed => Self::Malformed("the file was changed after it was opened"),
            ReadError::Io(error) => error.into(),
        }
    }
}

/// The user of heapbpf controls the directory tree.
pub(super) fn open_beneath(root: &File, path: &Path, bytes_max: u64) -> Result<Image, ObjectError> {
    let found = locate(root, path, ResolveFlags::empty()).map_err(io::Error::from)?;
    let metadata = found.metadata()?;
    if !metadata.is_file() {
        return Err(ObjectError::NotRegular);
    }
    if metadata.len() > bytes_max {
        return Err(ObjectError::Malformed("the file exceeds the size limit"));
    }
    open_regular(Path::new(&format!("/proc/self/fd/{}", found.as_raw_fd())))
}

/// Does not open the file (`O_PATH`). Links must not lead out of the directory tree, nor through /proc.
fn locate(root: &File, path: &Path, further: ResolveFlags) -> rustix::io::Result<File> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | further;
    rustix::fs::openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve).map(File::from)
}

/// Which file a path leads to, beneath a root directory and with the rights of a user. `device` is that of its folder, if it is known.
/// The reader finds what the kernel does not have in memory.
pub(crate) fn identity_beneath(
    rights: &Rights,
    root: &File,
    path: &Path,
    device: Option<Device>,
) -> Option<FileIdentity> {
    let found = match locate(root, path, ResolveFlags::CACHED) {
        Err(Errno::NOENT) => return None,
        found => found.ok().and_then(|file| known::of(&file).ok()),
    };
    if let Some(found) = found {
        return Some(FileIdentity::new(Device::of(&found), found.stx_ino));
    }
    let found = reader::identify(rights, root, path, device).ok()?;
    Some(FileIdentity::new(found.device, found.inode))
}

/// Which file a path leads to on this machine, for the user of heapbpf.
pub(crate) fn identity_here(path: &Path) -> Option<FileIdentity> {
    identity_beneath(&Rights::of_invoker(), &own_root().ok()?, path, None)
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
