//! Caches symbolized locations, and sends requests for others to the symbolizer process.

use std::cell::RefCell;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::names::{Resolve, ResolvedFrame};
use super::sandbox::{Defect, Depth, Engine, Interrupt, ModuleFile, Names, Role, Sandbox};
use crate::address::FileOffset;
use crate::ids::ModuleId;
use crate::model::{NamesFrom, Symbolization, SymbolizationFailure};
use crate::object::debug_files;
use crate::object::elf::BuildId;
use crate::object::image::Image;
use crate::object::module::Module;

const FAILURES_MAX: usize = 64;

#[derive(Default)]
pub struct Resolver {
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    modules: FxHashMap<ModuleId, FxHashMap<FileOffset, Arc<[ResolvedFrame]>>>,
    strings: FxHashSet<Arc<str>>,
    /// Modules whose debug information is not read again.
    shallow: FxHashSet<ModuleId>,
    /// `None`: files are parsed in this process.
    sandbox: Option<Sandbox>,
    failures: Vec<SymbolizationFailure>,
}

impl Resolver {
    /// Parses files in a process of its own, which the interrupt ends for good.
    pub fn sandboxed(interrupt: Interrupt) -> Self {
        let state = State { sandbox: Some(Sandbox::new(interrupt)), ..State::default() };
        Self { state: RefCell::new(state) }
    }

    /// For tests: the files must be trusted.
    pub fn in_process() -> Self {
        Self::default()
    }

    /// Frees the memory of parsed files; answers remain cached.
    pub fn release(&self) {
        if let Some(sandbox) = &mut self.state.borrow_mut().sandbox {
            sandbox.release();
        }
    }
}

impl Resolve for Resolver {
    fn resolve(&self, id: ModuleId, module: &Module, offsets: &[FileOffset]) -> Vec<Arc<[ResolvedFrame]>> {
        let state = &mut *self.state.borrow_mut();
        let mut answers = state.modules.remove(&id).unwrap_or_default();
        let mut unknown: Vec<FileOffset> =
            offsets.iter().copied().filter(|offset| !answers.contains_key(offset)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        if !unknown.is_empty() {
            state.ask(id, module, &unknown, &mut answers);
        }
        let found = offsets.iter().map(|offset| answers.get(offset).cloned().unwrap_or_default()).collect();
        state.modules.insert(id, answers);
        found
    }

    fn symbolization(&self) -> Symbolization {
        let state = self.state.borrow();
        let confinement = state.sandbox.as_ref().and_then(|sandbox| sandbox.confinement);
        let parts = confinement.into_iter().flat_map(|confinement| confinement.parts());
        let isolation = parts.map(|(name, active)| (name.to_owned(), active)).collect();
        Symbolization { isolation, failures: state.failures.clone() }
    }
}

impl State {
    /// Resolves distinct offsets in ascending order.
    fn ask(
        &mut self,
        id: ModuleId,
        module: &Module,
        offsets: &[FileOffset],
        answers: &mut FxHashMap<FileOffset, Arc<[ResolvedFrame]>>,
    ) {
        let (offsets, addresses): (Vec<FileOffset>, Vec<u64>) =
            offsets.iter().filter_map(|&offset| Some((offset, module.elf().ok()?.link_addr(offset)?.0))).unzip();
        let Ok(own) = module.image() else { return };
        if addresses.is_empty() {
            return;
        }
        if !own.unchanged() {
            return self.fail(module, "the file was changed after it was opened".to_owned(), NamesFrom::Nothing);
        }
        let (debug_file, shared) = separate_files(module, own);
        let debug_file = debug_file.iter().map(|image| (Role::DebugFile, image));
        let link = module.debug_link().map(|link| (Role::Linked(link.checksum), &link.image));
        let shared = shared.iter().map(|(id, image)| (Role::Shared(id.to_string()), image));
        let files: Vec<_> = debug_file.chain(link).chain([(Role::Own, own)]).chain(shared).collect();
        let attempts = [(Depth::DebugInformation, NamesFrom::SymbolTable), (Depth::SymbolTables, NamesFrom::Nothing)];
        let skipped = usize::from(self.shallow.contains(&id));
        let mut done: usize = 0;
        for (depth, next) in attempts.into_iter().skip(skipped) {
            let mut defects = Vec::new();
            let (rest, rest_addresses) = (&offsets[done..], &addresses[done..]);
            let mut named = 0;
            let strings = &mut self.strings;
            let take = |names: Names| {
                defects.extend_from_slice(&names.defects);
                named += keep(names, &rest[named..], strings, answers);
            };
            let result = match &mut self.sandbox {
                Some(sandbox) => sandbox.name(&files, depth, rest_addresses, take),
                None => {
                    name_in_process(&files, depth, rest_addresses, take);
                    Ok(())
                }
            };
            done += named;
            self.report_defects(module, &defects);
            let Err(failed) = result else { return };
            if failed.is_final() {
                // The rest may be requested again, with a new time limit.
                return self.fail(module, failed.to_string(), NamesFrom::Nothing);
            }
            self.fail(module, failed.to_string(), next);
            self.shallow.insert(id);
        }
        answers.extend(offsets[done..].iter().map(|&offset| (offset, Arc::default())));
    }

    fn report_defects(&mut self, module: &Module, defects: &[Defect]) {
        for (defect, reason) in [
            (Defect::Malformed, "its debug information is malformed"),
            (Defect::Compressed, "its compressed debug information is malformed or above 1 GiB"),
        ] {
            if defects.contains(&defect) {
                self.fail(module, reason.to_owned(), NamesFrom::SymbolTable);
            }
        }
        if defects.contains(&Defect::Checksum) {
            tracing::debug!(module = %module.path(), "the debug file that it names is of another build");
        }
    }

    /// Records a failure, once for each module.
    fn fail(&mut self, module: &Module, reason: String, names: NamesFrom) {
        tracing::debug!(module = %module.path(), %reason, "names are missing");
        if let Some(known) = self.failures.iter_mut().find(|known| *known.module == **module.path()) {
            if known.names != names {
                known.names = NamesFrom::Nothing;
                if known.reason != reason {
                    known.reason = format!("{}; then {reason}", known.reason);
                }
            }
        } else if self.failures.len() < FAILURES_MAX {
            self.failures.push(SymbolizationFailure { module: module.path().to_string(), reason, names });
        }
    }
}

/// The debug file with the module's build id, and the files that the module or its debug files share.
fn separate_files(module: &Module, own: &Image) -> (Option<Image>, Vec<(BuildId, Image)>) {
    let debug_file = module.elf().ok().and_then(debug_files::find_by_build_id);
    let referring = [debug_file.as_ref(), module.debug_link().map(|link| &link.image), Some(own)];
    let shared = referring.into_iter().flatten().filter_map(debug_files::find_shared).collect();
    (debug_file, shared)
}

fn name_in_process(files: &[(Role, &Image)], depth: Depth, addresses: &[u64], mut take: impl FnMut(Names)) {
    let file = |(role, image): &(Role, &Image)| {
        Some(ModuleFile { role: role.clone(), file: image.file().try_clone().ok()?, path: image.path() })
    };
    let mut engine = Engine::open(files.iter().filter_map(file).collect(), depth, false, None);
    let mut rest = addresses;
    while !rest.is_empty() {
        let names = engine.name(rest);
        rest = &rest[names.answers.len()..];
        take(names);
    }
}

/// Stores the answers for the first of these offsets, and returns their number.
fn keep(
    names: Names,
    offsets: &[FileOffset],
    strings: &mut FxHashSet<Arc<str>>,
    answers: &mut FxHashMap<FileOffset, Arc<[ResolvedFrame]>>,
) -> usize {
    let count = names.answers.len();
    let mut share = |text: Option<Arc<str>>| text.map(|text| intern(strings, text));
    let mut frame = |frame: ResolvedFrame| {
        let (function, file) = (share(frame.function), share(frame.file));
        ResolvedFrame { function, file, ..frame }
    };
    let chains = names.answers.into_iter().map(|frames| frames.into_iter().map(&mut frame).collect());
    answers.extend(offsets.iter().copied().zip(chains));
    count
}

fn intern(strings: &mut FxHashSet<Arc<str>>, text: Arc<str>) -> Arc<str> {
    if let Some(known) = strings.get(&text) {
        return Arc::clone(known);
    }
    strings.insert(Arc::clone(&text));
    text
}

#[cfg(test)]
mod tests;
