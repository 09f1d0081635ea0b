//! Frames as all formats write them (physical calls, the module and mapping of an address, and the synthetic frames above
//! a stack), tables of distinct values, numbered in order of first use, and the tables of frames and code that formats share.

use std::borrow::Cow;
use std::hash::Hash;

use heapbpf_base::language::Language;
use heapbpf_ledger::model::{
    CallsiteProfile, Frame, FrameId, FrameKind, MappingProfile, ModuleProfile, Profile, TargetProfile,
};
use indexmap::{Equivalent, IndexMap, IndexSet};
use profiler_common::stack::StackEnd;
use rustc_hash::{FxBuildHasher, FxHashMap};
use serde::{Serialize, Serializer};

use super::presentation::{Group, Presentation};
use super::{cuts, describe};

/// A report that was read from a file can reference frames that it does not contain.
pub(super) fn frame(profile: &Profile, id: FrameId) -> Option<&Frame> {
    profile.frames.get(id.0 as usize)
}

/// Splits a stack into its physical calls, leaf first. The frames of a call share an address: all but the last were inlined into the
/// next one. Only a stack that was cut within a call ends in an inlined frame.
pub(super) fn calls<'a>(profile: &'a Profile, stack: &'a [FrameId]) -> impl DoubleEndedIterator<Item = &'a [FrameId]> {
    stack.split_inclusive(move |&id| !frame(profile, id).is_some_and(|frame| frame.inlined))
}

/// The last byte of the call instruction, rather than the address it returns to, which can belong to the next line or function.
pub(super) fn call_address(frame: &Frame) -> u64 {
    frame.address.saturating_sub(1)
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The module of a frame's code and its mapping in the target. Reports of old versions have neither.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CodeLocation<'a> {
    pub(super) module: Option<&'a ModuleProfile>,
    pub(super) mapping: Option<&'a MappingProfile>,
}

impl<'a> CodeLocation<'a> {
    pub(super) fn of(profile: &'a Profile, target: &'a TargetProfile, frame: &Frame) -> Self {
        let Some(path) = &frame.module else { return Self::default() };
        let module_at = |at: usize| profile.modules.get(at).filter(|module| module.path == *path);
        let address = call_address(frame);
        // Past mappings are listed too, so another module's can cover the address as well.
        let mapping = target
            .mappings
            .iter()
            .find(|mapping| (mapping.start..mapping.end).contains(&address) && module_at(mapping.module).is_some());
        let module = match mapping {
            Some(mapping) => module_at(mapping.module),
            None => profile.modules.iter().find(|module| module.path == *path),
        };
        Self { module, mapping }
    }

    pub(super) fn build_id(&self) -> Option<&'a [u8]> {
        self.module.and_then(|module| module.build_id.as_deref())
    }

    /// Start, end and file offset of the mapping; zeros if it is unknown.
    pub(super) fn range(&self) -> [u64; 3] {
        self.mapping.map_or([0; 3], |mapping| [mapping.start, mapping.end, mapping.offset])
    }
}

/// The frames above a callsite's own, the outermost first. Names are raw: formats that separate frames by
/// characters must escape those.
pub(super) fn synthetic_frames(
    target: &TargetProfile,
    callsite: &CallsiteProfile,
    presentation: &Presentation,
) -> Vec<String> {
    let groups = presentation.by.iter().map(|group| group_frame(*group, target, callsite));
    groups.chain([process_frame(target)]).chain(gap_frames(callsite)).collect()
}

pub(super) fn group_frame(group: Group, target: &TargetProfile, callsite: &CallsiteProfile) -> String {
    match group {
        Group::Thread => match callsite.thread.and_then(|thread| target.threads.get(thread)) {
            Some(thread) => format!("{} ({})", thread.name.as_deref().unwrap_or("thread"), thread.tid.0),
            None => "[thread unknown]".to_owned(),
        },
        Group::Command => target.facts.command.clone(),
        Group::Cgroup => target.facts.cgroup.as_deref().unwrap_or("[control group unknown]").to_owned(),
        Group::Heap => heap_name(target, callsite.heap).to_owned(),
    }
}

pub(super) fn heap_name(target: &TargetProfile, heap: usize) -> &str {
    target.heaps.get(heap).map_or("[heap unknown]", |heap| &heap.name)
}

pub fn process_frame(target: &TargetProfile) -> String {
    format!("{} ({})", target.facts.comm, target.facts.pid)
}

pub fn gap_frames(callsite: &CallsiteProfile) -> impl DoubleEndedIterator<Item = String> {
    let inherited = callsite.inherited.then(|| describe::INHERITED.to_owned());
    inherited.into_iter().chain(end_frame(callsite.end, &callsite.stack))
}

pub(super) fn end_frame(end: Option<StackEnd>, stack: &[FrameId]) -> Option<String> {
    match end {
        None if stack.is_empty() => Some("[stack lost]".to_owned()),
        None => Some("[unwind stopped: unknown reason]".to_owned()),
        Some(StackEnd::Complete | StackEnd::NativeMissing) if stack.is_empty() => Some("[no frames]".to_owned()),
        // A frame within the stack stands for what is missing.
        Some(StackEnd::Complete | StackEnd::NativeMissing) => None,
        Some(end) => Some(format!("[unwind stopped: {}]", cuts::reason(end))),
    }
}

pub(super) type OrderedMap<K, V> = IndexMap<K, V, FxBuildHasher>;

pub(super) type Interner<T> = IndexSet<T, FxBuildHasher>;

pub(super) trait Intern<T> {
    /// The value's index.
    fn intern(&mut self, value: T) -> u32;

    /// Like [`Self::intern`], for borrowed values: allocates only if the value is new.
    fn intern_ref<Q: Hash + Equivalent<T> + ToOwned<Owned: Into<T>> + ?Sized>(&mut self, value: &Q) -> u32;
}

impl<T: Hash + Eq> Intern<T> for Interner<T> {
    fn intern(&mut self, value: T) -> u32 {
        index(self.insert_full(value).0)
    }

    fn intern_ref<Q: Hash + Equivalent<T> + ToOwned<Owned: Into<T>> + ?Sized>(&mut self, value: &Q) -> u32 {
        self.get_index_of(value).map_or_else(|| self.intern(value.to_owned().into()), index)
    }
}

/// Serializes as an object with one list per column.
pub(super) struct ByColumn<R: 'static, V: 'static> {
    pub(super) rows: Vec<R>,
    pub(super) columns: Columns<R, V>,
}

pub(super) type Columns<R, V> = &'static [(&'static str, fn(&R) -> V)];

impl<R, V: Serialize> Serialize for ByColumn<R, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let column = |&(name, value)| (name, Each(move || self.rows.iter().map(value)));
        serializer.collect_map(self.columns.iter().map(column))
    }
}

/// A list whose items are made while it is serialized.
pub(super) struct Each<F>(pub(super) F);

impl<I: IntoIterator<Item: Serialize>, F: Fn() -> I> Serialize for Each<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// For formats with signed numbers.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn index(of: usize) -> u32 {
    u32::try_from(of).expect("profiles number their frames in 32 bits")
}

/// The tables of code of pprof and OpenTelemetry. Entry 0 of each is empty and stands for none.
pub(super) struct CodeTables<'a> {
    profile: &'a Profile,
    /// Code without a name has a line with its module and offset, rather than no line.
    labels_nameless: bool,
    pub(super) strings: Interner<Cow<'a, str>>,
    /// Name and source file, both strings.
    pub(super) functions: Interner<[u32; 2]>,
    pub(super) mappings: Interner<Mapping<'a>>,
    pub(super) locations: Interner<Location>,
}

/// Without a range if the address of the file in memory is unknown.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Mapping<'a> {
    /// Start, end and file offset.
    pub(super) range: [u64; 3],
    pub(super) path: &'a str,
    pub(super) build_id: Option<&'a [u8]>,
}

/// A call, or a frame that is not code.
#[derive(Default, PartialEq, Eq, Hash)]
pub(super) struct Location {
    pub(super) mapping: u32,
    pub(super) address: u64,
    /// Functions with their lines, 0 if unknown. All but the last were inlined into the next one.
    pub(super) lines: Box<[(u32, u32)]>,
    /// What executes it, as OpenTelemetry names it; `None` if that is unknown.
    pub(super) frame_type: Option<&'static str>,
}

pub(super) type KnownCalls<'a> = FxHashMap<&'a [FrameId], u32>;

impl<'a> CodeTables<'a> {
    pub(super) fn new(profile: &'a Profile, labels_nameless: bool) -> Self {
        Self {
            profile,
            labels_nameless,
            strings: Interner::from_iter([Cow::Borrowed("")]),
            functions: Interner::from_iter([[0; 2]]),
            mappings: Interner::from_iter([Mapping::default()]),
            locations: Interner::from_iter([Location::default()]),
        }
    }

    pub(super) fn string(&mut self, text: impl Into<Cow<'a, str>>) -> u32 {
        self.strings.intern(text.into())
    }

    /// The locations of a stack, leaf first, so the outermost gap is last.
    pub(super) fn stack(
        &mut self,
        target: &'a TargetProfile,
        callsite: &'a CallsiteProfile,
        known: &mut KnownCalls<'a>,
    ) -> Vec<u32> {
        let calls = calls(self.profile, &callsite.stack);
        let mut stack: Vec<u32> =
            calls.map(|call| *known.entry(call).or_insert_with(|| self.location(target, call))).collect();
        stack.extend(gap_frames(callsite).rev().map(|gap| self.named_location(gap)));
        stack
    }

    fn location(&mut self, target: &'a TargetProfile, call: &[FrameId]) -> u32 {
        let frames: Vec<Option<&Frame>> = call.iter().map(|&id| frame(self.profile, id)).collect();
        let physical = frames.last().copied().flatten();
        let mapping = physical.map_or(0, |frame| self.mapping(target, frame));
        let lines = match frames.as_slice() {
            [Some(Frame { function: None, file: None, .. })] if !self.labels_nameless => Box::default(),
            frames => frames.iter().map(|frame| self.line(*frame)).collect(),
        };
        let address = physical.map_or(0, call_address);
        let frame_type = physical.and_then(|frame| frame_type(target, frame));
        self.locations.intern(Location { mapping, address, lines, frame_type })
    }

    pub(super) fn named_location(&mut self, name: impl Into<Cow<'a, str>>) -> u32 {
        let name = self.string(name);
        let lines = [(self.functions.intern([name, 0]), 0)].into();
        self.locations.intern(Location { lines, ..Location::default() })
    }

    fn line(&mut self, frame: Option<&'a Frame>) -> (u32, u32) {
        let name = match frame {
            None => Cow::Borrowed("[frame unknown]"),
            Some(Frame { function: Some(function), .. }) if !function.is_empty() => Cow::Borrowed(&**function),
            Some(frame) => Frame { function: None, ..frame.clone() }.label().into(),
        };
        let file = frame.and_then(|frame| frame.file.as_deref()).unwrap_or_default();
        let function = [self.string(name), self.string(file)];
        (self.functions.intern(function), frame.and_then(|frame| frame.line).unwrap_or(0))
    }

    fn mapping(&mut self, target: &'a TargetProfile, frame: &'a Frame) -> u32 {
        let Some(path) = &frame.module else { return 0 };
        let location = CodeLocation::of(self.profile, target, frame);
        self.mappings.intern(Mapping { range: location.range(), path, build_id: location.build_id() })
    }
}

/// Value of `profile.frame.type` in OpenTelemetry's semantic conventions.
fn frame_type(target: &TargetProfile, frame: &Frame) -> Option<&'static str> {
    match frame.kind {
        FrameKind::Native | FrameKind::Runtime => frame.module.is_some().then_some("native"),
        FrameKind::Interpreted | FrameKind::Jitted => only_runtime(target).map(|language| language.facts().frame_type),
    }
}

/// The language of interpreted and generated code: the target's, if it has one only.
pub(super) fn only_runtime(target: &TargetProfile) -> Option<Language> {
    match target.memory.runtimes() {
        [language] => Some(*language),
        _ => None,
    }
}

/// Indices of the profile's frames, then of synthetic ones. Trees of valgrind's formats grow from the allocation to
/// its callers, so groups come first, and the frame that replaces missing callers comes last.
#[derive(Default)]
pub(super) struct ValgrindFrames {
    synthetic: Interner<String>,
}

impl ValgrindFrames {
    /// From the node below the root to the outermost function. If there are several processes, it contains the process.
    pub(super) fn path(
        &mut self,
        profile: &Profile,
        target: &TargetProfile,
        callsite: &CallsiteProfile,
        presentation: &Presentation,
    ) -> Vec<u32> {
        let groups = presentation.by.iter().map(|group| group_frame(*group, target, callsite));
        let process = (profile.targets.len() > 1).then(|| process_frame(target));
        let mut path: Vec<u32> = groups.chain(process).map(|name| self.synthetic(profile, name)).collect();
        path.extend(callsite.stack.iter().filter(|&&id| frame(profile, id).is_some()).map(|id| id.0));
        path.extend(gap_frames(callsite).rev().map(|name| self.synthetic(profile, name)));
        path
    }

    pub(super) fn synthetic(&mut self, profile: &Profile, name: String) -> u32 {
        index(profile.frames.len()) + self.synthetic.intern(name)
    }

    /// `0x5588AC: function (file:line)`, `0x5588AC: function (in module)`, or the name of a synthetic frame.
    pub(super) fn text(&self, profile: &Profile, at: u32) -> String {
        let at = at as usize;
        let Some(frame) = profile.frames.get(at) else {
            return self.synthetic[at - profile.frames.len()].clone();
        };
        let function = frame.function.as_deref().unwrap_or("???");
        let place = match (&frame.file, frame.line, &frame.module) {
            (Some(file), Some(line), _) => format!(" ({file}:{line})"),
            (Some(file), None, _) => format!(" ({file})"),
            (None, _, Some(module)) => format!(" (in {module})"),
            (None, _, None) => String::new(),
        };
        format!("0x{:X}: {function}{place}", frame.address)
    }
}
