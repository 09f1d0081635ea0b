//! Tables on disk, so that a large library is parsed once and not in every run.
//!
//! A file is trusted when it is ours, undamaged, of this version, and made from the same unwind information; otherwise the
//! table is built anew and the file replaced. Nothing here fails a run: what goes wrong is a warning, and the table is built.
//!
//! An agent that runs as root may find its cache directory in the hands of another user (`sudo` can keep `HOME`). So
//! directories and files are used only when they belong to the effective user and nobody else may write them, and no
//! link is followed below the directory named by the environment.

use std::ffi::{CStr, OsStr};
use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use object::ReadRef;
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::encode;
use super::image::Image;
use super::table::Table;

/// Bytes of tables that stay on disk, up to a sixteenth more while an agent runs. The longest unused are removed.
pub(crate) const CACHE_BYTES_MAX: u64 = 512 << 20;

/// Age at which an unfinished file is taken for an interrupted writer's, in seconds.
const UNFINISHED_AGE_S: i64 = 3600;

/// How the names of tables begin.
const NAME_PREFIX: &str = "table-";

/// How the names of unfinished files begin.
const UNFINISHED: &[u8] = b".new-";

/// Why there is no cache.
#[derive(Debug, Error)]
pub(crate) enum CacheError {
    /// A directory could not be made or opened.
    #[error("cannot open cache directory `{path}`: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A directory is not ours alone.
    #[error(
        "cache directory `{path}` belongs to another user or can be written by others; set XDG_CACHE_HOME to one of your own"
    )]
    NotOurs {
        /// The directory.
        path: PathBuf,
    },
}

/// Identifies a table by a hash of what it is built from. A build id would not do: the author of a file chooses it, and
/// with it could replace the table of another process's library.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TableKey([u8; 32]);

impl TableKey {
    /// The key of this image's table: SHA-256 of its unwind sections, their addresses, where its code lies and where it
    /// starts. Bytes of code are not in it: the few that matter are checked when a table is read ([`Samples`]).
    ///
    /// [`Samples`]: super::frame_pointer::Samples
    pub(crate) fn of<'data, R: ReadRef<'data>>(image: &Image<'data, R>) -> Self {
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        for section in [image.eh_frame, image.debug_frame] {
            add(section.unwrap_or_default());
        }
        let eh_frame = &image.bases.eh_frame;
        for base in [eh_frame.section, eh_frame.text, eh_frame.data, image.bases.eh_frame_hdr.section, image.entry] {
            add(base.map_or([0; 9], array_with_mark).as_slice());
        }
        for code in &image.code {
            for number in [code.start, code.end, code.file_offset] {
                add(&number.to_le_bytes());
            }
        }
        Self(hash.finalize().into())
    }

    /// The name of the table's file in the cache.
    fn file_name(&self) -> String {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{NAME_PREFIX}{digits}")
    }
}

/// A number that differs from no number.
fn array_with_mark(number: u64) -> [u8; 9] {
    let mut bytes = [1; 9];
    bytes[1..].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// A directory of tables.
#[derive(Debug)]
pub(crate) struct Cache {
    directory: OwnedFd,
    bytes_max: u64,
    /// Bytes written since the cache was last tidied, which looks at every file.
    untidied_bytes: AtomicU64,
}

impl Cache {
    /// The cache where the environment says: `$XDG_CACHE_HOME/heapbpf/unwind`, else below `$HOME/.cache`; for root, where
    /// that is another user's, below `/var/cache`. `None`, with a warning, if there is none to use.
    pub(crate) fn from_environment() -> Option<Self> {
        let roots = cache_roots(|name| std::env::var_os(name), rustix::process::geteuid().is_root());
        let mut refused = None;
        for root in roots {
            match Self::open(&root, CACHE_BYTES_MAX) {
                Ok(cache) => return Some(cache),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        match refused {
            Some(error) => tracing::warn!("unwind tables are not kept: {error}"),
            None => tracing::warn!("unwind tables are not kept: neither XDG_CACHE_HOME nor HOME names a directory"),
        }
        None
    }

    /// The cache in `root/heapbpf/unwind`, made if need be, which keeps up to `bytes_max` bytes.
    ///
    /// # Errors
    /// When a directory cannot be made or opened, or is not the effective user's alone.
    pub(crate) fn open(root: &Path, bytes_max: u64) -> Result<Self, CacheError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| CacheError::Directory { path, source }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(failed(root))?;
        let mut path = root.to_owned();
        let mut directory = open_directory(fs::CWD, root).map_err(|error| failed(root)(error.into()))?;
        check_ours(&directory, &path)?;
        for name in ["heapbpf", "unwind"] {
            path.push(name);
            match fs::mkdirat(&directory, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failed(&path)(error.into())),
            }
            directory = open_directory(directory.as_fd(), name).map_err(|error| failed(&path)(error.into()))?;
            check_ours(&directory, &path)?;
        }
        let cache = Self { directory, bytes_max, untidied_bytes: AtomicU64::new(0) };
        cache.tidy();
        Ok(cache)
    }

    /// The table with this key, from the cache if there is one and `is_current`, or else from `build`, whose result is kept.
    pub(crate) fn get_or_build(
        &self,
        key: &TableKey,
        is_current: impl FnOnce(&Table) -> bool,
        build: impl FnOnce() -> Table,
    ) -> Table {
        if let Some(table) = self.load(key).filter(is_current) {
            return table;
        }
        let table = build();
        self.store(key, &table);
        table
    }

    /// The table with this key, if the cache has a sound one.
    pub(crate) fn load(&self, key: &TableKey) -> Option<Table> {
        let name = key.file_name();
        match self.read(&name) {
            Ok(bytes) => {
                let table = encode::decode(name.as_bytes(), &bytes);
                if table.is_none() {
                    tracing::debug!("unwind table `{name}` is damaged or of another version: it is built anew");
                }
                table
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!("unwind table `{name}` cannot be read: {error}");
                None
            }
        }
    }

    /// Keeps a table. Failure is a warning.
    pub(crate) fn store(&self, key: &TableKey, table: &Table) {
        let name = key.file_name();
        let bytes = encode::encode(name.as_bytes(), table);
        if let Err(error) = self.replace(&name, &bytes) {
            tracing::warn!("unwind table `{name}` cannot be kept: {error}");
        }
        let written = bytes.len() as u64;
        let untidied = self.untidied_bytes.fetch_add(written, Ordering::Relaxed).saturating_add(written);
        if untidied > self.bytes_max / 16 {
            self.tidy();
        }
    }

    fn tidy(&self) {
        self.untidied_bytes.store(0, Ordering::Relaxed);
        if let Err(error) = self.evict() {
            tracing::warn!("the cache of unwind tables cannot be tidied: {error}");
        }
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        // Not blocking: a file could be a pipe that nobody writes to.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(fs::openat(&self.directory, name, flags, Mode::empty())?);
        let stat = fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || !is_ours(&stat) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "not a file of the effective user alone"));
        }
        let mut bytes = Vec::new();
        (&file).take(self.bytes_max).read_to_end(&mut bytes)?;
        // Used now, so evicted last. That the time could not be set is no reason to do without the table.
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let kept = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let _ = fs::futimens(&file, &Timestamps { last_access: kept, last_modification: now });
        Ok(bytes)
    }

    /// Readers see the old file or the new one, never a part.
    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unfinished = format!(".new-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(fs::openat(&self.directory, &unfinished, flags, Mode::RUSR | Mode::WUSR)?);
        let written =
            file.write_all(bytes).and_then(|()| Ok(fs::renameat(&self.directory, &unfinished, &self.directory, name)?));
        if written.is_err() {
            let _ = fs::unlinkat(&self.directory, &unfinished, AtFlags::empty());
        }
        written
    }

    /// Removes the longest unused files until the rest fits, and what interrupted writers and earlier versions left.
    fn evict(&self) -> io::Result<()> {
        let now = fs::statat(&self.directory, ".", AtFlags::empty())?.st_mtime;
        let mut files = Vec::new();
        for entry in Dir::read_from(&self.directory)? {
            let entry = entry?;
            let Ok(stat) = fs::statat(&self.directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                continue;
            }
            if entry.file_name().to_bytes().starts_with(UNFINISHED) {
                if now.saturating_sub(stat.st_mtime) > UNFINISHED_AGE_S {
                    self.remove(entry.file_name());
                }
                continue;
            }
            if !entry.file_name().to_bytes().starts_with(NAME_PREFIX.as_bytes()) {
                self.remove(entry.file_name());
                continue;
            }
            let bytes = u64::try_from(stat.st_size).unwrap_or(0);
            files.push((stat.st_mtime, stat.st_mtime_nsec, bytes, entry.file_name().to_owned()));
        }
        let mut total: u64 = files.iter().map(|(_, _, bytes, _)| bytes).sum();
        files.sort_unstable();
        for (_, _, bytes, name) in files {
            if total <= self.bytes_max {
                break;
            }
            self.remove(&name);
            total -= bytes;
        }
        Ok(())
    }

    /// Another agent may have removed the file before us.
    fn remove(&self, name: &CStr) {
        let _ = fs::unlinkat(&self.directory, name, AtFlags::empty());
    }
}

/// Directories that may hold the cache, best first. Relative ones are ignored, as the XDG specification demands.
fn cache_roots(variable: impl Fn(&str) -> Option<std::ffi::OsString>, is_root: bool) -> Vec<PathBuf> {
    let absolute = |value: &OsStr| Path::new(value).is_absolute().then(|| PathBuf::from(value));
    let xdg = variable("XDG_CACHE_HOME").and_then(|value| absolute(&value));
    let home = || variable("HOME").and_then(|value| absolute(&value)).map(|home| home.join(".cache"));
    let mut roots: Vec<PathBuf> = xdg.or_else(home).into_iter().collect();
    if is_root {
        roots.push(PathBuf::from("/var/cache"));
    }
    roots
}

fn open_directory(at: BorrowedFd<'_>, path: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    fs::openat(at, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn check_ours(directory: &OwnedFd, path: &Path) -> Result<(), CacheError> {
    match fs::fstat(directory) {
        Ok(stat) if is_ours(&stat) => Ok(()),
        Ok(_) => Err(CacheError::NotOurs { path: path.to_owned() }),
        Err(error) => Err(CacheError::Directory { path: path.to_owned(), source: error.into() }),
    }
}

fn is_ours(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o022 == 0
}

#[cfg(test)]
mod tests;
