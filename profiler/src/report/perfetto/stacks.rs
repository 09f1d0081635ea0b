//! Stacks and their code as a trace numbers them, and what each stack did until each dump.
//!
//! A physical call (a run of inlined functions and the function that contains them) is one frame of the trace; the names and lines of the
//! run go into the symbols of the module. Perfetto looks symbols up by module and address, so if two runs differ at one address,
//! neither gets symbols, and each of their functions is a frame.
//!
//! Amounts are cumulative and never decrease from one dump to the next, which a reader would take for a broken trace.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

use super::messages::{self, AddressSymbols, Line, ModuleSymbols};
use crate::model::history::Held;
use crate::model::{CallsiteProfile, Frame, FrameId, Profile, TargetProfile};
use crate::report::dumps::{Dump, held, rounded};
use crate::report::frames::{CodeLocation, call_address, calls, gap_frames, group_frame, heap_name};
use crate::report::intern::Interner;
use crate::report::presentation::{Presentation, View};

/// Module path of synthetic frames, like heapprofd's `ERROR`.
const SYNTHETIC_MODULE: &str = "[heapbpf]";

/// The interned tables of a profile. Ids in the trace are indices plus 1; calls are by index.
pub(super) struct Code<'a> {
    profile: &'a Profile,
    pub(super) functions: Interner<Cow<'a, str>>,
    pub(super) paths: Interner<&'a str>,
    pub(super) build_ids: Interner<&'a [u8]>,
    pub(super) mappings: Vec<messages::Mapping>,
    /// By module, and start, end, file offset and load bias.
    mapping_keys: Interner<(Module<'a>, [u64; 4])>,
    calls: Interner<Call>,
    /// The calls whose functions are frames of their own.
    is_expanded: Vec<bool>,
    /// The call whose names are the symbols of an address in a module.
    symbols: FxHashMap<(Module<'a>, u64), u32>,
    /// Calls, the outermost first.
    pub(super) callstacks: Interner<Box<[u32]>>,
}

/// A file, as Perfetto identifies it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Module<'a> {
    path: &'a str,
    build_id: &'a [u8],
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Call {
    mapping: u64,
    rel_pc: u64,
    /// The innermost first; empty for a synthetic frame.
    run: Box<[FrameId]>,
    /// The name of a synthetic frame.
    label: u64,
}

impl<'a> Code<'a> {
    pub(super) fn new(profile: &'a Profile) -> Self {
        Self {
            profile,
            functions: Interner::default(),
            paths: Interner::default(),
            build_ids: Interner::default(),
            mappings: Vec::new(),
            mapping_keys: Interner::default(),
            calls: Interner::default(),
            is_expanded: Vec::new(),
            symbols: FxHashMap::default(),
            callstacks: Interner::default(),
        }
    }

    fn synthetic(&mut self, name: String) -> u32 {
        let mapping = self.mapping(Module { path: SYNTHETIC_MODULE, build_id: &[] }, [0; 4]);
        let label = id(self.functions.intern(Cow::Owned(name)));
        self.intern(Call { mapping, rel_pc: 0, run: Box::default(), label })
    }

    /// `run` is a run of inlined functions and the function that contains them, the innermost first.
    fn call(&mut self, target: &'a TargetProfile, run: &[FrameId]) -> Option<u32> {
        let frame = self.profile.frames.get(run.last()?.0 as usize)?;
        let (module, range, rel_pc) = locate(self.profile, target, frame);
        let mapping = self.mapping(module, range);
        let call = self.intern(Call { mapping, rel_pc, run: run.into(), label: 0 });
        let owner = *self.symbols.entry((module, rel_pc)).or_insert(call);
        if owner != call && !self.has_same_symbols(owner, call) {
            self.is_expanded[owner as usize] = true;
            self.is_expanded[call as usize] = true;
        }
        Some(call)
    }

    fn intern(&mut self, call: Call) -> u32 {
        let index = self.calls.intern(call);
        self.is_expanded.resize(self.calls.values.len(), false);
        index
    }

    fn mapping(&mut self, module: Module<'a>, range: [u64; 4]) -> u64 {
        let iid = id(self.mapping_keys.intern((module, range)));
        if iid > self.mappings.len() as u64 {
            let [start, end, offset, load_bias] = range;
            let build_id = (!module.build_id.is_empty()).then(|| id(self.build_ids.intern(module.build_id)));
            let path_string_ids = components(module.path).map(|part| id(self.paths.intern(part))).collect();
            self.mappings.push(messages::Mapping {
                iid: Some(iid),
                build_id,
                start_offset: Some(0),
                start: Some(start),
                end: Some(end),
                load_bias: Some(load_bias),
                path_string_ids,
                exact_offset: Some(offset),
            });
        }
        iid
    }

    /// The frames of a call, the innermost first.
    fn run(&self, call: u32) -> impl DoubleEndedIterator<Item = &'a Frame> {
        let profile = self.profile;
        self.calls.values[call as usize].run.iter().map(|&id| profile.frame(id))
    }

    fn has_same_symbols(&self, one: u32, other: u32) -> bool {
        let symbols = |call| self.run(call).map(|frame| (&frame.function, &frame.file, frame.line));
        symbols(one).eq(symbols(other))
    }

    /// Returns the table of frames, and the frame ids of each call, the outermost first.
    pub(super) fn frames(&mut self) -> (Vec<messages::Frame>, Vec<Box<[u64]>>) {
        let mut frames = Vec::new();
        let mut ids = Vec::with_capacity(self.calls.values.len());
        for (Call { mapping, rel_pc, run, label }, &is_expanded) in self.calls.values.iter().zip(&self.is_expanded) {
            let mut name = |id: &FrameId| {
                let frame = self.profile.frame(*id);
                let name = frame.function.as_deref().map_or_else(|| Cow::Owned(frame.label()), Cow::Borrowed);
                self::id(self.functions.intern(name))
            };
            let functions: Vec<u64> = match run.last() {
                None => vec![*label],
                Some(physical) if !is_expanded => vec![name(physical)],
                Some(_) => run.iter().rev().map(name).collect(),
            };
            let add = |function: u64| {
                let iid = frames.len() as u64 + 1;
                frames.push(messages::Frame {
                    iid: Some(iid),
                    function_name_id: Some(function),
                    mapping_id: Some(*mapping),
                    rel_pc: Some(*rel_pc),
                });
                iid
            };
            ids.push(functions.into_iter().map(add).collect());
        }
        (frames, ids)
    }

    /// Functions and lines, sorted by module and address. A call that consists of a function name only needs none beside its frame.
    pub(super) fn symbols(&self) -> Vec<ModuleSymbols> {
        let needs_symbols = |call: u32| {
            let has_line = self.run(call).any(|frame| frame.file.is_some());
            !self.is_expanded[call as usize] && (has_line || self.run(call).count() > 1)
        };
        let mut symbols: Vec<_> = self.symbols.iter().filter(|(_, call)| needs_symbols(**call)).collect();
        symbols.sort_unstable_by_key(|((module, address), _)| (*module, *address));
        let modules = symbols.chunk_by(|((a, _), _), ((b, _), _)| a == b);
        let symbols = modules.filter_map(|addresses| {
            let ((module, _), _) = *addresses.first()?;
            let path = components(module.path).fold(String::new(), |path, part| path + "/" + part);
            Some(ModuleSymbols {
                path: Some(path),
                build_id: (!module.build_id.is_empty()).then(|| module.build_id.to_vec()),
                address_symbols: addresses.iter().map(|((_, address), call)| self.lines(*address, **call)).collect(),
            })
        });
        symbols.collect()
    }

    fn lines(&self, address: u64, call: u32) -> AddressSymbols {
        let lines = self.run(call).map(|frame| Line {
            function_name: Some(frame.label()),
            source_file_name: frame.file.as_deref().map(str::to_owned),
            line_number: frame.line,
        });
        AddressSymbols { address: Some(address), lines: lines.collect() }
    }

    /// The stack with its synthetic frames, the outermost first; never empty.
    fn stack(
        &mut self,
        target: &'a TargetProfile,
        callsite: &CallsiteProfile,
        presentation: &Presentation,
    ) -> Vec<u32> {
        let groups = presentation.by.iter().map(|group| group_frame(*group, target, callsite));
        let mut stack: Vec<u32> = groups.chain(gap_frames(callsite)).map(|name| self.synthetic(name)).collect();
        let profile = self.profile;
        let known: Vec<FrameId> =
            callsite.stack.iter().copied().filter(|id| (id.0 as usize) < profile.frames.len()).collect();
        stack.extend(calls(profile, &known).rev().filter_map(|run| self.call(target, run)));
        if stack.is_empty() {
            stack.push(self.synthetic("[no frames]".to_owned()));
        }
        stack
    }
}

/// Ids in a trace start at 1.
fn id(index: u32) -> u64 {
    u64::from(index) + 1
}

/// Returns the file of a frame; the start, end, file offset and load bias of its mapping; and the address in the file.
fn locate<'a>(profile: &'a Profile, target: &'a TargetProfile, frame: &'a Frame) -> (Module<'a>, [u64; 4], u64) {
    let address = call_address(frame);
    let Some(path) = &frame.module else {
        return (Module { path: "", build_id: &[] }, [0; 4], address);
    };
    let location = CodeLocation::of(profile, target, frame);
    let module = Module { path, build_id: location.build_id().unwrap_or_default() };
    let Some(mapping) = location.mapping else {
        let offset = frame.module_offset.map_or(address, |offset| offset.saturating_sub(1));
        return (module, [0; 4], offset);
    };
    // Without the bias, addresses are file offsets.
    let bias = mapping.bias.unwrap_or_else(|| mapping.start.wrapping_sub(mapping.offset));
    let load_bias = mapping.start.wrapping_sub(bias).wrapping_sub(mapping.offset);
    (module, [mapping.start, mapping.end, mapping.offset, load_bias], address.wrapping_sub(bias))
}

/// The components of a path, which Perfetto joins with a `/` before each.
fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

/// Everything allocated and freed until some time, including what was live at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) alloc_bytes: u64,
    pub(super) alloc_count: u64,
    pub(super) free_bytes: u64,
    pub(super) free_count: u64,
}

impl Tally {
    /// At the end. The difference is what reports show as live.
    fn at_end(callsite: &CallsiteProfile) -> Self {
        let totals = &callsite.totals;
        let bytes = (totals.opening_bytes + totals.alloc_bytes).rounded();
        let count = (totals.opening_count + totals.alloc_count).rounded();
        Self::of([bytes, count], [View::LiveBytes, View::LiveCount].map(|view| view.of_callsite(callsite)))
    }

    fn at(callsite: &CallsiteProfile, held: &Held) -> Self {
        let totals = &callsite.totals;
        let bytes = totals.opening_bytes.to_f64() + held.alloc_bytes;
        let count = totals.opening_count.to_f64() + held.alloc_count;
        Self::of([bytes, count].map(rounded), [held.live_bytes, held.live_count].map(rounded))
    }

    fn of([alloc_bytes, alloc_count]: [u64; 2], [live_bytes, live_count]: [u64; 2]) -> Self {
        let (alloc_bytes, alloc_count) = (alloc_bytes.max(live_bytes), alloc_count.max(live_count));
        Self { alloc_bytes, alloc_count, free_bytes: alloc_bytes - live_bytes, free_count: alloc_count - live_count }
    }

    fn zip(self, other: Self, pick: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            alloc_bytes: pick(self.alloc_bytes, other.alloc_bytes),
            alloc_count: pick(self.alloc_count, other.alloc_count),
            free_bytes: pick(self.free_bytes, other.free_bytes),
            free_count: pick(self.free_count, other.free_count),
        }
    }
}

/// A stack of one heap.
pub(super) struct Stack {
    /// Id in the trace.
    pub(super) iid: u64,
    /// Index into the target's heaps.
    pub(super) heap: usize,
    /// At each dump, and at the end.
    pub(super) tallies: Vec<Tally>,
}

/// The stacks of a target, in the order of callsites. Perfetto adds amounts by process and stack regardless of the heap, so a stack
/// that occurs in several heaps gets an outermost frame with the heap's name, in all heaps but the first.
pub(super) fn stacks<'a>(
    target: &'a TargetProfile,
    presentation: &Presentation,
    dumps: &[Dump],
    code: &mut Code<'a>,
) -> Vec<Stack> {
    let mut stacks: Vec<Stack> = Vec::new();
    let mut known: FxHashMap<(u64, usize), usize> = FxHashMap::default();
    let mut heap_of: FxHashMap<u64, usize> = FxHashMap::default();
    for callsite in &target.callsites {
        let mut stack = code.stack(target, callsite, presentation);
        // All unknown heaps count as one.
        let heap = callsite.heap.min(target.heaps.len());
        let iid = loop {
            let iid = id(code.callstacks.intern_ref(stack.as_slice()));
            if *heap_of.entry(iid).or_insert(heap) == heap {
                break iid;
            }
            stack.insert(0, code.synthetic(format!("[heap {}]", heap_name(target, heap))));
        };
        let at = *known.entry((iid, heap)).or_insert_with(|| {
            stacks.push(Stack { iid, heap, tallies: vec![Tally::default(); dumps.len() + 1] });
            stacks.len() - 1
        });
        for (sum, tally) in stacks[at].tallies.iter_mut().zip(tallies(callsite, dumps)) {
            *sum = sum.zip(tally, u64::saturating_add);
        }
    }
    stacks
}

/// The tallies of a callsite at each dump and at the end.
fn tallies(callsite: &CallsiteProfile, dumps: &[Dump]) -> impl Iterator<Item = Tally> {
    let end = Tally::at_end(callsite);
    let mut last = Tally::default();
    let earlier = dumps.iter().map(move |dump| {
        last = Tally::at(callsite, &held(callsite, dump)).zip(end, u64::min).zip(last, u64::max);
        last
    });
    earlier.chain([end])
}
