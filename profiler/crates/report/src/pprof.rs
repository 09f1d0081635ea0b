//! The format of pprof (`profile.proto`), compressed. Processes, heaps and threads are labels rather than frames, so
//! that stacks that several processes share add up; `-tagroot` turns labels into frames. Sums over all samples are the
//! totals of the JSON report, rounded.

pub(crate) mod file;

use std::borrow::Cow;
use std::io;

use flate2::{Compression, GzBuilder};
use heapbpf_base::units::Rounding;
use heapbpf_ledger::model::{CallsiteProfile, Profile, TargetProfile};
use heapbpf_ledger::totals::Totals;
use prost::Message;

use super::beginnings::beginnings;
use super::describe::Caption;
use super::presentation::{Presentation, View};
use super::proto::pprof as proto;
use super::series::{Series, SeriesValues};
use super::tables::{CodeTables, Intern, Interner, KnownCalls, OrderedMap, hex, process_frame, signed};
use super::{describe, text};

/// Values of a sample, in the order of Go's heap profiles.
const VIEWS: [View; 4] = [View::AllocCount, View::AllocBytes, View::LiveCount, View::LiveBytes];

/// What a file is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    State,
    /// As in the delta profiles of Go's `net/http/pprof`: differences between end and start, negative where more was freed.
    Change,
    /// Some of the targets for a server, with these quantities only.
    Series(SeriesValues),
}

impl Content {
    fn has(self, view: View) -> bool {
        match self {
            Self::Series(values) => values.has(view),
            Self::State | Self::Change => true,
        }
    }

    fn of_callsite(self, callsite: &CallsiteProfile) -> [i64; 4] {
        match self {
            Self::Change => change(&callsite.totals, callsite.rounding),
            _ => VIEWS.map(|view| if self.has(view) { signed(view.of_callsite(callsite)) } else { 0 }),
        }
    }

    fn of_folded(self, profile: &Profile) -> [i64; 4] {
        match self {
            Self::Change => change(&profile.others.folded_totals, Rounding::default()),
            _ => VIEWS.map(|view| signed(view.of_folded(profile))),
        }
    }
}

/// In the order of [`VIEWS`].
fn change(totals: &Totals, rounding: Rounding) -> [i64; 4] {
    [
        signed(totals.alloc_count.rounded_with(rounding)),
        signed(totals.alloc_bytes.rounded()),
        totals.delta_count().rounded_signed(rounding),
        totals.delta_bytes().rounded_signed(Rounding::default()),
    ]
}

pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    write_all(Content::State, profile, presentation, out)
}

/// Writes how a window changed the heap.
pub fn write_change(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    write_all(Content::Change, profile, presentation, out)
}

fn write_all(
    content: Content,
    profile: &Profile,
    presentation: &Presentation,
    out: &mut dyn io::Write,
) -> io::Result<()> {
    let mut tables = Tables::new(profile, content);
    profile.targets.iter().for_each(|target| tables.add_target(target));
    // One sample for the processes of which only totals are kept, so that sums over all samples are the totals.
    let folded = content.of_folded(profile);
    if folded != [0; 4] {
        let key = vec![tables.code.named_location(describe::FOLDED), tables.label_sets.intern(Vec::new())];
        tables.samples.insert(key, folded);
    }
    tables.compress(presentation, out)
}

/// A file, compressed, with some of the targets, for a server that stores profiles by the labels that it receives beside
/// them. Labels of samples add to these, so only the heap and a requested thread are labels.
pub fn encode_series(series: &Series<'_>, values: SeriesValues) -> io::Result<Vec<u8>> {
    let mut tables = Tables::new(series.profile, Content::Series(values));
    series.targets.iter().for_each(|target| tables.add_target(target));
    let mut bytes = Vec::new();
    tables.compress(&View::LiveBytes.into(), &mut bytes)?;
    Ok(bytes)
}

struct Tables<'a> {
    content: Content,
    profile: &'a Profile,
    code: CodeTables<'a>,
    label_sets: Interner<Vec<proto::Label>>,
    /// Values in the order of [`VIEWS`], by the ids of locations and, last, the label set.
    samples: OrderedMap<Vec<u32>, [i64; 4]>,
}

impl<'a> Tables<'a> {
    fn new(profile: &'a Profile, content: Content) -> Self {
        Self {
            content,
            profile,
            code: CodeTables::new(profile, true),
            label_sets: Interner::default(),
            samples: OrderedMap::default(),
        }
    }

    fn is_series(&self) -> bool {
        matches!(self.content, Content::Series(_))
    }

    fn string(&mut self, text: impl Into<Cow<'a, str>>) -> i64 {
        self.code.string(text).into()
    }

    fn add_target(&mut self, target: &'a TargetProfile) {
        let mut common = Vec::new();
        if !self.is_series() {
            self.text_label(&mut common, "process", process_frame(target));
            self.text_label(&mut common, "command", &target.facts.command);
            self.text_label(&mut common, "cgroup", target.facts.cgroup.as_deref().unwrap_or_default());
        }
        let mut known = KnownCalls::default();
        for callsite in &target.callsites {
            let values = self.content.of_callsite(callsite);
            if values == [0; 4] {
                continue;
            }
            let mut key = self.code.stack(target, callsite, &mut known);
            key.push(self.label_set(common.clone(), target, callsite));
            let sums = self.samples.entry(key).or_default();
            *sums = std::array::from_fn(|i| sums[i].saturating_add(values[i]));
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

    fn label_set(
        &mut self,
        mut labels: Vec<proto::Label>,
        target: &'a TargetProfile,
        callsite: &CallsiteProfile,
    ) -> u32 {
        let thread = callsite.thread.and_then(|thread| target.threads.get(thread));
        let heap = target.heaps.get(callsite.heap).map_or("", |heap| heap.name.as_str());
        self.text_label(&mut labels, "heap", heap);
        self.text_label(&mut labels, "thread", thread.and_then(|thread| thread.name.as_deref()).unwrap_or_default());
        if self.is_series() {
            return self.label_sets.intern(labels);
        }
        labels.push(self.number_label("pid", target.facts.pid.0.into(), "count"));
        labels.extend(thread.map(|thread| self.number_label("thread_id", thread.tid.0.into(), "count")));
        self.label_sets.intern(labels)
    }

    /// Readers take the first mapping for the program, so the first file not named like a library is moved there.
    fn mapping_order(&self) -> Vec<usize> {
        let mappings = &self.code.mappings;
        let mut order: Vec<usize> = (1..mappings.len()).collect();
        let is_program = |path: &str| !path.starts_with('[') && !path.ends_with(".so") && !path.contains(".so.");
        if let Some(first) = order.iter().position(|&index| is_program(mappings[index].path)) {
            order[..=first].rotate_right(1);
        }
        order
    }

    fn compress(&mut self, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
        // Without a time and a name, the same profile gives the same bytes.
        let mut compressed = GzBuilder::new().mtime(0).write(out, Compression::default());
        self.write(presentation, &mut compressed)?;
        compressed.finish().map(|_| ())
    }

    /// Writes the file as many small messages: consecutive messages of one type are merged by concatenating their lists.
    fn write(&mut self, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
        let mut part = |part: proto::Profile| out.write_all(&part.encode_to_vec());
        part(self.header(presentation))?;
        for (key, values) in std::mem::take(&mut self.samples) {
            part(proto::Profile { sample: vec![self.sample(&key, values)], ..Default::default() })?;
        }
        let order = self.mapping_order();
        let mut mapping_ids = vec![0; order.len() + 1];
        for (id, index) in (1..).zip(order) {
            mapping_ids[index] = id;
            part(proto::Profile { mapping: vec![self.mapping(id, index)], ..Default::default() })?;
        }
        for (id, location) in (0..).zip(&self.code.locations).skip(1) {
            let line = |&(function, line): &(u32, u32)| proto::Line { function_id: function.into(), line: line.into() };
            let mapping_id = mapping_ids[location.mapping as usize];
            let line = location.lines.iter().map(line).collect();
            let location = proto::Location { id, mapping_id, address: location.address, line };
            part(proto::Profile { location: vec![location], ..Default::default() })?;
        }
        for (id, &[name, filename]) in (0..).zip(&self.code.functions).skip(1) {
            let function = proto::Function { id, name: name.into(), system_name: 0, filename: filename.into() };
            part(proto::Profile { function: vec![function], ..Default::default() })?;
        }
        for text in &self.code.strings {
            part(proto::Profile { string_table: vec![text.to_string()], ..Default::default() })?;
        }
        Ok(())
    }

    fn sample(&mut self, key: &[u32], values: [i64; 4]) -> proto::Sample {
        let (&labels, locations) = key.split_last().expect("keys end with the label set");
        let mut label = self.label_sets[labels as usize].clone();
        let [alloc_count, alloc_bytes, live_count, live_bytes] = values;
        let mean_bytes = alloc_bytes.checked_div(alloc_count).or_else(|| live_bytes.checked_div(live_count));
        let mean_bytes = mean_bytes.filter(|_| !self.is_series()).and_then(|bytes| u64::try_from(bytes).ok());
        label.extend(mean_bytes.map(|bytes| self.number_label("bytes", bytes, "bytes")));
        let location_id = locations.iter().copied().map(u64::from).collect();
        let value = VIEWS.into_iter().zip(values).filter(|&(view, _)| self.content.has(view));
        proto::Sample { location_id, value: value.map(|(_, value)| value).collect(), label }
    }

    fn mapping(&mut self, id: u64, index: usize) -> proto::Mapping {
        let mapping = self.code.mappings[index];
        let [memory_start, memory_limit, file_offset] = mapping.range;
        proto::Mapping {
            id,
            memory_start,
            memory_limit,
            file_offset,
            filename: self.string(mapping.path),
            build_id: self.string(mapping.build_id.map(hex).unwrap_or_default()),
            // All names are included, so that no reader looks for them.
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            has_inline_frames: true,
        }
    }

    fn header(&mut self, presentation: &Presentation) -> proto::Profile {
        let profile = self.profile;
        let views = VIEWS.into_iter().filter(|&view| self.content.has(view)).collect::<Vec<_>>();
        let sample_type = views.into_iter().map(|view| self.value_type(view.sample_type())).collect();
        let [time_ns, duration_ns] = match self.content {
            Content::Series(SeriesValues::LiveAtEnd) => [describe::end_unix_ns(profile), 0],
            _ => [describe::start_unix_ns(profile), describe::duration_ns(profile)],
        };
        let comments = match self.content {
            // Totals and findings are of all targets.
            Content::Series(_) => vec![format!("heapbpf {}", env!("CARGO_PKG_VERSION"))],
            Content::State | Content::Change => comments(profile, presentation),
        };
        let default_view = if self.content.has(presentation.view) { presentation.view } else { View::AllocBytes };
        proto::Profile {
            sample_type,
            time_nanos: signed(time_ns),
            duration_nanos: signed(duration_ns),
            period_type: Some(self.value_type(("space", "bytes"))),
            period: signed(profile.interval_bytes.max(1)),
            comment: comments.into_iter().map(|line| self.string(line)).collect(),
            default_sample_type: self.string(default_view.sample_type().0),
            ..Default::default()
        }
    }

    fn value_type(&mut self, (kind, unit): (&'static str, &'static str)) -> proto::ValueType {
        proto::ValueType { kind: self.string(kind), unit: self.string(unit) }
    }
}

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
        format!("all {title}: {}", describe::total(profile, view))
    }));
    if let Some(age_ns) = profile.older_than_ns {
        lines.push(format!("inuse: blocks older than {} only", text::duration(age_ns)));
    }
    lines.push(format!("verdict: {}", caption.verdict));
    let lost = profile.health.lost.iter().filter(|(_, count)| *count > 0);
    lines.extend(
        lost.map(|(reason, count)| format!("lost: {} {}", text::printable(reason.name()), text::count(*count))),
    );
    let hooks = describe::each_once(profile).into_iter().filter(|(_, hook)| hook.is_missing());
    lines.extend(hooks.map(|(_, hook)| describe::unattached(hook)));
    lines.extend(describe::interval_changes(profile));
    if inspected.is_none() {
        lines.push(format!("recorded for {}", text::duration(describe::duration_ns(profile))));
    }
    lines.extend(beginnings(profile));
    if !presentation.by.is_empty() {
        let labels: Vec<&str> = presentation.by.iter().map(|group| group.name()).collect();
        lines.push(format!("grouped with -tagroot={}", labels.join(",")));
    }
    lines
}
