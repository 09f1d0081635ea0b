//! Names from ELF symbols and DWARF, read by blazesym. Owns what blazesym has parsed, module by module, and remembers
//! every answer.
//!
//! blazesym maps the files it reads. A file that changed since it was opened is therefore left alone: were it shorter
//! now, reading it would kill this process. What remains is a target that truncates its own library in the very moment
//! of reading. What panics inside blazesym costs one module its names.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use blazesym::symbolize::source::{Elf as ElfSource, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use rustc_hash::{FxHashMap, FxHashSet};

use super::demangle::demangle;
use super::{Resolve, ResolvedFrame, debug_file, inflate};
use crate::address::FileOffset;
use crate::ids::ModuleId;
use crate::object::module::Module;

/// Most inlined calls that are told for one address; compilers stay far below.
const INLINED_MAX: usize = 256;
/// Longest path of a source file that is kept, in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// Gives names with blazesym.
#[derive(Default)]
pub struct Resolver {
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    modules: FxHashMap<ModuleId, ModuleNames>,
    strings: FxHashSet<Arc<str>>,
}

/// What is known of one module.
struct ModuleNames {
    answers: FxHashMap<FileOffset, Arc<[ResolvedFrame]>>,
    reader: Option<Reader>,
}

/// What is asked for a module's names, in this order, each about what is still unknown.
struct Reader {
    symbolizer: Symbolizer,
    sources: Vec<Source<'static>>,
}

impl Resolver {
    /// A resolver that has read nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives back the memory of what was parsed; the answers stay known.
    pub fn release(&self) {
        self.state.borrow_mut().modules.values_mut().for_each(|names| names.reader = None);
    }
}

impl Resolve for Resolver {
    fn resolve(&self, id: ModuleId, module: &Module, offsets: &[FileOffset]) -> Vec<Arc<[ResolvedFrame]>> {
        let State { modules, strings } = &mut *self.state.borrow_mut();
        let names = modules.entry(id).or_insert_with(|| ModuleNames { answers: FxHashMap::default(), reader: None });
        let mut unknown: Vec<FileOffset> =
            offsets.iter().copied().filter(|offset| !names.answers.contains_key(offset)).collect();
        unknown.sort_unstable();
        unknown.dedup();
        if !unknown.is_empty() {
            names.ask(module, &unknown, strings);
        }
        offsets.iter().map(|offset| names.answers.get(offset).cloned().unwrap_or_default()).collect()
    }
}

impl ModuleNames {
    /// Finds out about offsets, each once.
    fn ask(&mut self, module: &Module, offsets: &[FileOffset], strings: &mut FxHashSet<Arc<str>>) {
        let (mut offsets, mut addresses): (Vec<FileOffset>, Vec<u64>) =
            offsets.iter().filter_map(|&offset| Some((offset, module.link_addr(offset)?.0))).unzip();
        if !module.image().is_ok_and(|image| image.unchanged()) {
            return;
        }
        let mut reader = self.reader.take().or_else(|| Reader::new(module));
        for at in 0..reader.as_ref().map_or(0, |reader| reader.sources.len()) {
            let Some(asked) = reader.as_ref() else { break };
            let answered = catch_unwind(AssertUnwindSafe(|| asked.frames(at, &addresses, strings)));
            let Ok(answered) = answered else {
                // Whatever state the panic left behind is not used again.
                tracing::warn!(module = %module.path(), "its debug information is malformed; names may be missing");
                reader = reader.and_then(|reader| Reader::from_sources(reader.sources));
                continue;
            };
            let mut answered = answered.into_iter();
            let mut open = (Vec::new(), Vec::new());
            for (&offset, &address) in offsets.iter().zip(&addresses) {
                match answered.next().flatten() {
                    Some(frames) => drop(self.answers.insert(offset, frames)),
                    None => {
                        open.0.push(offset);
                        open.1.push(address);
                    }
                }
            }
            (offsets, addresses) = open;
            if offsets.is_empty() {
                break;
            }
        }
        self.answers.extend(offsets.into_iter().map(|offset| (offset, Arc::default())));
        self.reader = reader;
    }
}

impl Reader {
    fn new(module: &Module) -> Option<Self> {
        let own = module.reachable_path()?;
        let mut sources = Vec::new();
        if let Some(path) = debug_file::find(module) {
            sources.push(source(path.clone(), true));
            sources.push(source(path, false));
        }
        // What the target compressed is not unpacked before it is known how large it becomes. Compressed symbols do not
        // occur in practice.
        if !inflate::is_bounded(module, |name| !name.starts_with(".debug_")) {
            return Self::from_sources(sources);
        }
        if inflate::is_bounded(module, |_| true) {
            sources.push(source(own.clone(), true));
        } else {
            tracing::warn!(module = %module.path(), "its compressed debug information is malformed or above 1 GiB; not read");
        }
        // Without debug information: also what is only in `.dynsym`, and what is left when DWARF makes no sense.
        sources.push(source(own, false));
        Self::from_sources(sources)
    }

    fn from_sources(sources: Vec<Source<'static>>) -> Option<Self> {
        let symbolizer =
            Symbolizer::builder().enable_code_info(true).enable_inlined_fns(true).enable_demangling(false).build();
        Some(Self { symbolizer, sources })
    }

    /// What source number `at` knows of these link addresses. Shorter, where it cannot be read.
    fn frames(
        &self,
        at: usize,
        addresses: &[u64],
        strings: &mut FxHashSet<Arc<str>>,
    ) -> Vec<Option<Arc<[ResolvedFrame]>>> {
        let answers = match self.symbolizer.symbolize(&self.sources[at], Input::VirtOffset(addresses)) {
            Ok(answers) => answers,
            Err(error) => {
                tracing::debug!(source = ?self.sources[at], "no names: {error:#}");
                return Vec::new();
            }
        };
        answers
            .iter()
            .map(|answer| match answer {
                Symbolized::Sym(symbol) if holds(symbol) => Some(expand(symbol, strings)),
                _ => None,
            })
            .collect()
    }
}

/// The file at this path, with or without its debug information.
fn source(path: PathBuf, debug_syms: bool) -> Source<'static> {
    let mut elf = ElfSource::new(path);
    elf.debug_syms = debug_syms;
    Source::Elf(elf)
}

/// Whether the answer has a name and is about this address. A symbol without a size says where it begins, not that it
/// reaches this far. A function that DWARF describes by several ranges has no size either, but was found by them: it is
/// the one with address 0.
fn holds(symbol: &Sym<'_>) -> bool {
    !symbol.name.is_empty() && (symbol.size.is_some() || symbol.addr == 0)
}

/// The functions active at one address, the innermost first. Inlined functions without a name are left out: their names
/// are in a file shared between packages (dwz), which is not followed for them.
fn expand(symbol: &Sym<'_>, strings: &mut FxHashSet<Arc<str>>) -> Arc<[ResolvedFrame]> {
    let inlined = symbol.inlined.iter().rev().filter(|call| !call.name.is_empty()).take(INLINED_MAX);
    let inlined = inlined.map(|call| (&*call.name, call.code_info.as_ref(), true));
    let outer = (&*symbol.name, symbol.code_info.as_deref(), false);
    inlined
        .chain([outer])
        .map(|(name, code, inlined)| ResolvedFrame {
            function: Some(intern(strings, &demangle(name))),
            file: code.and_then(source_path).map(|path| intern(strings, &path)),
            // Line 0 is the compilers' way of saying that code belongs to no line.
            line: code.and_then(|code| code.line).filter(|&line| line != 0),
            inlined,
        })
        .collect()
}

fn source_path(code: &CodeInfo<'_>) -> Option<String> {
    let path = code.to_path();
    let bytes = path.as_os_str().as_encoded_bytes();
    (!code.file.is_empty() && bytes.len() <= PATH_BYTES_MAX).then(|| path.to_string_lossy().into_owned())
}

/// One copy of each string, however many frames have it.
fn intern(strings: &mut FxHashSet<Arc<str>>, text: &str) -> Arc<str> {
    if let Some(known) = strings.get(text) {
        return Arc::clone(known);
    }
    let text: Arc<str> = text.into();
    strings.insert(Arc::clone(&text));
    text
}

#[cfg(test)]
mod tests;
