//! The cache that elfutils' client has too: `BUILD-ID/debuginfo` below its directory. An empty file stands for one that no server
//! has. Accessed with the rights of the invoking user, whose directory it is.

use std::fs::{self, DirBuilder, File};
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::linux::files::{self, Replacement};
use crate::linux::invoker::as_invoker;
use crate::object::elf::BuildId;
use crate::object::image::open_regular;

const FILE_NAME: &str = "debuginfo";
/// Any user may read debug files; directories restrict that.
const FILE_MODE: u32 = 0o444;
/// How long a file counts as missing, unless the file of that name in the cache contains another number of seconds.
const MISSING_AGE_MAX: Duration = Duration::from_secs(600);
const MISSING_AGE_FILE: &str = "cache_miss_s";

#[derive(Debug)]
pub(super) struct Cache(PathBuf);

#[derive(Debug)]
pub(super) enum Cached {
    File(File),
    /// No server had it recently.
    Missing,
    Unknown,
}

impl Cache {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    fn path(&self, build_id: &BuildId) -> PathBuf {
        self.0.join(build_id.to_string()).join(FILE_NAME)
    }

    pub(super) fn find(&self, build_id: &BuildId) -> Cached {
        as_invoker(|| self.look_up(&self.path(build_id))).unwrap_or(Cached::Unknown)
    }

    fn look_up(&self, path: &Path) -> Cached {
        let Ok(image) = open_regular(path) else { return Cached::Unknown };
        if image.identity().size_bytes > 0 {
            return image.file().try_clone().map_or(Cached::Unknown, Cached::File);
        }
        let written = image.file().metadata().and_then(|metadata| metadata.modified());
        let age = written.ok().and_then(|written| SystemTime::now().duration_since(written).ok());
        let text = files::read_text(&self.0.join(MISSING_AGE_FILE), 64).ok();
        let age_max = text.and_then(|text| text.trim().parse().ok()).map_or(MISSING_AGE_MAX, Duration::from_secs);
        if age.is_some_and(|age| age < age_max) { Cached::Missing } else { Cached::Unknown }
    }

    /// `None` where the cache cannot be written; with a warning.
    pub(super) fn create(&self, build_id: &BuildId) -> Option<Replacement> {
        let create = || {
            let path = self.path(build_id);
            DirBuilder::new().recursive(true).mode(0o700).create(path.parent().unwrap_or(&self.0))?;
            Replacement::create(&path, FILE_MODE)
        };
        let created = as_invoker(create).and_then(|created| created);
        created.map_err(|error| tracing::warn!("debug files are not cached in `{}`: {error}", self.0.display())).ok()
    }

    /// Gives a complete file its name.
    pub(super) fn commit(&self, file: Replacement) {
        if let Err(error) = as_invoker(|| file.commit()).and_then(|done| done) {
            tracing::warn!("a debug file is not cached in `{}`: {error}", self.0.display());
        }
    }

    /// Remembers that no server has a file.
    pub(super) fn add_missing(&self, build_id: &BuildId) {
        let path = self.path(build_id);
        // Replaces an older one, for its time.
        let _ = as_invoker(|| fs::remove_file(&path));
        if let Some(empty) = self.create(build_id) {
            let _ = empty.file().flush();
            self.commit(empty);
        }
    }
}
