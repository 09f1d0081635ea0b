//! Owns the modules' open files, so that names survive the target's exit and upgrades of the files.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ObjectError;
use super::debug_files::{self, DebugLink};
use super::elf::{self, BuildId, Elf, Segment};
use super::image::{self, Identity, Image};
use crate::address::{FileOffset, TargetAddr};
use crate::ids::{ModuleId, Pid};
use crate::linux::proc::maps::{Device, Mapping, MappingName};
use crate::linux::proc::process::entry_path;

#[derive(Debug)]
pub struct Module {
    path: Arc<str>,
    contents: Result<Contents, ObjectError>,
    recorded: Recorded,
}

/// From a recording; the file may be missing.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    pub build_id: Option<BuildId>,
    pub code: Vec<Segment>,
}

#[derive(Debug)]
struct Contents {
    image: Image,
    elf: Result<Elf, ObjectError>,
    debug_link: Option<DebugLink>,
}

const OWN_ROOT: &str = "/";

impl Module {
    /// `path` is relative to the directory `root`.
    fn new(path: &str, root: &Path, image: Result<Image, ObjectError>) -> Self {
        let contents = image.map(|image| {
            let elf = Elf::read(&image);
            // Resolved now, because the target's root directory may be gone when names are needed.
            let debug_link =
                elf.as_ref().ok().and_then(|elf| debug_files::find_linked(root, Path::new(path), &image, elf));
            Contents { image, elf, debug_link }
        });
        Self { path: path.into(), contents, recorded: Recorded::default() }
    }

    pub fn recorded(path: &str, image: Result<Image, ObjectError>, recorded: Recorded) -> Self {
        Self { recorded, ..Self::new(path, Path::new(OWN_ROOT), image) }
    }

    /// In the first target seen with it, or a name such as `[vdso]`. Other targets may have other names for it.
    pub fn path(&self) -> &Arc<str> {
        &self.path
    }

    pub fn image(&self) -> Result<&Image, &ObjectError> {
        self.contents.as_ref().map(|contents| &contents.image)
    }

    pub fn file(&self) -> Option<&File> {
        self.image().ok().map(Image::file)
    }

    /// Found when the module was first seen.
    pub fn debug_link(&self) -> Option<&DebugLink> {
        self.contents.as_ref().ok()?.debug_link.as_ref()
    }

    pub fn elf(&self) -> Result<&Elf, &ObjectError> {
        self.contents.as_ref().and_then(|contents| contents.elf.as_ref())
    }

    pub fn build_id(&self) -> Option<&BuildId> {
        self.elf().map_or(self.recorded.build_id.as_ref(), |elf| elf.build_id.as_ref())
    }

    pub fn bias(&self, start: TargetAddr, offset: FileOffset) -> Option<u64> {
        match self.elf() {
            Ok(elf) => elf.bias(start, offset),
            Err(_) => elf::bias(&self.recorded.code, start, offset),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    File(Identity),
    /// A file that could not be opened, by its mapping.
    Unopened(Device, u64, PathBuf),
    /// A vDSO, by its bytes.
    Image(Vec<u8>),
    Special(String),
}

/// Shared with the threads that name them: a file stays open until the last one drops it.
#[derive(Clone, Debug, Default)]
pub struct Modules(Vec<Arc<Module>>);

impl Modules {
    /// `id` must be of the same session.
    pub fn get(&self, id: ModuleId) -> &Arc<Module> {
        &self.0[id.0 as usize]
    }
}

impl FromIterator<Arc<Module>> for Modules {
    fn from_iter<I: IntoIterator<Item = Arc<Module>>>(modules: I) -> Self {
        Self(modules.into_iter().collect())
    }
}

#[derive(Debug, Default)]
pub struct ModuleStore {
    modules: Modules,
    by_key: HashMap<Key, ModuleId>,
}

impl ModuleStore {
    /// `None` for anonymous memory. Must be called while the process is alive, and once per mapping.
    pub fn intern_mapping(&mut self, pid: Pid, mapping: &Mapping) -> Option<ModuleId> {
        match &mapping.name {
            MappingName::Anonymous => None,
            MappingName::File { path, .. } => {
                let image = image::open_mapped(pid, mapping, path);
                let key = match &image {
                    Ok(image) => Key::File(image.identity()),
                    Err(_) => Key::Unopened(mapping.device, mapping.inode, path.clone()),
                };
                Some(self.intern(key, &path.to_string_lossy(), &entry_path(pid, "root"), || image))
            }
            MappingName::Special(name) if name == "[vdso]" => {
                let (key, image) = match image::read_vdso(pid, mapping) {
                    Ok(bytes) => (Key::Image(bytes.clone()), Ok(bytes)),
                    Err(error) => (Key::Special(name.clone()), Err(error)),
                };
                let root = Path::new(OWN_ROOT);
                Some(self.intern(key, name, root, || image.and_then(|bytes| Image::from_bytes(&bytes))))
            }
            MappingName::Special(name) => {
                Some(self.intern(Key::Special(name.clone()), name, Path::new(OWN_ROOT), || Err(ObjectError::NoFile)))
            }
        }
    }

    pub fn get(&self, id: ModuleId) -> &Arc<Module> {
        self.modules.get(id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (ModuleId, &Arc<Module>)> {
        (0..).map(ModuleId).zip(&self.modules.0)
    }

    pub fn share(&self) -> Modules {
        self.modules.clone()
    }

    fn intern(
        &mut self,
        key: Key,
        path: &str,
        root: &Path,
        open: impl FnOnce() -> Result<Image, ObjectError>,
    ) -> ModuleId {
        let modules = &mut self.modules.0;
        *self.by_key.entry(key).or_insert_with(|| {
            // Each module takes memory, so ids cannot run out.
            let id = ModuleId(u32::try_from(modules.len()).unwrap_or(u32::MAX));
            modules.push(Arc::new(Module::new(path, root, open())));
            id
        })
    }
}

#[cfg(test)]
impl ModuleStore {
    pub(crate) fn intern_path(&mut self, path: &Path) -> Result<ModuleId, ObjectError> {
        let image = image::open_regular(path)?;
        Ok(self.intern(Key::File(image.identity()), &path.to_string_lossy(), Path::new(OWN_ROOT), || Ok(image)))
    }
}

#[cfg(test)]
mod tests;
