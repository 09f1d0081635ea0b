//! Symbolizes stacks: an address becomes a function, a location in a module, a bare address, or nothing if not code.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use heapbpf_base::address::{FileOffset, TargetAddr};
use heapbpf_base::ids::{HeapId, ModuleId, Tid};
use heapbpf_base::language::Language;
use heapbpf_base::language::facts::Executor;
use heapbpf_base::units::Rounding;
use heapbpf_ledger::model::{CallsiteProfile, Frame, FrameId, FrameKind, SymbolSource, Symbolization, ThreadProfile};
use heapbpf_ledger::snapshot::{CallsiteSnapshot, Stack, TargetSnapshot};
use heapbpf_ledger::{inventory, limit};
use heapbpf_linux::proc::maps::is_stubs;
use profiler_common::interpreter::InterpretedFrame;
use profiler_common::stack::StackEnd;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use super::lacking::Lacking;
use crate::object::generated::GENERATED;
use crate::object::module::{Module, Modules};
use crate::process::address_space::{AddressSpace, CodeOrigin, Location};
use crate::snapshot::ThreadNames;
use heapbpf_ledger::model::{Program, shown_path};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ResolvedFrame {
    /// Demangled, if known.
    pub function: Option<Arc<str>>,
    pub file: Option<Arc<str>>,
    pub line: Option<u32>,
    /// Its call was inlined into the next function.
    pub inlined: bool,
    /// Start of a function without a name.
    #[serde(skip)]
    pub start: Option<FileOffset>,
}

impl ResolvedFrame {
    /// A function of which only the start is known.
    pub fn starting_at(start: FileOffset) -> Self {
        Self { start: Some(start), ..Self::default() }
    }
}

pub trait Resolve {
    /// For each offset, the functions active there, innermost first; none if unknown, one without a name if only its
    /// start is known. Offsets lie inside instructions: return addresses must be adjusted.
    fn resolve(&self, id: ModuleId, module: &Module, offsets: &[FileOffset]) -> Vec<Arc<[ResolvedFrame]>>;

    /// Looks for more names of modules, in this order. Returns whether it found any, so that resolving again is worthwhile.
    fn find_more(&self, _: &[(ModuleId, &Module)]) -> bool {
        false
    }

    /// Whether modules without names have been searched for names.
    fn symbolizes(&self) -> bool {
        true
    }

    /// `None` if the module's file is unknown here.
    fn symbols_of(&self, _: &Module) -> Option<SymbolSource> {
        None
    }

    fn symbolization(&self) -> Symbolization {
        Symbolization::default()
    }

    /// Whether the user no longer waits for names, and wants reports as soon as possible.
    fn is_interrupted(&self) -> bool {
        false
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Unnamed<'a> {
    pub snapshot: &'a TargetSnapshot,
    pub space: &'a AddressSpace,
    /// The link that the program was started by.
    pub program: Option<&'a Program>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Named {
    /// In the order in which they first occur.
    pub frames: Vec<Frame>,
    /// By target, in the order of the snapshots.
    pub callsites: Vec<Vec<CallsiteProfile>>,
    pub lacking: Lacking,
}

/// Resolves every address once, with one request per module. Cuts stacks at the first address outside all executable
/// mappings: the rest was not a stack. Without mappings, of targets that exited before they were read, keeps all. A
/// callsite's heap becomes an index of the snapshot's heaps; callsites of other heaps are dropped with a warning. An
/// interrupt meanwhile leaves callsites out.
pub(crate) fn name_profile(targets: &[Unnamed<'_>], modules: &Modules, resolver: &dyn Resolve) -> Named {
    let may_stop = !resolver.is_interrupted();
    let places: Vec<Places> = targets.iter().map(|target| Places::of(target, modules)).collect();
    let answers = ask(&places, modules, resolver);
    let goes_on = || !(may_stop && resolver.is_interrupted());
    let mut named = Named { lacking: lacking(targets, &places, &answers, &goes_on), ..Named::default() };
    for (target, places) in targets.iter().zip(&places) {
        let threads = Threads::of(target.snapshot);
        let mut writer = Writer {
            program: target.program,
            places,
            modules,
            answers: &answers,
            threads,
            chains: FxHashMap::default(),
            names: FxHashMap::default(),
        };
        let heaps: FxHashMap<HeapId, usize> =
            target.snapshot.heaps.iter().enumerate().map(|(index, &(id, _))| (id, index)).collect();
        let callsites = target.snapshot.callsites.iter().take_while(|_| goes_on()).filter_map(|callsite| {
            let Some(&heap) = heaps.get(&callsite.heap) else {
                tracing::warn!(heap = callsite.heap.0, "a callsite of an unknown heap is left out");
                return None;
            };
            Some(writer.callsite(callsite, heap, &mut named.frames))
        });
        named.callsites.push(callsites.collect());
    }
    named
}

struct Places {
    /// The target's mappings are unknown.
    unknown: bool,
    by_address: FxHashMap<TargetAddr, Option<CodeOrigin>>,
    /// Stands for the target's generated code.
    generated: Option<ModuleId>,
    /// Contain interpreter loops, or are virtual machines.
    interpreters: Vec<ModuleId>,
}

impl Places {
    fn of(target: &Unnamed<'_>, modules: &Modules) -> Self {
        let generated = target.space.generated_module(modules);
        let mut by_address = FxHashMap::default();
        for stack in target.snapshot.callsites.iter().filter_map(|callsite| callsite.stack.as_ref()) {
            for &address in stack.frames.iter() {
                by_address.entry(address).or_insert_with(|| target.space.origin(address.inside_call()));
            }
        }
        let interpreters = target.space.interpreted().iter().map(|interpreted| interpreted.interpreter).collect();
        Self { unknown: !target.space.is_known(), by_address, generated, interpreters }
    }

    /// Where a perf map may name code that its module does not: runtimes list what they were built with, such as V8's built-in
    /// functions.
    fn listed(&self, address: TargetAddr) -> Option<Location> {
        Some(Location { module: self.generated?, offset: FileOffset(address.inside_call().0) })
    }

    fn at(&self, address: TargetAddr) -> Option<CodeOrigin> {
        self.by_address.get(&address).copied().flatten()
    }

    fn code<'stack>(&self, frames: &'stack [TargetAddr]) -> &'stack [TargetAddr] {
        if self.unknown {
            return frames;
        }
        let code = frames.iter().take_while(|&&address| self.at(address).is_some()).count();
        &frames[..code]
    }
}

type Answers = FxHashMap<Location, Arc<[ResolvedFrame]>>;

fn ask(places: &[Places], modules: &Modules, resolver: &dyn Resolve) -> Answers {
    let mut answers = Answers::default();
    let origins = places.iter().flat_map(|places| places.by_address.values());
    let locations = origins.filter_map(|origin| match origin {
        Some(CodeOrigin::Module(location)) => Some(*location),
        _ => None,
    });
    answer(locations, modules, resolver, &mut answers);
    let mut listed = Vec::new();
    for places in places.iter().filter(|places| places.generated.is_some()) {
        let nameless = places.by_address.iter().filter(|(_, origin)| match origin {
            Some(CodeOrigin::Module(location)) => name_of(&answers, *location).is_none(),
            _ => false,
        });
        listed.extend(nameless.filter_map(|(&address, _)| places.listed(address)));
    }
    answer(listed.into_iter(), modules, resolver, &mut answers);
    answers
}

/// The innermost function.
fn name_of(answers: &Answers, location: Location) -> Option<&Arc<str>> {
    answers.get(&location)?.first()?.function.as_ref()
}

fn answer(locations: impl Iterator<Item = Location>, modules: &Modules, resolver: &dyn Resolve, answers: &mut Answers) {
    let mut by_module: FxHashMap<ModuleId, Vec<FileOffset>> = FxHashMap::default();
    for location in locations.filter(|location| !answers.contains_key(location)) {
        by_module.entry(location.module).or_default().push(location.offset);
    }
    for (module, mut offsets) in by_module {
        // Neighboring offsets share parsed data.
        offsets.sort_unstable();
        offsets.dedup();
        let resolved = resolver.resolve(module, modules.get(module), &offsets);
        answers.extend(offsets.into_iter().map(|offset| Location { module, offset }).zip(resolved));
    }
}

fn lacking(targets: &[Unnamed<'_>], places: &[Places], answers: &Answers, goes_on: &dyn Fn() -> bool) -> Lacking {
    let mut total_bytes: u64 = 0;
    let mut by_module: FxHashMap<ModuleId, [u64; 2]> = FxHashMap::default();
    for (target, places) in targets.iter().zip(places) {
        for callsite in target.snapshot.callsites.iter().take_while(|_| goes_on()) {
            let bytes = callsite.totals.alloc_bytes.rounded().max(callsite.totals.live_bytes().rounded());
            total_bytes = total_bytes.saturating_add(bytes);
            let stack = callsite.stack.iter().filter(|stack| !stands_for_others(stack));
            let mut met: FxHashMap<ModuleId, [bool; 2]> = FxHashMap::default();
            let is_interpreted = |stack: &Stack| stack.frames.iter().any(|frame| frame.is_interpreted());
            // The functions that it executes matter.
            let has_code = callsite.stack.as_ref().is_some_and(is_interpreted);
            for &address in stack.flat_map(|stack| places.code(&stack.frames)) {
                let Some(CodeOrigin::Module(location)) = places.at(address) else { continue };
                if address.is_interpreted() || has_code && places.interpreters.contains(&location.module) {
                    continue;
                }
                let listed = places.listed(address).filter(|listed| name_of(answers, *listed).is_some());
                let innermost = answers.get(&listed.unwrap_or(location)).and_then(|frames| frames.first());
                let has_name = innermost.is_some_and(|frame| frame.function.is_some());
                let has_line = innermost.is_some_and(|frame| frame.line.is_some());
                let lacks = met.entry(location.module).or_default();
                *lacks = [lacks[0] || !has_name, lacks[1] || !has_name || !has_line];
            }
            for (module, lacks) in met {
                let sums = by_module.entry(module).or_default();
                for (sum, lacks) in sums.iter_mut().zip(lacks) {
                    *sum = sum.saturating_add(if lacks { bytes } else { 0 });
                }
            }
        }
    }
    Lacking::new(total_bytes, by_module)
}

/// What executes the code of a frame.
fn frame_kind(language: Language, word: TargetAddr) -> FrameKind {
    let executor = language.functions().zip(InterpretedFrame::from_word(word.0));
    match executor.map(|(functions, frame)| (functions.executor)(frame)) {
        Some(Executor::Processor) => FrameKind::Jitted,
        Some(Executor::Runtime) => FrameKind::Runtime,
        Some(Executor::Interpreter) | None => FrameKind::Interpreted,
    }
}

/// Whether the frames of a stack are no code: blocks from before the recording have it, or many callsites.
fn stands_for_others(stack: &Stack) -> bool {
    inventory::is_stack(stack) || limit::is_stack(stack)
}

struct Writer<'a> {
    program: Option<&'a Program>,
    places: &'a Places,
    modules: &'a Modules,
    answers: &'a Answers,
    threads: Threads,
    /// The frames of an address, which are adjacent.
    chains: FxHashMap<TargetAddr, Range<u32>>,
    /// As above, of frames that stand for blocks from before the recording, or for other callsites.
    names: FxHashMap<TargetAddr, Range<u32>>,
}

impl Writer<'_> {
    fn callsite(&mut self, callsite: &CallsiteSnapshot, heap: usize, frames: &mut Vec<Frame>) -> CallsiteProfile {
        let is_inventory = callsite.stack.as_ref().is_some_and(inventory::is_stack);
        let (stack, end) = callsite.stack.as_ref().map(|stack| self.stack(stack, frames)).unzip();
        let CallsiteSnapshot { totals, ref details, .. } = *callsite;
        // The frames have the reason.
        let inherited = callsite.inherited && !is_inventory;
        CallsiteProfile {
            index: callsite.index,
            stack: stack.unwrap_or_default(),
            end,
            heap,
            inherited,
            totals,
            thread: self.threads.place(callsite.thread),
            older: None,
            details: details.clone(),
            rounding: Rounding::default(),
            history: Vec::new(),
        }
    }

    fn stack(&mut self, stack: &Stack, frames: &mut Vec<Frame>) -> (Vec<FrameId>, StackEnd) {
        let has_no_code = stands_for_others(stack);
        let code = if has_no_code { &*stack.frames } else { self.places.code(&stack.frames) };
        // If only the last frame is not code, the kernel side detected that too, and knows why.
        let end = match (stack.frames.len() - code.len(), stack.end) {
            (0, end) | (1, end @ (StackEnd::MissingModule | StackEnd::NoRow)) => end,
            _ => StackEnd::BrokenChain,
        };
        let mut chain = |address| if has_no_code { self.name(address, frames) } else { self.chain(address, frames) };
        (code.iter().flat_map(|&address| chain(address)).map(FrameId).collect(), end)
    }

    /// A frame that stands for blocks from before the recording, or for other callsites.
    fn name(&mut self, address: TargetAddr, frames: &mut Vec<Frame>) -> Range<u32> {
        let number = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        let is_limit = limit::is_stack(&Stack { frames: Arc::new([address]), end: StackEnd::Complete });
        let name = || if is_limit { limit::NAME.to_owned() } else { inventory::name(address) };
        let frame = || Frame { function: Some(name().into()), address: address.0, ..Frame::default() };
        let range = self.names.entry(address).or_insert_with(|| {
            frames.push(frame());
            number..number + 1
        });
        range.clone()
    }

    /// Innermost inlined call first.
    fn chain(&mut self, address: TargetAddr, frames: &mut Vec<Frame>) -> Range<u32> {
        if let Some(chain) = self.chains.get(&address) {
            return chain.clone();
        }
        let first = frames.len();
        self.append(address, frames);
        // Four billion frames would not fit into memory.
        let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let chain = number(first)..number(frames.len());
        self.chains.insert(address, chain.clone());
        chain
    }

    fn append(&self, address: TargetAddr, frames: &mut Vec<Frame>) {
        let bare = Frame { address: address.0, ..Frame::default() };
        let generated = Frame { module: Some(GENERATED.into()), kind: FrameKind::Jitted, ..bare.clone() };
        let location = match self.places.at(address) {
            None => return frames.push(bare),
            Some(CodeOrigin::Generated) => return frames.push(generated),
            Some(CodeOrigin::Module(location)) => location,
        };
        let module = self.modules.get(location.module);
        let path = module.path();
        // Not a part of the program.
        if is_stubs(Path::new(&**path)) {
            return;
        }
        let is_interpreter = self.places.interpreters.contains(&location.module);
        let placed = match (module.is_generated(), module.language()) {
            (true, _) => Frame { module: Some(Arc::clone(path)), ..generated },
            // The word of the stack means nothing elsewhere.
            (_, Some(language)) => {
                let kind = frame_kind(language, address);
                Frame { module: Some(Arc::clone(path)), kind, address: 0, ..Frame::default() }
            }
            _ => Frame {
                kind: if is_interpreter { FrameKind::Runtime } else { bare.kind },
                module: Some(Arc::clone(shown_path(self.program, path))),
                // The location was looked up inside the call; the frame contains the return address.
                module_offset: Some(location.offset.0.saturating_add(1)),
                ..bare
            },
        };
        let listed = self.places.listed(address).filter(|listed| name_of(self.answers, *listed).is_some());
        let named = listed.filter(|_| name_of(self.answers, location).is_none()).unwrap_or(location);
        match self.answers.get(&named).filter(|resolved| !resolved.is_empty()) {
            None => frames.push(placed),
            Some(resolved) => frames.extend(resolved.iter().map(|resolved| Frame {
                function: resolved.function.clone(),
                file: resolved.file.clone(),
                line: resolved.line,
                inlined: resolved.inlined,
                function_start: resolved.start.map(|start| start.0),
                ..placed.clone()
            })),
        }
    }
}

/// Threads of a target's callsites in ascending order, as listed in its profile.
#[derive(Clone, Debug)]
pub(super) struct Threads(Vec<Tid>);

impl Threads {
    pub(super) fn of(ledger: &TargetSnapshot) -> Self {
        let mut threads: Vec<Tid> = ledger.callsites.iter().filter_map(|callsite| callsite.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        Self(threads)
    }

    pub(super) fn place(&self, thread: Option<Tid>) -> Option<usize> {
        self.0.binary_search(&thread?).ok()
    }

    pub(super) fn named(self, names: &ThreadNames) -> Vec<ThreadProfile> {
        let named = |tid: Tid| ThreadProfile { tid, name: names.get(&tid).map(Arc::clone) };
        self.0.into_iter().map(named).collect()
    }
}

#[cfg(test)]
mod tests;
