//! The names that a recording takes with it, so that it can be read where its modules are not, and who gives them out.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::entry::{NamedPlace, Names};
use crate::address::FileOffset;
use crate::ids::ModuleId;
use crate::model::Symbolization;
use crate::object::module::Module;
use crate::snapshot::Snapshot;
use crate::symbolize::{Resolve, ResolvedFrame};

impl NamedPlace {
    /// Bytes that it takes, and nearly so when it is written.
    pub fn size_bytes(&self) -> usize {
        let text = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        16 + self.frames.iter().map(|frame| 12 + text(&frame.function) + text(&frame.file)).sum::<usize>()
    }
}

/// The names of all places that a snapshot's stacks have. Asks for what the resolver knows already, when the snapshot was
/// named with it.
pub(crate) fn names(snapshot: &Snapshot, resolver: &dyn Resolve) -> Names {
    let mut offsets: FxHashMap<ModuleId, Vec<FileOffset>> = FxHashMap::default();
    for target in &snapshot.targets {
        let stacks = target.books.callsites.iter().filter_map(|callsite| callsite.stack.as_ref());
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
        let places = offsets.into_iter().zip(frames).filter(|(_, frames)| !frames.is_empty());
        named.extend(places.map(|(offset, frames)| NamedPlace { module, offset, frames }));
    }
    Names { places: named, symbolization: resolver.symbolization() }
}

/// Gives the names of a recording, and for what it has none those of another resolver.
pub struct RecordedNames<R> {
    names: FxHashMap<(ModuleId, FileOffset), Arc<[ResolvedFrame]>>,
    /// How the recording's names were found; `None` where it has none.
    symbolization: Option<Symbolization>,
    other: R,
}

impl<R> RecordedNames<R> {
    /// No names yet.
    pub fn new(other: R) -> Self {
        Self { names: FxHashMap::default(), symbolization: None, other }
    }

    /// Adds names.
    pub fn add(&mut self, names: Vec<NamedPlace>) {
        self.names.extend(names.into_iter().map(|place| ((place.module, place.offset), place.frames)));
    }

    /// Notes how the names were found.
    pub fn found_by(&mut self, symbolization: Symbolization) {
        self.symbolization = Some(symbolization);
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

impl<R: Resolve> Resolve for RecordedNames<R> {
    fn resolve(&self, id: ModuleId, module: &Module, offsets: &[FileOffset]) -> Vec<Arc<[ResolvedFrame]>> {
        let known = |offset: &FileOffset| self.names.get(&(id, *offset)).cloned();
        let unknown: Vec<FileOffset> = offsets.iter().copied().filter(|offset| known(offset).is_none()).collect();
        // Where the recording has names at all, what it does not name has none.
        let mut others =
            if self.is_empty() { self.other.resolve(id, module, &unknown) } else { Vec::new() }.into_iter();
        offsets.iter().map(|offset| known(offset).or_else(|| others.next()).unwrap_or_default()).collect()
    }

    fn symbolization(&self) -> Symbolization {
        match &self.symbolization {
            Some(symbolization) if !self.is_empty() => symbolization.clone(),
            _ => self.other.symbolization(),
        }
    }
}
