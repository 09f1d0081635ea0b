//! The symbolized locations of a recording, and the recorded modules that this machine has.

use std::path::Path;
use std::sync::Arc;

use heapbpf_base::address::FileOffset;
use heapbpf_base::ids::ModuleId;
use heapbpf_ledger::model::{SymbolSource, Symbolization};
use rustc_hash::FxHashMap;

use super::entry::{ModuleFacts, NamedLocation, Names};
use crate::object::ObjectError;
use crate::object::elf::BuildId;
use crate::object::image::open_recorded;
use crate::object::module::{Module, Modules, Recorded};
use crate::snapshot::Snapshot;
use crate::symbolize::{Resolve, ResolvedFrame};

impl NamedLocation {
    /// Approximate size of the names in memory and in the file.
    pub fn size_bytes(&self) -> usize {
        let text = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        16 + self.frames.iter().map(|frame| 12 + text(&frame.function) + text(&frame.file)).sum::<usize>()
    }
}

/// Symbolizes all locations of a snapshot's stacks. Cheap if the resolver has symbolized the snapshot before.
pub(crate) fn names(snapshot: &Snapshot, resolver: &dyn Resolve) -> Names {
    let mut offsets: FxHashMap<ModuleId, Vec<FileOffset>> = FxHashMap::default();
    for target in &snapshot.targets {
        let stacks = target.ledger.callsites.iter().filter_map(|callsite| callsite.stack.as_ref());
        for location in
            stacks.flat_map(|stack| stack.frames.iter()).filter_map(|frame| target.space.lookup(frame.inside_call()))
        {
            offsets.entry(location.module).or_default().push(location.offset);
        }
    }
    let mut modules: Vec<_> = offsets.into_iter().collect();
    modules.sort_unstable_by_key(|(module, _)| *module);
    let mut named = Vec::new();
    for (module, mut offsets) in modules {
        offsets.sort_unstable();
        offsets.dedup();
        let frames = resolver.resolve(module, snapshot.modules.get(module), &offsets);
        let locations = offsets.into_iter().zip(frames).filter(|(_, frames)| !frames.is_empty());
        named.extend(locations.map(|(offset, frames)| NamedLocation { module, offset, frames }));
    }
    Names { locations: named, symbolization: resolver.symbolization() }
}

/// Resolves the locations of a recording, and others with another resolver if the recording has no names at all.
pub struct RecordedNames<R> {
    names: FxHashMap<(ModuleId, FileOffset), Arc<[ResolvedFrame]>>,
    symbolization: Option<Symbolization>,
    other: R,
    /// Whether locations without a name are resolved again.
    is_again: bool,
}

impl<R> RecordedNames<R> {
    pub fn new(other: R) -> Self {
        Self { names: FxHashMap::default(), symbolization: None, other, is_again: false }
    }

    /// Also resolves locations that have no name in a recording with names.
    pub(crate) fn again(self) -> Self {
        Self { is_again: true, ..self }
    }

    /// Whether the files of modules are needed.
    pub(crate) fn needs_files(&self) -> bool {
        self.is_again || self.is_empty()
    }

    pub fn add(&mut self, names: Vec<NamedLocation>) {
        self.names.extend(names.into_iter().map(|location| ((location.module, location.offset), location.frames)));
    }

    pub fn set_symbolization(&mut self, symbolization: Symbolization) {
        self.symbolization = Some(symbolization);
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

impl<R: Resolve> Resolve for RecordedNames<R> {
    fn resolve(&self, id: ModuleId, module: &Module, offsets: &[FileOffset]) -> Vec<Arc<[ResolvedFrame]>> {
        let known = |offset: &FileOffset| self.names.get(&(id, *offset)).cloned();
        let has_name = |frames: &[ResolvedFrame]| frames.iter().any(|frame| frame.function.is_some());
        // In a symbolized recording, a location without a name has no name, unless it is resolved again.
        let is_open = |offset: &&FileOffset| {
            known(offset).is_none_or(|frames| self.is_again && !(has_name(&frames) && frames[0].line.is_some()))
        };
        let open: Vec<FileOffset> =
            if self.needs_files() { offsets.iter().filter(is_open).copied().collect() } else { Vec::new() };
        let found = self.other.resolve(id, module, &open);
        let found: FxHashMap<FileOffset, Arc<[ResolvedFrame]>> = open.into_iter().zip(found).collect();
        let answer = |offset: &FileOffset| match (known(offset), found.get(offset)) {
            (None, found) => found.cloned().unwrap_or_default(),
            (Some(_), Some(found)) if has_name(found) => Arc::clone(found),
            (Some(known), _) => known,
        };
        offsets.iter().map(answer).collect()
    }

    fn find_more(&self, modules: &[(ModuleId, &Module)]) -> bool {
        self.needs_files() && self.other.find_more(modules)
    }

    fn symbols_of(&self, module: &Module) -> Option<SymbolSource> {
        self.other.symbols_of(module)
    }

    fn symbolization(&self) -> Symbolization {
        match &self.symbolization {
            Some(symbolization) if !self.is_empty() => {
                let others = if self.is_again { self.other.symbolization().downloads } else { Vec::new() };
                let downloads = symbolization.downloads.iter().cloned().chain(others).collect();
                Symbolization { downloads, ..symbolization.clone() }
            }
            _ => self.other.symbolization(),
        }
    }
}

#[derive(Debug)]
pub struct Found {
    /// All modules in their order; modules that were not found have no file.
    pub modules: Modules,
    pub missing: Vec<(String, &'static str)>,
}

/// Opens the modules of a recording if they are unchanged on this machine. Files are opened only if `needed`.
pub fn find(facts: &[ModuleFacts], needed: bool) -> Found {
    let mut missing = Vec::new();
    let modules = facts.iter().map(|facts| {
        let absent = || Module::recorded(&facts.path, Err(ObjectError::NoFile), recorded(facts));
        if !needed || !facts.path.starts_with('/') {
            return Arc::new(absent());
        }
        match open(facts) {
            Ok(module) => Arc::new(module),
            Err(why) => {
                missing.push((facts.path.clone(), why));
                Arc::new(absent())
            }
        }
    });
    let modules = modules.collect();
    Found { modules, missing }
}

fn recorded(facts: &ModuleFacts) -> Recorded {
    Recorded { build_id: facts.build_id.as_deref().and_then(BuildId::recorded), code: facts.code.clone() }
}

fn open(facts: &ModuleFacts) -> Result<Module, &'static str> {
    let image = open_recorded(Path::new(&facts.path)).map_err(|_| "not found")?;
    let identity = image.identity();
    let module = Module::recorded(&facts.path, Ok(image), recorded(facts));
    let is_same = match (&facts.build_id, module.build_id()) {
        (Some(recorded), Some(own)) => recorded.as_slice() == own.as_bytes(),
        (None, None) => facts.file == Some((identity.size_bytes, identity.modified.0, identity.modified.1)),
        _ => false,
    };
    if is_same { Ok(module) } else { Err("another build") }
}
