//! Symbolizes stacks: an address becomes a function, a location in a module, a bare address, or nothing if not code.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use profiler_common::stack::StackEnd;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::address::{FileOffset, TargetAddr};
use crate::ids::{HeapId, ModuleId, Tid};
use crate::ledger::inventory;
use crate::ledger::snapshot::{CallsiteSnapshot, Stack, TargetSnapshot};
use crate::linux::proc::maps::is_stubs;
use crate::model::{CallsiteProfile, Frame, FrameId, Symbolization, ThreadProfile};
use crate::object::module::{Module, Modules};
use crate::process::address_space::{AddressSpace, CodeOrigin, Location};
use crate::process::program::{Program, shown_path};
use crate::snapshot::ThreadNames;

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ResolvedFrame {
    /// Demangled, if known.
    pub function: Option<Arc<str>>,
    pub file: Option<Arc<str>>,
    pub line: Option<u32>,
    /// Its call was inlined into the next function.
    pub inlined: bool,
}

pub trait Resolve {
    /// For each offset, the functions active there, innermost first; none if unknown. Offsets lie inside instructions:
    /// return addresses must be adjusted.
    fn resolve(&self, id: ModuleId, module: &Module, offsets: &[FileOffset]) -> Vec<Arc<[ResolvedFrame]>>;

    fn symbolization(&self) -> Symbolization {
        Symbolization::default()
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
}

/// Resolves every address once, with one request per module. Cuts stacks at the first address outside all executable
/// mappings: the rest was not a stack. Without mappings, of targets that exited before they were read, keeps all. A
/// callsite's heap becomes an index of the snapshot's heaps; callsites of other heaps are dropped with a warning.
pub(crate) fn name_profile(targets: &[Unnamed<'_>], modules: &Modules, resolver: &dyn Resolve) -> Named {
    let places: Vec<Places> = targets.iter().map(Places::of).collect();
    let answers = ask(&places, modules, resolver);
    let mut named = Named::default();
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
        let callsites = target.snapshot.callsites.iter().filter_map(|callsite| {
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
}

impl Places {
    fn of(target: &Unnamed<'_>) -> Self {
        let mut by_address = FxHashMap::default();
        for stack in target.snapshot.callsites.iter().filter_map(|callsite| callsite.stack.as_ref()) {
            for &address in stack.frames.iter() {
                by_address.entry(address).or_insert_with(|| target.space.origin(address.inside_call()));
            }
        }
        Self { unknown: !target.space.is_known(), by_address }
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
    let mut by_module: FxHashMap<ModuleId, Vec<FileOffset>> = FxHashMap::default();
    for place in places.iter().flat_map(|places| places.by_address.values()) {
        if let Some(CodeOrigin::Module(location)) = place {
            by_module.entry(location.module).or_default().push(location.offset);
        }
    }
    let mut answers = Answers::default();
    for (module, mut offsets) in by_module {
        // Neighboring offsets share parsed data.
        offsets.sort_unstable();
        offsets.dedup();
        let resolved = resolver.resolve(module, modules.get(module), &offsets);
        answers.extend(offsets.into_iter().map(|offset| Location { module, offset }).zip(resolved));
    }
    answers
}

struct Writer<'a> {
    program: Option<&'a Program>,
    places: &'a Places,
    modules: &'a Modules,
    answers: &'a Answers,
    threads: Threads,
    /// The frames of an address, which are adjacent.
    chains: FxHashMap<TargetAddr, Range<u32>>,
    /// As above, of frames that stand for blocks from before the recording.
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
            stack: stack.unwrap_or_default(),
            end,
            heap,
            inherited,
            totals,
            thread: self.threads.place(callsite.thread),
            older: None,
            details: details.clone(),
            history: Vec::new(),
        }
    }

    fn stack(&mut self, stack: &Stack, frames: &mut Vec<Frame>) -> (Vec<FrameId>, StackEnd) {
        let is_inventory = inventory::is_stack(stack);
        let code = if is_inventory { &*stack.frames } else { self.places.code(&stack.frames) };
        // If only the last frame is not code, the kernel side detected that too, and knows why.
        let end = match (stack.frames.len() - code.len(), stack.end) {
            (0, end) | (1, end @ (StackEnd::MissingModule | StackEnd::NoRow)) => end,
            _ => StackEnd::BrokenChain,
        };
        let mut chain = |address| if is_inventory { self.name(address, frames) } else { self.chain(address, frames) };
        (code.iter().flat_map(|&address| chain(address)).map(FrameId).collect(), end)
    }

    /// A frame that stands for blocks from before the recording.
    fn name(&mut self, address: TargetAddr, frames: &mut Vec<Frame>) -> Range<u32> {
        let number = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        let frame =
            || Frame { function: Some(inventory::name(address).into()), address: address.0, ..Frame::default() };
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
        let Some(CodeOrigin::Module(location)) = self.places.at(address) else {
            frames.push(bare);
            return;
        };
        let path = self.modules.get(location.module).path();
        // Not a part of the program.
        if is_stubs(Path::new(&**path)) {
            return;
        }
        let placed = Frame {
            module: Some(Arc::clone(shown_path(self.program, path))),
            // The location was looked up inside the call; the frame contains the return address.
            module_offset: Some(location.offset.0.saturating_add(1)),
            ..bare
        };
        match self.answers.get(&location).filter(|resolved| !resolved.is_empty()) {
            None => frames.push(placed),
            Some(resolved) => frames.extend(resolved.iter().map(|resolved| Frame {
                function: resolved.function.clone(),
                file: resolved.file.clone(),
                line: resolved.line,
                inlined: resolved.inlined,
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
