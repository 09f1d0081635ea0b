//! On-disk cache of tables. A file is used if it is undamaged, of this version, of the same unwind information;
//! otherwise the table is rebuilt and the file replaced. Errors are warnings and never fail a run.
//!
//! A root agent may find its cache directory owned by another user (`sudo` can keep `HOME`). So directories and files
//! must belong to the effective user and be writable by nobody else; links are followed only on the way to the environment's path, and only
//! those of root, of the effective user and of the user who invoked the agent.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use heapbpf_linux::files::{Replacement, TEMPORARY_PREFIX};
use heapbpf_linux::folder::Folder;
use rustix::fs::{FileType, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, fstat, futimens};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

use super::image::Image;
use super::table::Table;
use crate::reader::{self, Unanswered};

/// Exceeded by up to a sixteenth while an agent runs. The least recently used tables are removed.
pub(crate) const CACHE_BYTES_MAX: u64 = 512 << 20;
const UNFINISHED_AGE_S: i64 = 3600;
const NAME_PREFIX: &str = "table-";

#[derive(Debug, Error)]
pub(crate) enum CacheError {
    #[error("cannot open cache directory `{path}`: {source}")]
    Directory { path: PathBuf, source: io::Error },
    #[error(
        "cache directory `{path}` belongs to another user or is writable by others; set XDG_CACHE_HOME to a directory of your own"
    )]
    NotOurs { path: PathBuf },
    #[error(transparent)]
    Unanswered(#[from] Unanswered),
}

/// Hash of a table's input. A build id is chosen by the file's author, who could replace the table of another library.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TableKey([u8; 32]);

impl TableKey {
    /// Excludes code: the few relevant bytes are checked when a table is read ([`Samples`](super::image::Samples)).
    pub(crate) fn of(image: &Image<'_>) -> Self {
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        for section in [&image.eh_frame, &image.debug_frame] {
            add(section.as_deref().unwrap_or_default());
        }
        let eh_frame = &image.bases.eh_frame;
        for base in [eh_frame.section, eh_frame.text, eh_frame.data, image.bases.eh_frame_hdr.section, image.entry] {
            add(base.map_or([0; 9], array_with_mark).as_slice());
        }
        add(&image.exits.iter().flat_map(|address| address.to_le_bytes()).collect::<Vec<u8>>());
        // Nearly all modules have none.
        if !image.greenlets.is_empty() {
            add(&image.greenlets.iter().flat_map(|address| address.to_le_bytes()).collect::<Vec<u8>>());
        }
        for code in &image.code {
            for number in [code.start, code.end, code.file_offset] {
                add(&number.to_le_bytes());
            }
        }
        Self(hash.finalize().into())
    }

    fn file_name(&self) -> String {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{NAME_PREFIX}{digits}")
    }
}

/// Distinguishes any number from no number.
fn array_with_mark(number: u64) -> [u8; 9] {
    let mut bytes = [1; 9];
    bytes[1..].copy_from_slice(&number.to_le_bytes());
    bytes
}

#[derive(Debug)]
pub(crate) struct Cache {
    directory: Folder,
    path: PathBuf,
    bytes_max: u64,
    /// Since the last eviction, which inspects every file.
    untidied_bytes: AtomicU64,
}

impl Cache {
    /// Opens `$XDG_CACHE_HOME/heapbpf/unwind`, else `$HOME/.cache/heapbpf/unwind`; for root, if that is another user's,
    /// the one below `/var/cache`. `None`, with a warning, if none is usable.
    pub(crate) fn from_environment() -> Option<Self> {
        let roots = cache_roots(|name| std::env::var_os(name), rustix::process::geteuid().is_root());
        let mut refused = None;
        for root in roots {
            match Self::open(&root, CACHE_BYTES_MAX) {
                Ok(cache) => return Some(cache),
                Err(error @ CacheError::Unanswered(_)) => {
                    tracing::warn!("unwind tables are not cached: {error}");
                    return None;
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        match refused {
            Some(error) => tracing::warn!("unwind tables are not cached: {error}"),
            None => tracing::warn!("unwind tables are not cached: neither XDG_CACHE_HOME nor HOME names a directory"),
        }
        None
    }

    pub(crate) fn open(root: &Path, bytes_max: u64) -> Result<Self, CacheError> {
        let mut path = root.to_owned();
        reader::reach(None, &path.join("heapbpf/unwind"))?;
        let mut directory = ours(Folder::create(root), &path)?;
        for name in ["heapbpf", "unwind"] {
            path.push(name);
            directory = ours(directory.enter(name), &path)?;
        }
        let cache = Self { directory, path, bytes_max, untidied_bytes: AtomicU64::new(0) };
        cache.tidy();
        Ok(cache)
    }

    pub(crate) fn get_or_build(
        &self,
        key: &TableKey,
        is_current: impl FnOnce(&Table) -> bool,
        build: impl FnOnce() -> Table,
    ) -> Table {
        // Its file system may have stopped answering since.
        let answers = || reader::reach(None, &self.path).is_ok();
        if answers()
            && let Some(table) = self.load(key).filter(is_current)
        {
            return table;
        }
        let table = build();
        if answers() {
            self.store(key, &table);
        }
        table
    }

    pub(crate) fn load(&self, key: &TableKey) -> Option<Table> {
        let name = key.file_name();
        match self.read(&name) {
            Ok(bytes) => {
                let table = Table::decode(name.as_bytes(), &bytes);
                if table.is_none() {
                    tracing::debug!("unwind table `{name}` is damaged or of another version: rebuilding it");
                }
                table
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!("cannot read unwind table `{name}`: {error}");
                None
            }
        }
    }

    /// Failure is a warning.
    pub(crate) fn store(&self, key: &TableKey, table: &Table) {
        let name = key.file_name();
        let bytes = table.encode(name.as_bytes());
        if let Err(error) = self.replace(&name, &bytes) {
            tracing::warn!("cannot write unwind table `{name}`: {error}");
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
            tracing::warn!("cannot evict cached unwind tables: {error}");
        }
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let file = self.directory.open(name)?;
        if !is_ours(&fstat(&file)?) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "not owned by the effective user alone"));
        }
        let mut bytes = Vec::new();
        (&file).take(self.bytes_max).read_to_end(&mut bytes)?;
        // Mark it as recently used. The table is used even if that fails.
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let kept = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let _ = futimens(&file, &Timestamps { last_access: kept, last_modification: now });
        Ok(bytes)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let new = Replacement::create_at(self.directory.place(name)?, 0o600)?;
        new.file().write_all(bytes)?;
        new.commit().map(drop)
    }

    /// Removes least recently used files until the rest fits, and those of interrupted writers and earlier versions.
    fn evict(&self) -> io::Result<()> {
        let now = self.directory.stat()?.st_mtime;
        let mut files = Vec::new();
        for (name, stat) in self.directory.entries()? {
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                continue;
            }
            if name.as_bytes().starts_with(TEMPORARY_PREFIX.as_bytes()) {
                if now.saturating_sub(stat.st_mtime) > UNFINISHED_AGE_S {
                    self.remove(&name);
                }
                continue;
            }
            if !name.as_bytes().starts_with(NAME_PREFIX.as_bytes()) {
                self.remove(&name);
                continue;
            }
            let bytes = u64::try_from(stat.st_size).unwrap_or(0);
            files.push((stat.st_mtime, stat.st_mtime_nsec, bytes, name));
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

    /// Another agent may have removed it already.
    fn remove(&self, name: &OsStr) {
        let _ = self.directory.remove(name);
    }
}

/// Best first. Relative ones are ignored, as the XDG specification demands.
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

fn ours(opened: io::Result<Folder>, path: &Path) -> Result<Folder, CacheError> {
    let directory = |source| CacheError::Directory { path: path.to_owned(), source };
    let folder = opened.map_err(directory)?;
    let stat = folder.stat().map_err(directory)?;
    if is_ours(&stat) { Ok(folder) } else { Err(CacheError::NotOurs { path: path.to_owned() }) }
}

fn is_ours(stat: &Stat) -> bool {
    stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o022 == 0
}

#[cfg(test)]
mod tests;
