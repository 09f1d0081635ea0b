//! Caches symbolized locations, and sends requests for others to the symbolizer process.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use heapbpf_base::address::{FileOffset, LinkAddr};
use heapbpf_base::ids::ModuleId;
use heapbpf_ledger::model::{NamesFrom, SymbolSource, Symbolization, SymbolizationFailure, base_name};
use rustc_hash::{FxHashMap, FxHashSet};

use super::generated::{Format, Place};
use super::names::{Resolve, ResolvedFrame};
use super::sandbox::{
    Defect, Depth, Engine, Files, Interrupt, MISSING_MAX, ModuleFile, Names, Question, Role, Sandbox,
};
use super::sources::{Finder, Sources};
use super::translate::{Original, Translations, reason_of};
use crate::object::ObjectError;
use crate::object::elf::{Elf, Segment};
use crate::object::generated::Generated;
use crate::object::image::Image;
use crate::object::interpreted::CodeLocation;
use crate::object::module::Module;
use crate::object::script::{Script, Spot};

const FAILURES_MAX: usize = 64;

#[derive(Default)]
pub struct Resolver {
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    modules: FxHashMap<ModuleId, FxHashMap<FileOffset, Arc<[ResolvedFrame]>>>,
    strings: FxHashSet<Arc<str>>,
    /// Sources of scripts.
    translations: Translations,
    /// Modules whose debug information is not read again.
    shallow: FxHashSet<ModuleId>,
    /// `None`: files are parsed in this process.
    sandbox: Option<Sandbox>,
    failures: Vec<SymbolizationFailure>,
    finder: Finder,
    interrupt: Interrupt,
}

impl Resolver {
    /// Parses files in a process of its own, which the interrupt ends for good.
    pub(crate) fn sandboxed(interrupt: Interrupt, sources: Sources) -> Self {
        let sandbox = Some(Sandbox::new(interrupt.clone()));
        let state = State { sandbox, interrupt, finder: Finder::new(sources), ..State::default() };
        Self { state: RefCell::new(state) }
    }

    /// For tests: the files must be trusted.
    pub fn in_process() -> Self {
        Self::default()
    }

    /// Executable segments of a module whose own file is missing, from its debug file. Offsets and sizes in the file are invalid.
    pub(crate) fn debug_code(&self, module: &Module) -> Vec<Segment> {
        let files = self.state.borrow().finder.find(module);
        let elf = files.debug_file.and_then(|(_, image)| Elf::read(&image).ok());
        elf.map(|elf| elf.code().copied().collect()).unwrap_or_default()
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
        if let Some(codes) = module.codes() {
            let mut chains: Vec<Vec<CodeLocation>> = offsets.iter().map(|offset| codes.locate(offset.0)).collect();
            let sources = &state.finder.sources;
            if !sources.is_off && !sources.no_source_maps {
                state.translate(&mut chains);
            }
            return chains.into_iter().map(located).collect();
        }
        if state.finder.sources.is_off {
            return vec![Arc::default(); offsets.len()];
        }
        let mut answers = state.modules.remove(&id).unwrap_or_default();
        let mut unknown: Vec<FileOffset> =
            offsets.iter().copied().filter(|offset| !answers.contains_key(offset)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        match module.generated() {
            _ if unknown.is_empty() => {}
            Some(generated) => state.ask_generated(module, generated, &unknown, &mut answers),
            None => state.ask(id, module, &unknown, &mut answers),
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
        let downloads = state.finder.downloads.clone();
        let crashes = state.sandbox.as_ref().map_or(0, |sandbox| sandbox.crashes);
        Symbolization { isolation, failures: state.failures.clone(), crashes, modules: Vec::new(), downloads }
    }

    fn find_more(&self, modules: &[(ModuleId, &Module)]) -> bool {
        let state = &mut *self.state.borrow_mut();
        let mut is_new = false;
        for (id, module) in modules {
            if !state.finder.sources.is_off && state.finder.download(module, &state.interrupt) {
                state.modules.remove(id);
                is_new = true;
            }
        }
        is_new
    }

    fn symbolizes(&self) -> bool {
        !self.state.borrow().finder.sources.is_off
    }

    fn is_interrupted(&self) -> bool {
        self.state.borrow().interrupt.is_raised()
    }

    fn symbols_of(&self, module: &Module) -> Option<SymbolSource> {
        let elf = module.elf().ok()?;
        let files = self.state.borrow().finder.find(module);
        let has = |section: &str| elf.section(section).is_some();
        let is_separate = files.debug_file.is_some() || files.link.is_some() || module.debug_link().is_some();
        Some(if has(".debug_info") || is_separate {
            SymbolSource::DebugInformation
        } else if has(".symtab") {
            SymbolSource::SymbolTable
        } else if has(".gnu_debugdata") {
            SymbolSource::MiniDebugInfo
        } else if elf.eh_frame_index.is_some() || has(".eh_frame") {
            SymbolSource::UnwindTables
        } else {
            SymbolSource::Exports
        })
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
        if let Err(error @ (ObjectError::Silent | ObjectError::Unanswered(_))) = module.image() {
            self.fail(module, error.to_string(), NamesFrom::Nothing);
        }
        let (offsets, addresses): (Vec<FileOffset>, Vec<u64>) =
            offsets.iter().filter_map(|&offset| Some((offset, module.link_addr(offset)?.0))).unzip();
        if addresses.is_empty() {
            return;
        }
        let own = module.image().ok();
        if own.is_some_and(|own| !own.unchanged()) {
            return self.fail(module, "the file was changed after it was opened".to_owned(), NamesFrom::Nothing);
        }
        let found = self.finder.find(module);
        let debug_file = found.debug_file.iter().map(|(role, image)| (role.clone(), image));
        let links = found.link.iter().chain(module.debug_link());
        let link = links.map(|link| (Role::Linked(link.checksum), &link.image));
        let named = module.named_files();
        let shared = found.shared.iter().chain(named.and_then(|named| named.shared.as_ref()));
        let shared = shared.map(|(id, image)| (Role::Shared(id.to_string()), image));
        let package = found.package.iter().map(|image| (Role::Package, image));
        let files = debug_file.chain(link).chain(own.map(|own| (Role::Own, own))).chain(shared).chain(package);
        let mut files: Vec<_> = files.collect();
        if files.is_empty() {
            return;
        }
        let missing = self.ask_files(id, module, &files, (&offsets, &addresses), answers);
        let found = missing.paths.iter().filter_map(|path| named?.open(Path::new(path)));
        let found: Vec<Image> = found.collect();
        let mut count = missing.count;
        if !found.is_empty() {
            files.extend(found.iter().map(|image| (Role::Split, image)));
            count = self.ask_files(id, module, &files, (&offsets, &addresses), answers).count;
        }
        if count > 0 {
            self.fail(module, missing_files(count, missing.paths.first(), module), NamesFrom::SymbolTable);
        }
    }

    /// As above, by these files. Returns which others are needed.
    fn ask_files(
        &mut self,
        id: ModuleId,
        module: &Module,
        files: &[(Role, &Image)],
        (offsets, addresses): (&[FileOffset], &[u64]),
        answers: &mut FxHashMap<FileOffset, Arc<[ResolvedFrame]>>,
    ) -> Missing {
        let attempts = [(Depth::DebugInformation, NamesFrom::SymbolTable), (Depth::SymbolTables, NamesFrom::Nothing)];
        let skipped = usize::from(self.shallow.contains(&id));
        let mut done: usize = 0;
        let mut missing = Missing::default();
        for (depth, next) in attempts.into_iter().skip(skipped) {
            let mut defects = Vec::new();
            let (rest, rest_addresses) = (&offsets[done..], &addresses[done..]);
            let mut named = 0;
            let strings = &mut self.strings;
            let take = |mut names: Names| {
                defects.extend_from_slice(&names.defects);
                missing.add(&mut names);
                named += keep(names, module, &rest[named..], strings, answers);
            };
            let result = match &mut self.sandbox {
                Some(sandbox) => sandbox.name(files, depth, Question::Linked(rest_addresses), take),
                None => {
                    name_in_process(files, depth, Question::Linked(rest_addresses), take);
                    Ok(())
                }
            };
            done += named;
            self.report_defects(module, &defects);
            let Err(failed) = result else { return missing };
            if failed.is_final() {
                // The rest may be requested again, with a new time limit.
                self.fail(module, failed.to_string(), NamesFrom::Nothing);
                return missing;
            }
            self.fail(module, failed.to_string(), next);
            self.shallow.insert(id);
        }
        // An earlier question may have named some.
        for &offset in &offsets[done..] {
            answers.entry(offset).or_default();
        }
        missing
    }

    /// Resolves distinct addresses of generated code, in ascending order. The first name of an address stays, because stacks
    /// that contain it are older than later names. Addresses without a name are asked again: files grow.
    fn ask_generated(
        &mut self,
        module: &Module,
        generated: &Generated,
        offsets: &[FileOffset],
        answers: &mut FxHashMap<FileOffset, Arc<[ResolvedFrame]>>,
    ) {
        let dumps = generated.dumps().iter().map(|image| (Role::Generated(Format::JitDump), &**image));
        let maps = generated.perf_maps().iter().map(|map| (Role::Generated(Format::PerfMap), map.image()));
        let files: Vec<_> = dumps.chain(maps).collect();
        if files.is_empty() {
            return;
        }
        let place = |offset: &FileOffset| {
            let seen = generated.seen(offset.0, generated.perf_map());
            Place { address: offset.0, time_ns: seen.time.0, map_bytes: seen.size_bytes }
        };
        let places: Vec<Place> = offsets.iter().map(place).collect();
        let (mut defects, mut named) = (Vec::new(), 0);
        let strings = &mut self.strings;
        let take = |names: Names| {
            defects.extend_from_slice(&names.defects);
            named += keep(names, module, &offsets[named..], strings, answers);
        };
        let (depth, question) = (Depth::SymbolTables, Question::Generated(&places));
        let result = match &mut self.sandbox {
            Some(sandbox) => sandbox.name(&files, depth, question, take),
            None => {
                name_in_process(&files, depth, question, take);
                Ok(())
            }
        };
        answers.retain(|_, frames| !frames.is_empty());
        for defect in defects {
            match defect {
                Defect::Entries(count) => {
                    let reason = format!("malformed entries in its perf map or jitdump: {count}");
                    self.fail(module, reason, NamesFrom::Nothing);
                }
                Defect::Size => {
                    let reason = "its perf map or jitdump exceeds the limit of 256 MiB or 4 million entries";
                    self.fail(module, reason.to_owned(), NamesFrom::Nothing);
                }
                Defect::Malformed
                | Defect::Unreadable
                | Defect::Compressed
                | Defect::UnknownCompression
                | Defect::Shared
                | Defect::Checksum
                | Defect::MiniDebugInfo
                | Defect::NoSourceMap => {}
            }
        }
        if let Err(failed) = result {
            self.fail(module, failed.to_string(), NamesFrom::Nothing);
        }
    }

    /// Replaces functions, files and lines by those of the sources, where scripts have source maps.
    fn translate(&mut self, chains: &mut [Vec<CodeLocation>]) {
        for (script, spots) in self.translations.unknown(chains.iter().flatten()) {
            let Some(found) = self.originals(&script, &spots) else { break };
            self.translations.add(&script, spots, found);
        }
        chains.iter_mut().flatten().for_each(|location| self.translations.apply(location));
    }

    /// Sources of places in ascending order, or of the first ones. `None` if there will be no answers for other scripts either.
    fn originals(&mut self, script: &Script, spots: &[Spot]) -> Option<Vec<Option<Original>>> {
        let map = match script.open_map() {
            Ok(Some(map)) => map,
            Ok(None) => return Some(Vec::new()),
            Err(reason) => {
                self.fail_in(&script.map_name(), reason.to_string(), NamesFrom::Script);
                return Some(Vec::new());
            }
        };
        let (mut found, mut defects) = (Vec::with_capacity(spots.len()), Vec::new());
        let strings = &mut self.strings;
        let take = |names: Names| {
            defects.extend(names.defects);
            found.extend(names.answers.into_iter().map(|frames| {
                let frame = frames.into_iter().next()?;
                let mut share = |text| intern(strings, text);
                let file = share(map.source(&frame.file?).into());
                Some(Original { file, line: frame.line?, name: frame.function.map(share) })
            }));
        };
        let (files, question) = ([(Role::SourceMap, &map.image)], Question::Script(spots));
        let result = match &mut self.sandbox {
            Some(sandbox) => sandbox.name(&files, Depth::SymbolTables, question, take),
            None => {
                name_in_process(&files, Depth::SymbolTables, question, take);
                Ok(())
            }
        };
        let name = script.map_name();
        if let Some(reason) = defects.into_iter().find_map(reason_of) {
            self.fail_in(&name, reason, NamesFrom::Script);
        }
        if let Err(failed) = result {
            self.fail_in(&name, failed.to_string(), NamesFrom::Script);
            if failed.is_final() {
                return None;
            }
        }
        Some(found)
    }

    fn report_defects(&mut self, module: &Module, defects: &[Defect]) {
        for (defect, reason) in [
            (Defect::Malformed, "its debug information is malformed"),
            (Defect::Compressed, "its compressed debug information is malformed or above 1 GiB"),
            (
                Defect::UnknownCompression,
                "its debug information is compressed in an unknown format: decompress it with `objcopy \
                 --decompress-debug-sections`",
            ),
            (
                Defect::Shared,
                "it shares debug information with a file that is not here (dwz(1)): lines and inlined calls may be missing; \
                 install that file, or name its folder with --debug-dir",
            ),
            (Defect::MiniDebugInfo, "its MiniDebugInfo (`.gnu_debugdata`) is malformed or above 256 MiB"),
        ] {
            if defects.contains(&defect) {
                self.fail(module, reason.to_owned(), NamesFrom::SymbolTable);
            }
        }
        if defects.contains(&Defect::Unreadable) {
            let reason = "its symbol tables end behind the file, or it exceeds 32 GiB";
            self.fail(module, reason.to_owned(), NamesFrom::Nothing);
        }
        if defects.contains(&Defect::Checksum) {
            tracing::debug!(module = %module.path(), "the debug file that it names is of another build");
        }
    }

    /// Records a failure, once for each module.
    fn fail(&mut self, module: &Module, reason: String, names: NamesFrom) {
        self.fail_in(module.path(), reason, names);
    }

    /// As above, of a file with this path.
    fn fail_in(&mut self, path: &str, reason: String, names: NamesFrom) {
        tracing::debug!(module = path, %reason, "names are missing");
        if let Some(known) = self.failures.iter_mut().find(|known| known.module == path) {
            if known.names != names {
                known.names = NamesFrom::Nothing;
                if known.reason != reason {
                    known.reason = format!("{}; then {reason}", known.reason);
                }
            }
        } else if self.failures.len() < FAILURES_MAX {
            self.failures.push(SymbolizationFailure { module: path.to_owned(), reason, names });
        }
    }
}

/// Why inlined calls are missing, and what would help.
fn missing_files(count: u64, path: Option<&String>, module: &Module) -> String {
    let (files, such_as) =
        if count == 1 { ("file (`.dwo`) that is", "") } else { ("files (`.dwo`) that are", "such as ") };
    let path = path.map(|path| format!(", {such_as}`{path}`")).unwrap_or_default();
    let package = base_name(module.path());
    format!(
        "descriptions of functions are in {count} {files} not here{path}: inlined calls are missing; keep them in their place, or \
         pack them into `{package}.dwp` beside the module (dwp(1))"
    )
}

/// Files with debug information that the symbolizer did not have.
#[derive(Debug, Default)]
struct Missing {
    /// Of the first ones.
    paths: Vec<String>,
    count: u64,
}

impl Missing {
    fn add(&mut self, names: &mut Names) {
        self.paths.append(&mut names.missing);
        self.paths.truncate(MISSING_MAX);
        self.count = self.count.saturating_add(names.missing_count);
    }
}

fn name_in_process(files: &[(Role, &Image)], depth: Depth, question: Question<'_>, mut take: impl FnMut(Names)) {
    let file = |(role, image): &(Role, &Image)| {
        Some(ModuleFile { role: role.clone(), file: image.file().try_clone().ok()?, path: image.path() })
    };
    let files = Files::open(files.iter().filter_map(file).collect(), depth);
    let mut engine = Engine::new(&files);
    let mut rest = question;
    while rest.len() > 0 {
        let names = match rest {
            Question::Linked(addresses) => engine.name(addresses),
            Question::Generated(places) => engine.name_generated(places),
            Question::Script(spots) => engine.translate(spots),
        };
        rest = rest.after(names.answers.len());
        take(names);
    }
}

/// The names are in the table: no file is parsed.
fn located(chain: Vec<CodeLocation>) -> Arc<[ResolvedFrame]> {
    let last = chain.len().saturating_sub(1);
    let frame = |(index, CodeLocation { function, file, line, .. })| ResolvedFrame {
        function,
        file,
        line,
        inlined: index < last,
        ..ResolvedFrame::default()
    };
    chain.into_iter().enumerate().map(frame).collect()
}

/// Stores the answers for the first of these offsets, and returns their number.
fn keep(
    names: Names,
    module: &Module,
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
    for ((&offset, frames), start) in offsets.iter().zip(names.answers).zip(names.starts) {
        let start = start.and_then(|start| module.file_offset(LinkAddr(start)));
        let chain = match start.filter(|start| frames.is_empty() && *start <= offset) {
            Some(start) => [ResolvedFrame::starting_at(start)].into(),
            None => frames.into_iter().map(&mut frame).collect(),
        };
        answers.insert(offset, chain);
    }
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
mod script_tests;
#[cfg(test)]
mod tests;
