//! Owns the modules' open files, so that names survive the target's exit and upgrades of the files.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use heapbpf_base::address::{FileOffset, LinkAddr, TargetAddr};
use heapbpf_base::ids::{ModuleId, Pid};
use heapbpf_base::language::Language;
use heapbpf_base::language::facts::Functions;
use heapbpf_base::shown;
use heapbpf_linux::proc::maps::{Device, Mapping, MappingName, is_stubs};
use tracing::warn;

use super::ObjectError;
use super::debug_files::{self, DebugLink, NamedFiles};
use super::elf::{self, BuildId, Elf, Segment};
use super::generated::{GENERATED, Generated};
use super::image::{self, Identity, Image};
use super::interpreted::CodeTable;
use super::symbol_sections::SymbolBudget;

#[derive(Debug)]
pub struct Module {
    path: Arc<str>,
    contents: Result<Contents, ObjectError>,
    recorded: Recorded,
    /// Of a module that stands for generated code.
    generated: Option<Generated>,
    /// Of the module that stands for interpreted code.
    codes: Option<Arc<CodeTable>>,
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
    named_files: Option<NamedFiles>,
}

impl Module {
    /// `pid` is a process that has mapped it, in whose directories its debug file is searched; heapbpf's own for others.
    fn new(path: &str, pid: Pid, image: Result<Image, ObjectError>, symbols: &mut SymbolBudget) -> Self {
        let contents = image.map(|image| {
            let elf = Elf::read(&image);
            let image = match &elf {
                Ok(elf) if !symbols.take(path, pid, elf) => image.without_symbols(),
                _ => image,
            };
            // Resolved now, because the target's root directory may be gone when names are needed.
            let debug_link =
                elf.as_ref().ok().and_then(|elf| debug_files::find_linked(pid, Path::new(path), &image, elf));
            let named_files = elf
                .as_ref()
                .ok()
                .and_then(|elf| NamedFiles::find(pid, Path::new(path), &image, elf, debug_link.as_ref()));
            Contents { image, elf, debug_link, named_files }
        });
        Self { path: path.into(), contents, recorded: Recorded::default(), generated: None, codes: None }
    }

    pub fn recorded(path: &str, image: Result<Image, ObjectError>, recorded: Recorded) -> Self {
        Self { recorded, ..Self::new(path, own_pid(), image, &mut SymbolBudget::default()) }
    }

    fn of_generated(generated: Generated) -> Self {
        Self {
            generated: Some(generated),
            ..Self::new(GENERATED, own_pid(), Err(ObjectError::NoFile), &mut SymbolBudget::default())
        }
    }

    fn of_functions(path: &str, codes: Arc<CodeTable>) -> Self {
        Self {
            codes: Some(codes),
            ..Self::new(path, own_pid(), Err(ObjectError::NoFile), &mut SymbolBudget::default())
        }
    }

    /// The language whose functions it stands for, which have no file. Offsets in it are words of stacks.
    pub(crate) fn language(&self) -> Option<Language> {
        Language::of_module(&self.path)
    }

    /// `None` in a replay, and for other modules.
    pub(crate) fn codes(&self) -> Option<&CodeTable> {
        self.codes.as_deref()
    }

    /// Whether it stands for the generated code of a process. Offsets in it are addresses.
    pub fn is_generated(&self) -> bool {
        &*self.path == GENERATED
    }

    /// `None` in a replay, and for files.
    pub(crate) fn generated(&self) -> Option<&Generated> {
        self.generated.as_ref()
    }

    /// In the first target seen with it, or a name such as `[vdso]`. Other targets may have other names for it.
    pub fn path(&self) -> &Arc<str> {
        &self.path
    }

    pub fn image(&self) -> Result<&Image, &ObjectError> {
        self.contents.as_ref().map(|contents| &contents.image)
    }

    /// The file itself, for probes.
    pub fn file(&self) -> Option<&File> {
        self.image().ok().map(Image::original)
    }

    /// Found when the module was first seen.
    pub fn debug_link(&self) -> Option<&DebugLink> {
        self.contents.as_ref().ok()?.debug_link.as_ref()
    }

    /// Files with debug information that it names, besides those of its debug link.
    pub(crate) fn named_files(&self) -> Option<&NamedFiles> {
        self.contents.as_ref().ok()?.named_files.as_ref()
    }

    pub fn elf(&self) -> Result<&Elf, &ObjectError> {
        self.contents.as_ref().and_then(|contents| contents.elf.as_ref())
    }

    pub fn build_id(&self) -> Option<&BuildId> {
        self.elf().map_or(self.recorded.build_id.as_ref(), |elf| elf.build_id.as_ref())
    }

    /// By the file, or by what a recording has of it.
    pub fn link_addr(&self, offset: FileOffset) -> Option<LinkAddr> {
        match self.elf() {
            Ok(elf) => elf.link_addr(offset),
            Err(_) => self.recorded.code.iter().find_map(|segment| segment.link_addr(offset)),
        }
    }

    /// As [`link_addr`](Self::link_addr), the other way round.
    pub fn file_offset(&self, address: LinkAddr) -> Option<FileOffset> {
        match self.elf() {
            Ok(elf) => elf.file_offset(address),
            Err(_) => self.recorded.code.iter().find_map(|segment| segment.file_offset(address)),
        }
    }

    /// Difference, wrapping, between the address of the file's first byte as its first segment is mapped, and as the code at this offset
    /// is: linkers may have moved segments apart.
    pub(crate) fn first_segment_delta(&self, offset: FileOffset) -> Option<u64> {
        let elf = self.elf().ok()?;
        let first = elf.segments.first()?;
        // With a bias of 0.
        let by_code = elf.bias(TargetAddr(0), offset)?.wrapping_neg().wrapping_sub(offset.0);
        Some(first.address.0.wrapping_sub(first.offset.0).wrapping_sub(by_code))
    }

    /// The build id by which to search for a debug file; `None` if the module has line information itself.
    pub(crate) fn wanted_build_id(&self) -> Option<&BuildId> {
        match self.elf() {
            Ok(elf) => debug_files::wanted_build_id(elf),
            Err(_) => self.build_id(),
        }
    }

    pub fn bias(&self, start: TargetAddr, offset: FileOffset) -> Option<u64> {
        match self.elf() {
            Ok(elf) => elf.bias(start, offset),
            Err(_) => elf::bias(self.recorded.code.iter(), start, offset),
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

    pub(crate) fn len(&self) -> usize {
        self.0.len()
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
    /// Of languages, by their paths.
    functions: Vec<(&'static str, ModuleId)>,
    codes: Arc<CodeTable>,
    /// Directories of file systems that did not answer.
    unanswered: BTreeSet<Arc<str>>,
    /// Of each process, for the modules that it is the first to map.
    symbols: HashMap<Pid, SymbolBudget>,
}

impl ModuleStore {
    /// `None` for generated code. Must be called while the process is alive, and once per mapping.
    pub fn intern_mapping(&mut self, pid: Pid, mapping: &Mapping) -> Option<ModuleId> {
        match &mapping.name {
            MappingName::Anonymous => None,
            MappingName::File { path, .. } => {
                let image = image::open_mapped(pid, mapping, path);
                if let Err(ObjectError::Unanswered(directory)) = &image {
                    self.note_unanswered(directory);
                }
                if is_memory(path) && image.as_ref().is_ok_and(|image| Elf::read(image).is_err()) {
                    return None;
                }
                let key = match &image {
                    Ok(image) => Key::File(image.identity()),
                    Err(_) => Key::Unopened(mapping.device, mapping.inode, path.clone()),
                };
                Some(self.intern(key, &shown::os_text(path), pid, || image.map(Image::kept)))
            }
            MappingName::Special(name) if name == "[vdso]" => {
                let (key, image) = match image::read_vdso(pid, mapping) {
                    Ok(bytes) => (Key::Image(bytes.clone()), Ok(bytes)),
                    Err(error) => (Key::Special(name.clone()), Err(error)),
                };
                Some(self.intern(key, name, own_pid(), || image.and_then(|bytes| Image::from_bytes(&bytes))))
            }
            MappingName::Special(name) => {
                Some(self.intern(Key::Special(name.clone()), name, own_pid(), || Err(ObjectError::NoFile)))
            }
        }
    }

    fn note_unanswered(&mut self, directory: &Arc<str>) {
        if self.unanswered.insert(Arc::clone(directory)) {
            warn!("`{directory}` does not answer: what programs have mapped from it is recorded without names");
        }
    }

    pub fn get(&self, id: ModuleId) -> &Arc<Module> {
        self.modules.get(id)
    }

    /// Adds a module that stands for the generated code of a process.
    pub(crate) fn add_generated(&mut self) -> ModuleId {
        self.add(Module::of_generated(Generated::default()))
    }

    /// Replaces what is known of a process's generated code. Earlier snapshots keep what was known then.
    pub(crate) fn set_generated(&mut self, id: ModuleId, generated: Generated) {
        self.modules.0[id.0 as usize] = Arc::new(Module::of_generated(generated));
    }

    /// The same one for all processes.
    pub(crate) fn functions_module(&mut self, functions: &'static Functions) -> ModuleId {
        if let Some((_, known)) = self.functions.iter().find(|(path, _)| *path == functions.module) {
            return *known;
        }
        let id = self.add(Module::of_functions(functions.module, Arc::clone(&self.codes)));
        self.functions.push((functions.module, id));
        id
    }

    pub(crate) fn codes(&self) -> &CodeTable {
        &self.codes
    }

    pub fn iter(&self) -> impl Iterator<Item = (ModuleId, &Arc<Module>)> {
        (0..).map(ModuleId).zip(&self.modules.0)
    }

    /// Another program of this number has a budget of its own.
    pub(crate) fn forget_process(&mut self, pid: Pid) {
        self.symbols.remove(&pid);
    }

    pub fn share(&self) -> Modules {
        self.modules.clone()
    }

    fn intern(
        &mut self,
        key: Key,
        path: &str,
        pid: Pid,
        open: impl FnOnce() -> Result<Image, ObjectError>,
    ) -> ModuleId {
        if let Some(known) = self.by_key.get(&key) {
            return *known;
        }
        let module = Module::new(path, pid, open(), self.symbols.entry(pid).or_default());
        let id = self.add(module);
        self.by_key.insert(key, id);
        id
    }

    fn add(&mut self, module: Module) -> ModuleId {
        // Each module takes memory, so ids cannot run out.
        let id = ModuleId(u32::try_from(self.modules.0.len()).unwrap_or(u32::MAX));
        self.modules.0.push(Arc::new(module));
        id
    }
}

fn own_pid() -> Pid {
    Pid(std::process::id())
}

/// Whether a mapped file is shared memory, in which just-in-time compilers generate code.
fn is_memory(path: &Path) -> bool {
    let text = shown::os_text(path);
    let is_shared =
        text == "/dev/zero" || ["/memfd:", "/SYSV", "/anon_hugepage"].iter().any(|name| text.starts_with(name));
    is_shared && !is_stubs(path)
}

#[cfg(test)]
impl ModuleStore {
    pub(crate) fn intern_path(&mut self, path: &Path) -> Result<ModuleId, ObjectError> {
        let image = image::open_regular(path)?;
        Ok(self.intern(Key::File(image.identity()), &shown::os_text(path), own_pid(), || Ok(image)))
    }
}

#[cfg(test)]
mod tests;
