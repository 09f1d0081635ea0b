//! The format of pprof (`profile.proto`), compressed.
//!
//! A sample is a stack with labels and four values. Processes, heaps and threads are labels rather than frames, so that stacks that
//! several processes share add up; `-tagroot` turns labels into frames. Sums over all samples are the totals of the JSON report,
//! rounded by callsite.

use std::borrow::Cow;
use std::io;

use flate2::{Compression, GzBuilder};
use prost::Message;
use rustc_hash::FxHashMap;

use super::caption::{self, Caption};
use super::frames::{CodeLocation, call_address, calls, frame, gap_frames, hex, process_frame};
use super::intern::Interner;
use super::presentation::{Presentation, View};
use super::spec::FormatSpec;
use super::{describe, text};
use crate::model::{CallsiteProfile, Frame, FrameId, Profile, TargetProfile};

pub(super) const FORMAT: FormatSpec =
    FormatSpec { name: "pprof", extension: "pb.gz", description: "pprof", is_text: false, write: Some(write) };

/// Values of a sample, in the order of Go's heap profiles.
const VIEWS: [View; 4] = [View::AllocCount, View::AllocBytes, View::LiveCount, View::LiveBytes];

/// The only frame of the sample for processes of which only totals are kept.
const FOLDED: &str = "[processes that exited, only totals kept]";

/// Replaces the mapping in the key of a location that is not code.
const NO_CODE: u32 = u32::MAX;

fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let mut tables = Tables::new(profile);
    for target in &profile.targets {
        tables.add_target(target);
    }
    tables.add_folded();
    // Without a time and a name, the same profile gives the same bytes.
    let mut compressed = GzBuilder::new().mtime(0).write(out, Compression::default());
    tables.write(presentation, &mut compressed)?;
    compressed.finish()?;
    Ok(())
}

/// The tables of the file. The ids of mappings, functions and locations are their index plus 1; 0 is none.
struct Tables<'a> {
    profile: &'a Profile,
    /// Text 0 is empty.
    strings: Interner<Cow<'a, str>>,
    mappings: Interner<Mapping<'a>>,
    /// Name and file, both texts.
    functions: Interner<(i64, i64)>,
    /// By mapping id and the frames of a call, or by [`NO_CODE`] and a text.
    location_keys: Interner<Box<[u32]>>,
    locations: Vec<Location>,
    label_sets: Interner<Vec<proto::Label>>,
    /// By the ids of locations and, last, the label set.
    sample_keys: Interner<Box<[u32]>>,
    /// In the order of [`VIEWS`].
    samples: Vec<[u64; 4]>,
}

/// Without a range if the address of the file in memory is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Mapping<'a> {
    range: [u64; 3],
    path: &'a str,
    build_id: Option<&'a [u8]>,
}

struct Location {
    mapping: u32,
    address: u64,
    lines: Box<[proto::Line]>,
}

impl<'a> Tables<'a> {
    fn new(profile: &'a Profile) -> Self {
        Self {
            profile,
            strings: [Cow::Borrowed("")].into_iter().collect(),
            mappings: Interner::default(),
            functions: Interner::default(),
            location_keys: Interner::default(),
            locations: Vec::new(),
            label_sets: Interner::default(),
            sample_keys: Interner::default(),
            samples: Vec::new(),
        }
    }

    fn string(&mut self, text: impl Into<Cow<'a, str>>) -> i64 {
        self.strings.intern(text.into()).into()
    }

    fn add_target(&mut self, target: &'a TargetProfile) {
        let common = self.labels_of_target(target);
        let mut mapping_ids = FxHashMap::default();
        let mut key = Vec::new();
        for callsite in &target.callsites {
            let values = VIEWS.map(|view| view.of_callsite(callsite));
            if values == [0; 4] {
                continue;
            }
            key.clear();
            for call in calls(self.profile, &callsite.stack) {
                key.push(self.location(target, call, &mut mapping_ids));
            }
            // Leaf first, so the outermost gap is last.
            key.extend(gap_frames(callsite).rev().map(|gap| self.named_location(gap)));
            key.push(self.label_set(&common, target, callsite));
            self.add(&key, values);
        }
    }

    /// Adds one sample for the processes of which only totals are kept, so that sums over all samples are the totals.
    fn add_folded(&mut self) {
        let values = VIEWS.map(|view| view.of_folded(self.profile));
        if values != [0; 4] {
            let location = self.named_location(FOLDED);
            let labels = self.label_sets.intern(Vec::new());
            self.add(&[location, labels], values);
        }
    }

    fn add(&mut self, key: &[u32], values: [u64; 4]) {
        let sample = self.sample_keys.intern_ref(key) as usize;
        if sample == self.samples.len() {
            self.samples.push([0; 4]);
        }
        for (sum, value) in self.samples[sample].iter_mut().zip(values) {
            *sum = sum.saturating_add(value);
        }
    }

    /// Adds a text label unless it is empty: readers take an empty text for the number 0.
    fn text_label(&mut self, labels: &mut Vec<proto::Label>, key: &'static str, text: impl Into<Cow<'a, str>>) {
        let text = self.string(text);
        if text != 0 {
            labels.push(proto::Label { key: self.string(key), text, ..Default::default() });
        }
    }

    /// Readers show numbers with the unit `count` as they are; without a unit, they take the key for it.
    fn number_label(&mut self, key: &'static str, number: u64, unit: &'static str) -> proto::Label {
        let number_unit = self.string(unit);
        proto::Label { key: self.string(key), number: signed(number), number_unit, ..Default::default() }
    }

    fn labels_of_target(&mut self, target: &'a TargetProfile) -> Vec<proto::Label> {
        let mut labels = Vec::new();
        self.text_label(&mut labels, "process", process_frame(target));
        self.text_label(&mut labels, "command", &target.facts.command);
        self.text_label(&mut labels, "cgroup", target.facts.cgroup.as_deref().unwrap_or_default());
        labels
    }

    fn label_set(&mut self, common: &[proto::Label], target: &'a TargetProfile, callsite: &CallsiteProfile) -> u32 {
        let mut labels = common.to_vec();
        let thread = callsite.thread.and_then(|thread| target.threads.get(thread));
        let heap = target.heaps.get(callsite.heap).map_or("", |heap| heap.name.as_str());
        self.text_label(&mut labels, "heap", heap);
        self.text_label(&mut labels, "thread", thread.and_then(|thread| thread.name.as_deref()).unwrap_or_default());
        labels.push(self.number_label("pid", target.facts.pid.0.into(), "count"));
        if let Some(thread) = thread {
            labels.push(self.number_label("thread_id", thread.tid.0.into(), "count"));
        }
        self.label_sets.intern(labels)
    }

    /// The location of a call: an instruction, with the functions that were inlined there.
    fn location(
        &mut self,
        target: &'a TargetProfile,
        call: &[FrameId],
        mapping_ids: &mut FxHashMap<FrameId, u32>,
    ) -> u32 {
        let mapping = call.last().map_or(0, |&id| *mapping_ids.entry(id).or_insert_with(|| self.mapping(target, id)));
        let key: Vec<u32> = [mapping].into_iter().chain(call.iter().map(|id| id.0)).collect();
        let index = self.location_keys.intern_ref(key.as_slice());
        if index as usize == self.locations.len() {
            let lines = call.iter().map(|&id| self.line(id)).collect();
            let frame = call.last().and_then(|&id| frame(self.profile, id));
            self.locations.push(Location { mapping, address: frame.map_or(0, call_address), lines });
        }
        index + 1
    }

    /// A location that is not code.
    fn named_location(&mut self, name: impl Into<Cow<'a, str>>) -> u32 {
        let name = self.strings.intern(name.into());
        let index = self.location_keys.intern_ref([NO_CODE, name].as_slice());
        if index as usize == self.locations.len() {
            let line = self.line_of(name.into(), 0, None);
            self.locations.push(Location { mapping: 0, address: 0, lines: [line].into() });
        }
        index + 1
    }

    fn line(&mut self, id: FrameId) -> proto::Line {
        let Some(frame) = frame(self.profile, id) else {
            let name = self.string("[frame unknown]");
            return self.line_of(name, 0, None);
        };
        let name = match frame.function.as_deref() {
            Some(function) if !function.is_empty() => Cow::Borrowed(function),
            _ => Frame { function: None, ..frame.clone() }.label().into(),
        };
        let (name, file) = (self.string(name), self.string(frame.file.as_deref().unwrap_or_default()));
        self.line_of(name, file, frame.line)
    }

    fn line_of(&mut self, name: i64, file: i64, line: Option<u32>) -> proto::Line {
        proto::Line { function_id: u64::from(self.functions.intern((name, file))) + 1, line: line.map_or(0, i64::from) }
    }

    fn mapping(&mut self, target: &'a TargetProfile, id: FrameId) -> u32 {
        let Some((frame, path)) = frame(self.profile, id).and_then(|frame| Some((frame, frame.module.as_deref()?)))
        else {
            return 0;
        };
        let location = CodeLocation::of(self.profile, target, frame);
        self.mappings.intern(Mapping { range: location.range(), path, build_id: location.build_id() }) + 1
    }

    /// Indices of the mappings in the order of the file. Readers take the first mapping for the program, so the first file that is
    /// not named like a library is moved there.
    fn mapping_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.mappings.values.len()).collect();
        let is_program = |path: &str| !path.starts_with('[') && !path.ends_with(".so") && !path.contains(".so.");
        if let Some(first) = self.mappings.values.iter().position(|mapping| is_program(mapping.path)) {
            order[..=first].rotate_right(1);
        }
        order
    }

    /// Writes the file as many small messages: consecutive messages of one type are merged by concatenating their lists.
    fn write(&mut self, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
        let mut part = |part: proto::Profile| out.write_all(&part.encode_to_vec());
        part(self.header(presentation))?;
        for i in 0..self.samples.len() {
            part(proto::Profile { sample: vec![self.sample(i)], ..Default::default() })?;
        }
        let order = self.mapping_order();
        let mut mapping_ids = vec![0; order.len() + 1];
        for (id, &index) in (1..).zip(&order) {
            mapping_ids[index + 1] = id;
            let mapping = self.mapping_message(id, index);
            part(proto::Profile { mapping: vec![mapping], ..Default::default() })?;
        }
        for (id, location) in (1..).zip(&self.locations) {
            let mapping_id = mapping_ids[location.mapping as usize];
            let location = proto::Location { id, mapping_id, address: location.address, line: location.lines.to_vec() };
            part(proto::Profile { location: vec![location], ..Default::default() })?;
        }
        for (id, &(name, filename)) in (1..).zip(&self.functions.values) {
            let function = proto::Function { id, name, system_name: 0, filename };
            part(proto::Profile { function: vec![function], ..Default::default() })?;
        }
        for text in &self.strings.values {
            part(proto::Profile { string_table: vec![text.to_string()], ..Default::default() })?;
        }
        Ok(())
    }

    fn sample(&mut self, i: usize) -> proto::Sample {
        let (values, key) = (self.samples[i], self.sample_keys.values[i].clone());
        let (&labels, locations) = key.split_last().expect("keys end with the label set");
        let mut label = self.label_sets.values[labels as usize].clone();
        let [alloc_count, alloc_bytes, live_count, live_bytes] = values;
        let mean_bytes = alloc_bytes.checked_div(alloc_count).or_else(|| live_bytes.checked_div(live_count));
        label.extend(mean_bytes.map(|bytes| self.number_label("bytes", bytes, "bytes")));
        let location_id = locations.iter().copied().map(u64::from).collect();
        proto::Sample { location_id, value: values.map(signed).to_vec(), label }
    }

    fn mapping_message(&mut self, id: u64, index: usize) -> proto::Mapping {
        let Mapping { range: [memory_start, memory_limit, file_offset], path, build_id } = self.mappings.values[index];
        proto::Mapping {
            id,
            memory_start,
            memory_limit,
            file_offset,
            filename: self.string(path),
            build_id: self.string(build_id.map(hex).unwrap_or_default()),
            // All names are included, so that no reader looks for them.
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            has_inline_frames: true,
        }
    }

    /// Everything but the lists that grow with the profile.
    fn header(&mut self, presentation: &Presentation) -> proto::Profile {
        let profile = self.profile;
        let sample_type = VIEWS.map(|view| self.value_type(view.sample_type())).to_vec();
        proto::Profile {
            sample_type,
            time_nanos: signed(caption::start_unix_ns(profile)),
            duration_nanos: signed(describe::duration_ns(profile)),
            period_type: Some(self.value_type(("space", "bytes"))),
            period: signed(profile.interval_bytes.max(1)),
            comment: comments(profile, presentation).into_iter().map(|line| self.string(line)).collect(),
            default_sample_type: self.string(presentation.view.sample_type().0),
            ..Default::default()
        }
    }

    fn value_type(&mut self, (kind, unit): (&'static str, &'static str)) -> proto::ValueType {
        proto::ValueType { kind: self.string(kind), unit: self.string(unit) }
    }
}

/// Lines about how the profile was recorded, how exact it is, and what is missing.
fn comments(profile: &Profile, presentation: &Presentation) -> Vec<String> {
    let caption = Caption::new(profile, presentation.view);
    let inspected = describe::checked_at(profile);
    let mut lines = vec![
        format!("heapbpf {}", env!("CARGO_PKG_VERSION")),
        format!("profile of {}", caption.subject),
        inspected.clone().unwrap_or_else(|| format!("interval: {}", caption.interval)),
    ];
    // Totals and their accuracy include young blocks, which the samples of live blocks can exclude.
    lines.extend(View::ALL.map(|view| {
        let title = describe::title(profile, view);
        format!("all {title}: {}", caption::total(profile, view))
    }));
    if let Some(age_ns) = profile.older_than_ns {
        lines.push(format!("inuse: blocks older than {} only", text::duration(age_ns)));
    }
    lines.push(format!("losses: {}", caption.losses));
    let lost = profile.health.lost.iter().filter(|(_, count)| *count > 0);
    lines.extend(
        lost.map(|(reason, count)| format!("lost: {} {}", text::printable(reason.name()), text::count(*count))),
    );
    let hooks = describe::each_once(profile).into_iter().filter(|(_, hook)| hook.is_missing());
    lines.extend(hooks.map(|(_, hook)| describe::unattached(hook)));
    let changes = describe::interval_changes(&profile.health);
    lines.extend(changes.iter().map(|(heap, changes)| describe::changed_interval(profile, heap, changes)));
    if inspected.is_none() {
        lines.push(format!("recorded for {}", text::duration(describe::duration_ns(profile))));
    }
    lines.extend(describe::beginnings(profile));
    if !presentation.by.is_empty() {
        let labels: Vec<&str> = presentation.by.iter().map(|group| group.name()).collect();
        lines.push(format!("grouped with -tagroot={}", labels.join(",")));
    }
    lines
}

/// Converts to the format's signed numbers; saturates.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The messages of `profile.proto`.
mod proto {
    use crate::report::proto::messages;

    /// Index into the string table.
    type Text = i64;

    messages! {
        /// Consecutive messages are one whose lists are concatenated.
        Profile {
            sample_type: Vec<ValueType> = [message, repeated, tag = "1"],
            sample: Vec<Sample> = [message, repeated, tag = "2"],
            mapping: Vec<Mapping> = [message, repeated, tag = "3"],
            location: Vec<Location> = [message, repeated, tag = "4"],
            function: Vec<Function> = [message, repeated, tag = "5"],
            /// The first text is empty.
            string_table: Vec<String> = [string, repeated, tag = "6"],
            /// Start, since the Unix epoch.
            time_nanos: i64 = [int64, tag = "9"],
            duration_nanos: i64 = [int64, tag = "10"],
            period_type: Option<ValueType> = [message, optional, tag = "11"],
            period: i64 = [int64, tag = "12"],
            comment: Vec<Text> = [int64, repeated, tag = "13"],
            /// The kind of a sample type.
            default_sample_type: Text = [int64, tag = "14"],
        }

        ValueType {
            kind: Text = [int64, tag = "1"],
            unit: Text = [int64, tag = "2"],
        }

        Sample {
            /// Leaf first.
            location_id: Vec<u64> = [uint64, repeated, tag = "1"],
            /// One for each sample type.
            value: Vec<i64> = [int64, repeated, tag = "2"],
            label: Vec<Label> = [message, repeated, tag = "3"],
        }

        /// A property of a sample: a text or a number.
        #[derive(Eq, Hash)]
        Label {
            key: Text = [int64, tag = "1"],
            text: Text = [int64, tag = "2"],
            number: i64 = [int64, tag = "3"],
            number_unit: Text = [int64, tag = "4"],
        }

        Mapping {
            id: u64 = [uint64, tag = "1"],
            memory_start: u64 = [uint64, tag = "2"],
            memory_limit: u64 = [uint64, tag = "3"],
            file_offset: u64 = [uint64, tag = "4"],
            filename: Text = [int64, tag = "5"],
            build_id: Text = [int64, tag = "6"],
            has_functions: bool = [bool, tag = "7"],
            has_filenames: bool = [bool, tag = "8"],
            has_line_numbers: bool = [bool, tag = "9"],
            has_inline_frames: bool = [bool, tag = "10"],
        }

        Location {
            id: u64 = [uint64, tag = "1"],
            mapping_id: u64 = [uint64, tag = "2"],
            address: u64 = [uint64, tag = "3"],
            /// The last one is the function that the others were inlined into.
            line: Vec<Line> = [message, repeated, tag = "4"],
        }

        Line {
            function_id: u64 = [uint64, tag = "1"],
            line: i64 = [int64, tag = "2"],
        }

        Function {
            id: u64 = [uint64, tag = "1"],
            name: Text = [int64, tag = "2"],
            /// The linker's name. Left empty: if it equals the name, `go tool pprof` demangles the name and drops everything in
            /// brackets.
            system_name: Text = [int64, tag = "3"],
            filename: Text = [int64, tag = "4"],
        }
    }
}
