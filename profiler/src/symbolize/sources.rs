//! Where names may come from, besides the modules themselves: directories of debug files, and servers.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use heapbpf_ledger::model::{Download, base_name};
use rustc_hash::{FxHashMap, FxHashSet};

use super::sandbox::{Interrupt, Role};
use crate::debuginfod::{Debuginfod, Failure, Watch};
use crate::object::debug_files::{self, DebugLink};
use crate::object::elf::BuildId;
use crate::object::image::Image;
use crate::object::module::Module;

/// Limits for all downloads of a resolver.
const DOWNLOADS_MAX: usize = 32;
const DOWNLOAD_TIME_MAX: Duration = Duration::from_secs(300);
const DOWNLOAD_BYTES_MAX: u64 = 4 << 30;

type Report = dyn Fn(&str) + Send + Sync;

/// What the user allows.
#[derive(Clone, Default)]
pub(crate) struct Sources {
    /// Searched before the directories of distributions.
    pub(crate) directories: Vec<PathBuf>,
    pub(crate) debuginfod: Option<Arc<Debuginfod>>,
    /// Whether it may be asked; otherwise only files in its cache are used.
    pub(crate) may_download: bool,
    /// Receives lines of progress for the terminal.
    pub(crate) report: Option<Arc<Report>>,
    /// Nothing is symbolized.
    pub(crate) is_off: bool,
    /// Scripts are named as they are, without their source maps.
    pub(crate) no_source_maps: bool,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { directories, debuginfod, is_off, no_source_maps, .. } = self;
        let fields = (directories, debuginfod, is_off, no_source_maps);
        f.debug_tuple("Sources").field(&fields).finish()
    }
}

impl Sources {
    /// Uses files of earlier downloads only: for views of a running recording, which must not wait.
    pub(crate) fn without_downloads(self) -> Self {
        Self { may_download: false, ..self }
    }
}

/// The files of debug information that belong to a module.
#[derive(Debug, Default)]
pub(super) struct SeparateFiles {
    pub(super) debug_file: Option<(Role, Image)>,
    pub(super) link: Option<DebugLink>,
    pub(super) shared: Vec<(BuildId, Image)>,
    /// Debug information of all units.
    pub(super) package: Option<Image>,
}

/// Finds debug files, and downloads them.
#[derive(Debug, Default)]
pub(super) struct Finder {
    pub(super) sources: Sources,
    tried: FxHashSet<BuildId>,
    images: FxHashMap<BuildId, Image>,
    pub(super) downloads: Vec<Download>,
    spent: Duration,
    bytes: u64,
}

impl Finder {
    pub(super) fn new(sources: Sources) -> Self {
        Self { sources, ..Self::default() }
    }

    pub(super) fn find(&self, module: &Module) -> SeparateFiles {
        let given = &self.sources.directories;
        let own = module.image().ok();
        let debug_file = module.wanted_build_id().and_then(|build_id| {
            let found = debug_files::find_given(given, build_id).map(|image| (Role::UnverifiedDebugFile, image));
            let found = found.or_else(|| Some((Role::DebugFile, debug_files::find_installed(build_id)?)));
            found.or_else(|| Some((Role::UnverifiedDebugFile, self.downloaded(build_id)?)))
        });
        let link = own
            .zip(module.elf().ok())
            .and_then(|(own, elf)| debug_files::find_linked_in(given, Path::new(&**module.path()), own, elf));
        let referring = [debug_file.as_ref().map(|(_, image)| image), link.as_ref().map(|link| &link.image)];
        let referring = referring.into_iter().chain([module.debug_link().map(|link| &link.image), own]);
        let links = referring.flatten().filter_map(debug_files::shared_link);
        let shared = links.filter_map(|link| {
            let image = link.find(given).or_else(|| self.downloaded(&link.build_id))?;
            Some((link.build_id, image))
        });
        let shared = shared.collect();
        let package = module.named_files().and_then(|named| match &named.package {
            Some(package) => package.try_clone().ok(),
            None => debug_files::find_package_in(given, Path::new(&**module.path())),
        });
        SeparateFiles { debug_file, link, shared, package }
    }

    fn downloaded(&self, build_id: &BuildId) -> Option<Image> {
        match self.images.get(build_id) {
            Some(image) => image.try_clone().ok(),
            None => self.sources.debuginfod.as_ref()?.cached(build_id),
        }
    }

    /// Downloads the debug file of a module, and the file that it shares. Returns whether there are new files.
    pub(super) fn download(&mut self, module: &Module, interrupt: &Interrupt) -> bool {
        let Some(build_id) = module.wanted_build_id() else { return false };
        // What is installed is as good.
        let is_known = debug_files::find_given(&self.sources.directories, build_id).is_some()
            || debug_files::find_installed(build_id).is_some();
        let mut is_new = false;
        if !is_known && self.downloaded(build_id).is_none() {
            is_new |= self.download_one(module, build_id, interrupt);
        }
        let files = self.find(module);
        let debug_file = files.debug_file.as_ref().map(|(_, image)| image);
        for image in [debug_file, module.image().ok()].into_iter().flatten() {
            let Some(link) = debug_files::shared_link(image) else { continue };
            if link.find(&self.sources.directories).is_none() && self.downloaded(&link.build_id).is_none() {
                is_new |= self.download_one(module, &link.build_id, interrupt);
            }
        }
        is_new
    }

    fn download_one(&mut self, module: &Module, build_id: &BuildId, interrupt: &Interrupt) -> bool {
        let Some(debuginfod) = self.sources.debuginfod.clone().filter(|_| self.sources.may_download) else {
            return false;
        };
        let lines = self.sources.report.clone();
        let report = |line: &str| lines.iter().for_each(|lines| lines(line));
        let left = DOWNLOAD_TIME_MAX.saturating_sub(self.spent);
        let is_exhausted = left.is_zero() || self.bytes >= DOWNLOAD_BYTES_MAX || self.tried.len() >= DOWNLOADS_MAX;
        if is_exhausted || !self.tried.insert(build_id.clone()) {
            return false;
        }
        let name = base_name(module.path()).to_owned();
        let start = Instant::now();
        let mut last = start;
        report(&format!("downloading debug information of `{name}`, build id {build_id}"));
        let mut progress = |bytes: u64, total: Option<u64>| {
            if last.elapsed() >= Duration::from_secs(2) {
                last = Instant::now();
                let total = total.map(|total| format!(" of {}", bytesize::ByteSize(total))).unwrap_or_default();
                report(&format!("downloading debug information of `{name}`: {}{total}", bytesize::ByteSize(bytes)));
            }
        };
        let mut watch = Watch { progress: &mut progress, is_interrupted: &|| interrupt.is_raised() };
        let result = debuginfod.download(build_id, left, &mut watch);
        self.spent += start.elapsed();
        let bytes = result.as_ref().map_or(0, |image| image.identity().size_bytes);
        let failure = result.as_ref().err().map(Failure::to_string);
        match &failure {
            Some(reason) => report(&format!("cannot download debug information of `{name}`: {reason}")),
            None => report(&format!("downloaded debug information of `{name}`: {}", bytesize::ByteSize(bytes))),
        }
        let (module, build) = (module.path().to_string(), build_id.to_string());
        self.downloads.push(Download { module, build_id: build, bytes, failure });
        self.bytes = self.bytes.saturating_add(bytes);
        let Ok(image) = result else { return false };
        self.images.insert(build_id.clone(), image);
        true
    }
}
