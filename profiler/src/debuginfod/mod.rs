//! Debug files from debuginfod servers, by build id. Off unless the user names servers: a request reveals which programs run on
//! this machine. Files are stored where elfutils' client stores them, and parsed elsewhere.
//!
//! <https://sourceware.org/elfutils/Debuginfod.html>

mod body;
mod cache;
mod client;
mod settings;
mod transfer;

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use tokio::runtime::Builder;

use self::cache::{Cache, Cached};
use self::client::Client;
pub(crate) use self::settings::{Server, Settings};
pub(crate) use self::transfer::{Failure, Watch};
use heapbpf_linux::files::Replacement;

use crate::object::elf::{BuildId, Elf};
use crate::object::image::Image;

/// A client of some servers.
#[derive(Debug)]
pub(crate) struct Debuginfod {
    settings: Settings,
    cache: Option<Cache>,
}

impl Debuginfod {
    pub(crate) fn new(settings: Settings) -> Arc<Self> {
        let cache = settings.cache.clone().map(Cache::new);
        Arc::new(Self { settings, cache })
    }

    /// Returns a file of an earlier download, by any debuginfod client.
    pub(crate) fn cached(&self, build_id: &BuildId) -> Option<Image> {
        let cache = self.cache.as_ref()?;
        match cache.find(build_id) {
            Cached::File(file) => verified(file, build_id),
            Cached::Missing | Cached::Unknown => None,
        }
    }

    /// Downloads the debug information of a build from the first server that has it, and adds it to the cache. `time_left` is for
    /// all servers.
    pub(crate) fn download(
        &self,
        build_id: &BuildId,
        time_left: Duration,
        watch: &mut Watch<'_>,
    ) -> Result<Image, Failure> {
        if let Some(cache) = &self.cache
            && matches!(cache.find(build_id), Cached::Missing)
        {
            return Err(Failure::NotFound);
        }
        let limit = time_left.min(self.settings.time_max.unwrap_or(time_left));
        let deadline = Instant::now() + limit;
        // A server that sends without end always has data: the time limit is checked after any of them.
        let runtime = Builder::new_current_thread().enable_all().event_interval(1).build()?;
        let client = Client::new(&self.settings, deadline);
        let mut failure = Failure::NotFound;
        for server in &self.settings.servers {
            let (replacement, file) = self.destination(build_id)?;
            let result = runtime.block_on(client.get(server, build_id, &file, watch));
            match result.and_then(|()| self.keep(server, build_id, replacement, file)) {
                Ok(image) => return Ok(image),
                Err(Failure::NotFound) => {}
                Err(stop @ (Failure::Interrupted | Failure::TotalTime(_))) => return Err(stop),
                Err(other) => failure = other,
            }
        }
        if let (Failure::NotFound, Some(cache)) = (&failure, &self.cache) {
            cache.add_missing(build_id);
        }
        Err(failure)
    }

    /// Creates a file in the cache without a name yet, or in memory without a cache.
    fn destination(&self, build_id: &BuildId) -> io::Result<(Option<Replacement>, File)> {
        let replacement = self.cache.as_ref().and_then(|cache| cache.create(build_id));
        let file = match &replacement {
            Some(replacement) => replacement.file().try_clone()?,
            None => File::from(memfd_create("heapbpf-debuginfo", MemfdFlags::CLOEXEC)?),
        };
        Ok((replacement, file))
    }

    fn keep(
        &self,
        server: &Server,
        build_id: &BuildId,
        replacement: Option<Replacement>,
        file: File,
    ) -> Result<Image, Failure> {
        let image = verified(file, build_id).ok_or_else(|| Failure::Build(server.to_string()))?;
        if let (Some(cache), Some(replacement)) = (&self.cache, replacement) {
            cache.commit(replacement);
        }
        Ok(image)
    }
}

/// Returns the image of a file with this build id; servers and caches may have any file.
fn verified(file: File, build_id: &BuildId) -> Option<Image> {
    let image = Image::new(file).ok()?;
    (Elf::read(&image).ok()?.build_id.as_ref() == Some(build_id)).then_some(image)
}
