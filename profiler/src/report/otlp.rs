//! OpenTelemetry's profiles signal (OTLP, `v1development`): an `ExportProfilesServiceRequest`, as sent to a collector. Each target is a
//! resource with four profiles, because a profile has one quantity.

use std::hash::Hash;
use std::io;

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, Profile as OtlpProfile, ProfilesDictionary,
    ResourceProfiles, Sample, ScopeProfiles, Stack, ValueType,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use rustc_hash::FxHashMap;

use super::frames::{CodeLocation, call_address, calls, frame, gap_frames, hex};
use super::intern::Interner;
use super::presentation::{Presentation, View};
use super::spec::FormatSpec;
use super::{caption, describe};
use crate::model::{CallsiteProfile, Frame, FrameId, Profile, TargetProfile};

pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "otlp",
    extension: "otlp",
    description: "OpenTelemetry profile",
    is_text: false,
    write: Some(write),
};

/// Writes the profile of the view first, which viewers show first. Groups of `--by` are always attributes.
fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let mut dictionary = Dictionary::default();
    let resource_profiles =
        profile.targets.iter().map(|target| of_target(profile, target, presentation.view, &mut dictionary)).collect();
    let request = ExportProfilesServiceRequest { resource_profiles, dictionary: Some(dictionary.finish()) };
    out.write_all(&request.encode_to_vec())
}

fn of_target(profile: &Profile, target: &TargetProfile, view: View, dictionary: &mut Dictionary) -> ResourceProfiles {
    let samples = callsite_samples(profile, target, dictionary);
    let attributes = profile_attributes(profile, dictionary);
    let others = View::ALL.into_iter().filter(|other| *other != view);
    let views = std::iter::once(view).chain(others);
    let profiles = views.map(|view| of_view(profile, target, view, &samples, &attributes, dictionary)).collect();
    let scope = InstrumentationScope {
        name: "heapbpf".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_profiles = vec![ScopeProfiles { scope: Some(scope), profiles, schema_url: String::new() }];
    ResourceProfiles { resource: Some(resource(target)), scope_profiles, schema_url: String::new() }
}

/// The process, by OpenTelemetry's attribute names.
fn resource(target: &TargetProfile) -> Resource {
    let cgroup = target.facts.cgroup.as_deref();
    let text = |key, value: &str| (key, Value::StringValue(value.to_owned()));
    let attributes = [
        Some(("process.pid", Value::IntValue(target.facts.pid.0.into()))),
        Some(text("process.command", &target.facts.command)),
        Some(text("process.executable.name", &target.facts.comm)),
        cgroup.map(|cgroup| text("process.linux.cgroup", cgroup)),
        cgroup.and_then(container_id).map(|id| text("container.id", id)),
    ];
    let pair = |(key, value): (&str, Value)| KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    };
    Resource { attributes: attributes.into_iter().flatten().map(pair).collect(), ..Resource::default() }
}

/// Extracts the container id: the 64 hexadecimal digits at the end of a container's control group.
fn container_id(cgroup: &str) -> Option<&str> {
    let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    cgroup.rsplit(|c| !is_digit(c)).find(|digits| digits.len() == 64)
}

/// The samples of all callsites, without values.
fn callsite_samples<'a>(
    profile: &'a Profile,
    target: &'a TargetProfile,
    dictionary: &mut Dictionary,
) -> Vec<(&'a CallsiteProfile, Sample)> {
    let mut known = FxHashMap::default();
    let sample = |callsite: &'a CallsiteProfile| {
        let calls = calls(profile, &callsite.stack);
        let mut stack: Vec<i32> =
            calls.filter_map(|call| location(profile, target, call, &mut known, dictionary)).collect();
        // Leaf first, so the outermost gap is last.
        stack.extend(gap_frames(callsite).rev().map(|gap| dictionary.named_location(&gap)));
        let stack_index = number(dictionary.stacks.intern(stack));
        let attribute_indices = sample_attributes(target, callsite, dictionary);
        (callsite, Sample { stack_index, attribute_indices, ..Sample::default() })
    };
    target.callsites.iter().map(sample).collect()
}

/// The location of a call; `None` if the profile does not have its frames.
fn location<'a>(
    profile: &'a Profile,
    target: &'a TargetProfile,
    call: &'a [FrameId],
    known: &mut FxHashMap<&'a [FrameId], i32>,
    dictionary: &mut Dictionary,
) -> Option<i32> {
    if let Some(&known) = known.get(call) {
        return Some(known);
    }
    let frames: Vec<&Frame> = call.iter().filter_map(|&id| frame(profile, id)).collect();
    let physical = *frames.last()?;
    let mapping = mapping(profile, target, physical, dictionary);
    let lines = lines(&frames, dictionary);
    let location = number(dictionary.locations.intern((mapping, call_address(physical), lines)));
    known.insert(call, location);
    Some(location)
}

/// The mapping of a frame's module: without a range if the address lies in no known mapping of it.
fn mapping(profile: &Profile, target: &TargetProfile, frame: &Frame, dictionary: &mut Dictionary) -> i32 {
    let Some(path) = &frame.module else { return 0 };
    let location = CodeLocation::of(profile, target, frame);
    let [memory_start, memory_limit, file_offset] = location.range();
    let build_id = location.build_id().map(|id| Attribute::Text(hex(id)));
    let attribute = build_id.map(|id| dictionary.attribute("process.executable.build_id.gnu", id));
    let filename_strindex = dictionary.string(path);
    number(dictionary.mappings.intern(Mapping {
        memory_start,
        memory_limit,
        file_offset,
        filename_strindex,
        attribute_indices: attribute.into_iter().collect(),
    }))
}

/// Code without a name has no lines: the build id and the address allow symbolizing it later.
fn lines(frames: &[&Frame], dictionary: &mut Dictionary) -> Vec<Line> {
    if let [Frame { function: None, file: None, .. }] = frames {
        return Vec::new();
    }
    let line = |frame: &&Frame| Line {
        function_index: dictionary.function(&frame.label(), frame.file.as_deref().unwrap_or_default()),
        line: frame.line.unwrap_or(0).into(),
        column: 0,
    };
    frames.iter().map(line).collect()
}

fn sample_attributes(target: &TargetProfile, callsite: &CallsiteProfile, dictionary: &mut Dictionary) -> Vec<i32> {
    let mut attributes = Vec::new();
    if let Some(thread) = callsite.thread.and_then(|thread| target.threads.get(thread)) {
        attributes.push(dictionary.attribute("thread.id", Attribute::Int(thread.tid.0.into())));
        if let Some(name) = &thread.name {
            attributes.push(dictionary.attribute("thread.name", Attribute::Text(name.to_string())));
        }
    }
    if let Some(heap) = target.heaps.get(callsite.heap) {
        attributes.push(dictionary.attribute("heapbpf.heap", Attribute::Text(heap.name.clone())));
    }
    if callsite.inherited {
        attributes.push(dictionary.attribute("heapbpf.inherited", Attribute::Bool(true)));
    }
    attributes
}

/// How the profile was recorded, and what is missing.
fn profile_attributes(profile: &Profile, dictionary: &mut Dictionary) -> Vec<i32> {
    let mut attributes = vec![
        dictionary.attribute("heapbpf.interval", Attribute::Text(describe::interval(profile))),
        dictionary.attribute("heapbpf.losses", Attribute::Text(describe::losses(profile))),
        dictionary.attribute("heapbpf.incomplete", Attribute::Bool(profile.incomplete())),
    ];
    if let Some(window) = &profile.window {
        let reason = window.reason.name().to_owned();
        attributes.push(dictionary.attribute("heapbpf.window.reason", Attribute::Text(reason)));
    }
    if let Some(age_ns) = profile.older_than_ns {
        let age_ns = i64::try_from(age_ns).unwrap_or(i64::MAX);
        attributes.push(dictionary.attribute("heapbpf.older_than_ns", Attribute::Int(age_ns)));
    }
    attributes
}

fn of_view(
    profile: &Profile,
    target: &TargetProfile,
    view: View,
    samples: &[(&CallsiteProfile, Sample)],
    attributes: &[i32],
    dictionary: &mut Dictionary,
) -> OtlpProfile {
    let with_value = |(callsite, sample): &(&CallsiteProfile, Sample)| {
        let value = i64::try_from(view.of_callsite(callsite)).unwrap_or(i64::MAX);
        (value > 0).then(|| Sample { values: vec![value], ..sample.clone() })
    };
    let mut attribute_indices = attributes.to_vec();
    // The interval is of all blocks; that of the old ones among them is unknown.
    if !profile.is_exact_of(target) && !view.shows_old_blocks_only(profile) {
        let [low, high] = view.confidence(&target.totals).map(|end| Attribute::Float(end.to_bits()));
        attribute_indices.push(dictionary.attribute("heapbpf.total_95.low", low));
        attribute_indices.push(dictionary.attribute("heapbpf.total_95.high", high));
    }
    OtlpProfile {
        sample_type: Some(dictionary.value_type(view.sample_type())),
        samples: samples.iter().filter_map(with_value).collect(),
        time_unix_nano: caption::start_unix_ns(profile),
        duration_nano: describe::duration_ns(profile),
        period_type: Some(dictionary.value_type(("space", "bytes"))),
        period: i64::try_from(profile.interval_bytes).unwrap_or(i64::MAX),
        attribute_indices,
        ..OtlpProfile::default()
    }
}

/// The tables that all profiles of a request share. Their first entries are empty, so that 0 stands for none.
struct Dictionary {
    strings: Interner<String>,
    attributes: Interner<(i32, Attribute)>,
    functions: Interner<Function>,
    mappings: Interner<Mapping>,
    /// Mapping, address, and the functions there, the innermost first.
    locations: Interner<(i32, u64, Vec<Line>)>,
    /// Locations, the leaf first.
    stacks: Interner<Vec<i32>>,
}

/// Value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Attribute {
    Text(String),
    Int(i64),
    Bool(bool),
    /// By its bits.
    Float(u64),
}

impl Default for Dictionary {
    fn default() -> Self {
        Self {
            strings: with_empty(String::new()),
            attributes: with_empty((0, Attribute::Bool(false))),
            functions: with_empty(Function::default()),
            mappings: with_empty(Mapping::default()),
            locations: with_empty((0, 0, Vec::new())),
            stacks: with_empty(Vec::new()),
        }
    }
}

fn with_empty<T: Hash + Eq>(empty: T) -> Interner<T> {
    [empty].into_iter().collect()
}

impl Dictionary {
    fn finish(self) -> ProfilesDictionary {
        let attribute = |(key_strindex, attribute)| {
            let value = match attribute {
                Attribute::Text(text) => Value::StringValue(text),
                Attribute::Int(number) => Value::IntValue(number),
                Attribute::Bool(truth) => Value::BoolValue(truth),
                Attribute::Float(bits) => Value::DoubleValue(f64::from_bits(bits)),
            };
            KeyValueAndUnit { key_strindex, value: Some(AnyValue { value: Some(value) }), unit_strindex: 0 }
        };
        let location =
            |(mapping_index, address, lines)| Location { mapping_index, address, lines, ..Default::default() };
        let attributes = self.attributes.values.into_iter().skip(1).map(attribute);
        ProfilesDictionary {
            mapping_table: self.mappings.values,
            location_table: self.locations.values.into_iter().map(location).collect(),
            function_table: self.functions.values,
            link_table: vec![Link::default()],
            string_table: self.strings.values,
            attribute_table: std::iter::once(KeyValueAndUnit::default()).chain(attributes).collect(),
            stack_table: self.stacks.values.into_iter().map(|location_indices| Stack { location_indices }).collect(),
        }
    }

    fn string(&mut self, text: &str) -> i32 {
        number(self.strings.intern_ref(text))
    }

    fn value_type(&mut self, (kind, unit): (&str, &str)) -> ValueType {
        ValueType { type_strindex: self.string(kind), unit_strindex: self.string(unit) }
    }

    fn attribute(&mut self, key: &str, attribute: Attribute) -> i32 {
        let key = self.string(key);
        number(self.attributes.intern((key, attribute)))
    }

    /// A function by its name and its source file, which may be empty.
    fn function(&mut self, name: &str, file: &str) -> i32 {
        let (name_strindex, filename_strindex) = (self.string(name), self.string(file));
        number(self.functions.intern(Function { name_strindex, filename_strindex, ..Function::default() }))
    }

    /// A location that is not code.
    fn named_location(&mut self, name: &str) -> i32 {
        let function_index = self.function(name, "");
        number(self.locations.intern((0, 0, vec![Line { function_index, ..Line::default() }])))
    }
}

/// A message cannot hold tables of more than 2^31 entries.
fn number(index: u32) -> i32 {
    i32::try_from(index).unwrap_or(0)
}
