//! The rows of a row group.

use heapbpf_ledger::model::{CallsiteProfile, Frame, FrameId, Profile, TargetProfile, Workload, base_name};
use indexmap::IndexSet;
use rustc_hash::{FxBuildHasher, FxHashMap};
use sha2::{Digest as _, Sha256};

use crate::presentation::{self, Presentation, View};
use crate::tables::{self, CodeLocation, Intern, Interner, gap_frames, group_frame, heap_name, hex, signed};
use crate::usage::own_frame;

/// Rows of a row group: the unit in which readers share the work, and which the writer holds in memory (about 40 MB).
pub(super) const ROWS_MAX: usize = 1 << 17;

pub(super) const TEXTS: [&str; 14] = [
    "host",
    "command",
    "comm",
    "cgroup",
    "container_id",
    "pod_uid",
    "unit",
    "heap",
    "thread",
    "function",
    "file",
    "module",
    "build_id",
    "stack_end",
];
pub(super) const TIMES: [&str; 3] = ["recording_start", "window_start", "window_end"];
pub(super) const NUMBERS: [&str; 13] = [
    "pid",
    "stack_id",
    "line",
    "live_bytes",
    "live_blocks",
    "alloc_bytes",
    "alloc_blocks",
    "free_bytes",
    "free_blocks",
    "opening_bytes",
    "live_samples",
    "alloc_samples",
    "interval_bytes",
];
pub(super) const VARIANCES: [&str; 2] = ["live_bytes_variance", "alloc_bytes_variance"];
pub(super) const FLAGS: [&str; 3] = ["inherited", "incomplete", "ended"];
/// Lists of equal length, the allocating function first.
pub(super) const STACKS: [&str; 3] = ["stack", "positions", "build_ids"];

/// Index of a string; `None` is null.
type Text = Option<u32>;
/// Values of [`STACKS`].
type FrameTexts = [Text; STACKS.len()];

#[derive(Default)]
pub(super) struct Group {
    pub(super) strings: Interner<Box<str>>,
    pub(super) stacks: IndexSet<Box<[FrameTexts]>, FxBuildHasher>,
    pub(super) rows: Vec<Row>,
}

/// Values in the order of the columns' names above.
pub(super) struct Row {
    pub(super) texts: [Text; TEXTS.len()],
    times: [i64; TIMES.len()],
    numbers: [i64; NUMBERS.len()],
    pub(super) variances: [f64; VARIANCES.len()],
    pub(super) flags: [bool; FLAGS.len()],
    pub(super) stack: u32,
}

impl Row {
    /// Of [`TIMES`], then of [`NUMBERS`].
    pub(super) fn number(&self, at: usize) -> i64 {
        self.times.get(at).copied().unwrap_or_else(|| self.numbers[at - TIMES.len()])
    }
}

impl Group {
    pub(super) fn add(&mut self, code: &mut Code<'_>, callsite: &CallsiteProfile) {
        let stack = callsite.stack.iter().map(|&id| code.frame(id, &mut self.strings)).collect();
        let stack = tables::index(self.stacks.insert_full(stack).0);
        let texts = code.texts(callsite, &mut self.strings);
        let (target, profile) = (code.target, code.profile);
        let (totals, live) = (&callsite.totals, callsite.older.unwrap_or_else(|| callsite.totals.live()));
        let heap = target.heaps.get(callsite.heap);
        let interval = heap.map_or(profile.interval_bytes, |heap| heap.interval_bytes_max.max(heap.interval_bytes));
        let amount = |view: View| signed(view.of_callsite(callsite));
        let numbers = [
            i64::from(target.facts.pid.0),
            code.stack_id(callsite),
            code.own(callsite).and_then(|frame| frame.line).map_or(0, i64::from),
            amount(View::LiveBytes),
            amount(View::LiveCount),
            amount(View::AllocBytes),
            amount(View::AllocCount),
            signed(totals.free_bytes.rounded()),
            signed(totals.free_count.rounded_with(callsite.rounding)),
            signed(totals.opening_bytes.rounded()),
            signed(live.samples),
            signed(totals.alloc_samples),
            signed(interval),
        ];
        self.rows.push(Row {
            texts,
            times: code.times,
            numbers,
            variances: [live.variance.bytes.to_f64(), totals.alloc_variance.bytes.to_f64()],
            flags: [callsite.inherited, code.incomplete, !target.facts.is_running()],
            stack,
        });
    }

    /// Puts windows of the same callsite side by side, which compresses best.
    pub(super) fn sort(&mut self) {
        self.rows.sort_by_key(|row| (row.numbers[0], row.stack, row.texts, row.times));
    }
}

/// A target's callsites as rows.
pub(super) struct Code<'a> {
    profile: &'a Profile,
    target: &'a TargetProfile,
    presentation: &'a Presentation,
    workload: Workload<'a>,
    times: [i64; TIMES.len()],
    incomplete: bool,
    /// Names of frames, which many stacks share.
    known: FxHashMap<FrameId, [Option<String>; STACKS.len()]>,
}

impl<'a> Code<'a> {
    pub(super) fn new(profile: &'a Profile, target: &'a TargetProfile, presentation: &'a Presentation) -> Self {
        let (start, end) = match &profile.window {
            Some(window) => (window.start_unix_ns, window.end_unix_ns),
            None => (profile.started_unix_ns, profile.ended_unix_ns),
        };
        Self {
            profile,
            target,
            presentation,
            workload: target.facts.cgroup.as_deref().map(Workload::of_cgroup).unwrap_or_default(),
            times: [profile.started_unix_ns, start, end].map(|unix_ns| signed(unix_ns / 1000)),
            incomplete: profile.incomplete(),
            known: FxHashMap::default(),
        }
    }

    /// The innermost frame that belongs to no allocator or runtime.
    fn own(&self, callsite: &CallsiteProfile) -> Option<&'a Frame> {
        own_frame(self.profile, callsite).and_then(|at| tables::frame(self.profile, *callsite.stack.get(at)?))
    }

    fn texts(&self, callsite: &CallsiteProfile, strings: &mut Interner<Box<str>>) -> [Text; TEXTS.len()] {
        let (facts, workload) = (&self.target.facts, &self.workload);
        let own = self.own(callsite);
        let function = own.map(Frame::label);
        let build_id = own.and_then(|frame| self.build_id(frame));
        let thread = callsite.thread.map(|_| group_frame(presentation::Group::Thread, self.target, callsite));
        let end: Vec<String> = gap_frames(callsite).collect();
        let end = (!end.is_empty()).then(|| end.join(" "));
        let texts = [
            self.presentation.host.as_deref(),
            Some(facts.command.as_str()),
            Some(facts.comm.as_str()),
            facts.cgroup.as_deref(),
            workload.container_id,
            workload.pod_uid.as_deref(),
            workload.unit,
            Some(heap_name(self.target, callsite.heap)),
            thread.as_deref(),
            function.as_deref(),
            own.and_then(|frame| frame.file.as_deref()),
            own.and_then(|frame| frame.module.as_deref()),
            build_id.as_deref(),
            end.as_deref(),
        ];
        texts.map(|text| text.map(|text| strings.intern_ref(text)))
    }

    fn frame(&mut self, id: FrameId, strings: &mut Interner<Box<str>>) -> FrameTexts {
        if !self.known.contains_key(&id) {
            let texts = self.frame_texts(id);
            self.known.insert(id, texts);
        }
        self.known[&id].each_ref().map(|text| text.as_deref().map(|text| strings.intern_ref(text)))
    }

    fn frame_texts(&self, id: FrameId) -> [Option<String>; STACKS.len()] {
        let Some(frame) = tables::frame(self.profile, id) else { return [const { None }; STACKS.len()] };
        let position = match (&frame.file, &frame.module, frame.module_offset) {
            (Some(file), _, _) => Some(frame.line.map_or_else(|| file.to_string(), |line| format!("{file}:{line}"))),
            (None, Some(module), Some(offset)) => Some(format!("{}+{offset:#x}", base_name(module))),
            (None, ..) => None,
        };
        [Some(frame.label()), position, self.build_id(frame)]
    }

    fn build_id(&self, frame: &Frame) -> Option<String> {
        CodeLocation::of(self.profile, self.target, frame).build_id().map(hex)
    }

    /// A number of the stack's functions and the base names of their modules: equal on all hosts and for all builds in
    /// which the functions have the same names.
    fn stack_id(&self, callsite: &CallsiteProfile) -> i64 {
        let mut hash = Sha256::new();
        for frame in callsite.stack.iter().filter_map(|&id| tables::frame(self.profile, id)) {
            let module = frame.module.as_deref().map(base_name).unwrap_or_default();
            hash.update(format!("{}\0{module}\0", frame.label()));
        }
        let digest: [u8; 32] = hash.finalize().into();
        i64::from_be_bytes(*digest.first_chunk().expect("it has 32 bytes"))
    }
}
