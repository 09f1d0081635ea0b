//! The cache that elfutils' client has too: `BUILD-ID/debuginfo` below its directory. An empty file stands for a file that no
//! server has. The cache is accessed with the rights of the invoking user, whose directory it is.

#![expect(clippy::disallowed_methods, reason = "the user's own paths")]

use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Once;
use std::time::{Duration, SystemTime};

use heapbpf_linux::files::Replacement;
use heapbpf_linux::folder::Folder;
use heapbpf_linux::rights::Rights;

use crate::object::elf::BuildId;
use crate::reader;

const FILE_NAME: &str = "debuginfo";
/// Mode of files: any user may read debug files; directories restrict that.
const FILE_MODE: u32 = 0o444;
/// Time for which a file counts as missing, unless the file with the name `cache_miss_s` in the cache contains another number of
/// seconds.
const MISSING_AGE_MAX: Duration = Duration::from_secs(600);
const MISSING_AGE_FILE: &str = "cache_miss_s";

#[derive(Debug)]
pub(super) struct Cache {
    directory: PathBuf,
    warning: Once,
}

#[derive(Debug)]
pub(super) enum Cached {
    File(File),
    /// No server had the file recently.
    Missing,
    Unknown,
}

impl Cache {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory, warning: Once::new() }
    }

    /// Whether the file system of the cache answers. Warns once if it does not.
    fn answers(&self) -> bool {
        let reached = reader::reach(Some(&Rights::of_invoker()), &self.directory);
        let warn = |error| self.warning.call_once(|| tracing::warn!("debug files are not cached: {error}"));
        reached.map_err(warn).is_ok()
    }

    fn path(&self, build_id: &BuildId) -> PathBuf {
        self.directory.join(build_id.to_string())
    }

    pub(super) fn find(&self, build_id: &BuildId) -> Cached {
        if !self.answers() {
            return Cached::Unknown;
        }
        let find = || self.look_up(build_id).unwrap_or(Cached::Unknown);
        Rights::of_invoker().run(find).unwrap_or(Cached::Unknown)
    }

    fn look_up(&self, build_id: &BuildId) -> io::Result<Cached> {
        let file = Folder::find(&self.path(build_id))?.open(FILE_NAME)?;
        let metadata = file.metadata()?;
        if metadata.len() > 0 {
            return Ok(Cached::File(file));
        }
        let age = SystemTime::now().duration_since(metadata.modified()?).ok();
        let age_max = self.missing_age_max().map_or(MISSING_AGE_MAX, Duration::from_secs);
        Ok(if age.is_some_and(|age| age < age_max) { Cached::Missing } else { Cached::Unknown })
    }

    /// Time in the cache for which files count as missing, in seconds. The folder may be another user's, who can put anything
    /// there.
    fn missing_age_max(&self) -> Option<u64> {
        let mut text = String::new();
        Folder::find(&self.directory).ok()?.open(MISSING_AGE_FILE).ok()?.take(64).read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }

    /// Creates a file; `None`, with a warning, where the cache cannot be written.
    pub(super) fn create(&self, build_id: &BuildId) -> Option<Replacement> {
        if !self.answers() {
            return None;
        }
        let create = || Replacement::create_at(Folder::create(&self.path(build_id))?.place(FILE_NAME)?, FILE_MODE);
        let created = Rights::of_invoker().run(create).and_then(|created| created);
        created
            .map_err(|error| tracing::warn!("debug files are not cached in `{}`: {error}", self.directory.display()))
            .ok()
    }

    /// Gives a complete file its name.
    pub(super) fn commit(&self, file: Replacement) {
        if let Err(error) = Rights::of_invoker().run(|| file.commit()).and_then(|done| done) {
            tracing::warn!("a debug file is not cached in `{}`: {error}", self.directory.display());
        }
    }

    /// Notes that no server has a file, from now on.
    pub(super) fn add_missing(&self, build_id: &BuildId) {
        if let Some(empty) = self.create(build_id) {
            self.commit(empty);
        }
    }
}
