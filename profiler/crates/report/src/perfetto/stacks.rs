//! A physical call (a function with the functions inlined into it) is one frame; its names and lines are symbols of
//! the module. Perfetto looks symbols up by module and address, so if two calls differ at one address, neither gets
//! symbols, and each of their functions is a frame.
//! Amounts are cumulative and never decrease from one dump to the next, which readers would take for a broken trace.

use std::borrow::Cow;

use heapbpf_ledger::model::{CallsiteProfile, Frame, FrameId, HeapUsage, Profile, TargetProfile};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::dumps::{Dump, held, rounded};
use crate::presentation::{Presentation, View};
use crate::proto::perfetto::{self as messages, AddressSymbols, Line, ModuleSymbols};
use crate::tables::{
    CodeLocation, Intern, Interner, OrderedMap, call_address, calls, gap_frames, group_frame, heap_name,
};

/// Module path of synthetic frames, like heapprofd's `ERROR`.
const SYNTHETIC_MODULE: &str = "[heapbpf]";

/// The interned tables of a profile. Ids in the trace are indices plus 1; calls are by index.
#[derive(Default)]
pub(super) struct Code<'a> {
    pub(super) functions: Interner<Cow<'a, str>>,
    pub(super) paths: Interner<&'a str>,
    pub(super) build_ids: Interner<&'a [u8]>,
    /// Module, and start, end, file offset and load bias.
    mappings: Interner<(Module<'a>, [u64; 4])>,
    calls: Interner<Call>,
    /// The calls whose functions are frames of their own.
    expanded: FxHashSet<u32>,
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
    fn synthetic(&mut self, name: String) -> u32 {
        let mapping = id(self.mappings.intern((Module { path: SYNTHETIC_MODULE, build_id: &[] }, [0; 4])));
        let label = id(self.functions.intern(Cow::Owned(name)));
        self.calls.intern(Call { mapping, rel_pc: 0, run: Box::default(), label })
    }

    fn call(&mut self, profile: &'a Profile, target: &'a TargetProfile, run: &[FrameId]) -> Option<u32> {
        let frame = profile.frames.get(run.last()?.0 as usize)?;
        let (module, range, rel_pc) = locate(profile, target, frame);
        let mapping = id(self.mappings.intern((module, range)));
        let call = self.calls.intern(Call { mapping, rel_pc, run: run.into(), label: 0 });
        let owner = *self.symbols.entry((module, rel_pc)).or_insert(call);
        if owner != call && !self.has_same_symbols(profile, owner, call) {
            self.expanded.extend([owner, call]);
        }
        Some(call)
    }

    pub(super) fn mappings(&mut self) -> Vec<messages::Mapping> {
        let mut mapping = |(iid, (module, range)): (u64, &(Module<'a>, [u64; 4]))| {
            let [start, end, offset, load_bias] = *range;
            messages::Mapping {
                iid: Some(iid),
                build_id: (!module.build_id.is_empty()).then(|| id(self.build_ids.intern(module.build_id))),
                start_offset: Some(0),
                start: Some(start),
                end: Some(end),
                load_bias: Some(load_bias),
                path_string_ids: components(module.path).map(|part| id(self.paths.intern(part))).collect(),
                exact_offset: Some(offset),
            }
        };
        (1..).zip(&self.mappings).map(&mut mapping).collect()
    }

    fn run(&self, profile: &'a Profile, call: u32) -> impl DoubleEndedIterator<Item = &'a Frame> {
        self.calls[call as usize].run.iter().map(|&id| profile.frame(id))
    }

    fn has_same_symbols(&self, profile: &'a Profile, one: u32, other: u32) -> bool {
        let symbols = |call| self.run(profile, call).map(|frame| (&frame.function, &frame.file, frame.line));
        symbols(one).eq(symbols(other))
    }

    /// Returns the table of frames, and the frame ids of each call, the outermost first.
    pub(super) fn frames(&mut self, profile: &'a Profile) -> (Vec<messages::Frame>, Vec<Box<[u64]>>) {
        let mut frames = Vec::new();
        let mut ids = Vec::with_capacity(self.calls.len());
        for (call, Call { mapping, rel_pc, run, label }) in (0..).zip(&self.calls) {
            let mut name = |id: &FrameId| {
                let frame = profile.frame(*id);
                let name = frame.function.as_deref().map_or_else(|| Cow::Owned(frame.label()), Cow::Borrowed);
                self::id(self.functions.intern(name))
            };
            let functions: Vec<u64> = match run.last() {
                None => vec![*label],
                Some(physical) if !self.expanded.contains(&call) => vec![name(physical)],
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
    pub(super) fn symbols(&self, profile: &'a Profile) -> Vec<ModuleSymbols> {
        let needs_symbols = |call: u32| {
            let has_line = self.run(profile, call).any(|frame| frame.file.is_some());
            !self.expanded.contains(&call) && (has_line || self.run(profile, call).count() > 1)
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
                address_symbols: addresses
                    .iter()
                    .map(|((_, address), call)| self.lines(profile, *address, **call))
                    .collect(),
            })
        });
        symbols.collect()
    }

    fn lines(&self, profile: &'a Profile, address: u64, call: u32) -> AddressSymbols {
        let lines = self.run(profile, call).map(|frame| Line {
            function_name: Some(frame.label()),
            source_file_name: frame.file.as_deref().map(str::to_owned),
            line_number: frame.line,
        });
        AddressSymbols { address: Some(address), lines: lines.collect() }
    }

    /// The outermost frame first; never empty.
    fn stack(
        &mut self,
        profile: &'a Profile,
        target: &'a TargetProfile,
        callsite: &CallsiteProfile,
        presentation: &Presentation,
    ) -> Vec<u32> {
        let groups = presentation.by.iter().map(|group| group_frame(*group, target, callsite));
        let mut stack: Vec<u32> = groups.chain(gap_frames(callsite)).map(|name| self.synthetic(name)).collect();
        let known: Vec<FrameId> =
            callsite.stack.iter().copied().filter(|id| (id.0 as usize) < profile.frames.len()).collect();
        stack.extend(calls(profile, &known).rev().filter_map(|run| self.call(profile, target, run)));
        if stack.is_empty() {
            stack.push(self.synthetic("[no frames]".to_owned()));
        }
        stack
    }
}

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

/// Allocated bytes and blocks and freed ones until some time, including what was live at the start.
pub(super) type Tally = [u64; 4];

/// At the end. The difference is what reports show as live.
fn tally_at_end(callsite: &CallsiteProfile) -> Tally {
    let totals = &callsite.totals;
    let bytes = (totals.opening_bytes + totals.alloc_bytes).rounded();
    let count = (totals.opening_count + totals.alloc_count).rounded_with(callsite.rounding);
    tally([bytes, count], [View::LiveBytes, View::LiveCount].map(|view| view.of_callsite(callsite)))
}

fn tally_at(callsite: &CallsiteProfile, held: &HeapUsage) -> Tally {
    let totals = &callsite.totals;
    let bytes = totals.opening_bytes.to_f64() + held.alloc_bytes;
    let count = totals.opening_count.to_f64() + held.alloc_count;
    tally([bytes, count].map(rounded), [held.live_bytes, held.live_count].map(rounded))
}

fn tally([alloc_bytes, alloc_count]: [u64; 2], [live_bytes, live_count]: [u64; 2]) -> Tally {
    let (alloc_bytes, alloc_count) = (alloc_bytes.max(live_bytes), alloc_count.max(live_count));
    [alloc_bytes, alloc_count, alloc_bytes - live_bytes, alloc_count - live_count]
}

/// The tallies of a stack of one heap at each dump and at the end, by its id in the trace and the index of the heap.
pub(super) type Stacks = OrderedMap<(u64, usize), Vec<Tally>>;

/// Perfetto adds amounts by process and stack regardless of the heap, so a stack that occurs in several heaps gets
/// an outermost frame with the heap's name, in all heaps but the first.
pub(super) fn stacks<'a>(
    profile: &'a Profile,
    target: &'a TargetProfile,
    presentation: &Presentation,
    dumps: &[Dump],
    code: &mut Code<'a>,
) -> Stacks {
    let mut stacks = Stacks::default();
    let mut heap_of: FxHashMap<u64, usize> = FxHashMap::default();
    for callsite in &target.callsites {
        let mut stack = code.stack(profile, target, callsite, presentation);
        // All unknown heaps count as one.
        let heap = callsite.heap.min(target.heaps.len());
        let iid = loop {
            let iid = id(code.callstacks.intern_ref(stack.as_slice()));
            if *heap_of.entry(iid).or_insert(heap) == heap {
                break iid;
            }
            stack.insert(0, code.synthetic(format!("[heap {}]", heap_name(target, heap))));
        };
        let sums = stacks.entry((iid, heap)).or_insert_with(|| vec![Tally::default(); dumps.len() + 1]);
        for (sum, tally) in sums.iter_mut().zip(tallies(callsite, dumps)) {
            *sum = std::array::from_fn(|i| sum[i].saturating_add(tally[i]));
        }
    }
    stacks
}

fn tallies(callsite: &CallsiteProfile, dumps: &[Dump]) -> impl Iterator<Item = Tally> {
    let end = tally_at_end(callsite);
    let mut last = Tally::default();
    let earlier = dumps.iter().map(move |dump| {
        let now = tally_at(callsite, &held(callsite, dump));
        last = std::array::from_fn(|i| now[i].min(end[i]).max(last[i]));
        last
    });
    earlier.chain([end])
}
