//! OpenTelemetry's profiles signal (OTLP, `v1development`): an `ExportProfilesServiceRequest`, as sent to a collector. Each target is a
//! resource with four profiles, because a profile has one quantity.

use std::borrow::Cow;
use std::io;

use heapbpf_ledger::model::{CallsiteProfile, Profile, TargetProfile, Workload};
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, Profile as OtlpProfile, ProfilesDictionary,
    ResourceProfiles, Sample, ScopeProfiles, Stack, ValueType,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;

use super::describe;
use super::presentation::{Presentation, View};
use super::series::Series;
use super::tables::{CodeTables, Intern, Interner, KnownCalls, hex, signed};

/// Writes the profile of the view first, which viewers show first. Groups of `--by` are always attributes.
pub(super) fn write(profile: &Profile, presentation: &Presentation, out: &mut dyn io::Write) -> io::Result<()> {
    let targets = profile.targets.iter().map(|target| (target, Vec::new()));
    out.write_all(&encode(profile, targets, presentation.view, false))
}

/// An `ExportProfilesServiceRequest` with some of the targets, for a collector. Their resources have these attributes
/// besides those of files. Live bytes and blocks are of a point in time: the end of the window.
pub fn encode_series(series: &Series<'_>, attributes: &dyn Fn(&TargetProfile) -> Vec<(String, String)>) -> Vec<u8> {
    let targets = series.targets.iter().map(|&target| (target, attributes(target)));
    encode(series.profile, targets, View::LiveBytes, true)
}

fn encode<'a>(
    profile: &'a Profile,
    targets: impl Iterator<Item = (&'a TargetProfile, Vec<(String, String)>)>,
    view: View,
    is_series: bool,
) -> Vec<u8> {
    let mut dictionary = Dictionary::new(profile);
    let resource = |(target, attributes)| of_target(profile, target, attributes, view, is_series, &mut dictionary);
    let resource_profiles = targets.map(resource).collect();
    ExportProfilesServiceRequest { resource_profiles, dictionary: Some(dictionary.finish()) }.encode_to_vec()
}

fn of_target<'a>(
    profile: &'a Profile,
    target: &'a TargetProfile,
    more: Vec<(String, String)>,
    view: View,
    is_series: bool,
    dictionary: &mut Dictionary<'a>,
) -> ResourceProfiles {
    let mut known = KnownCalls::default();
    let samples: Vec<_> =
        target.callsites.iter().map(|callsite| dictionary.sample(target, callsite, &mut known)).collect();
    let attributes = profile_attributes(profile, dictionary);
    let others = View::ALL.into_iter().filter(|other| *other != view);
    let views = std::iter::once(view).chain(others);
    let of_view = |view: View| OtlpProfile {
        duration_nano: if is_series && view.is_live() { 0 } else { describe::duration_ns(profile) },
        time_unix_nano: match is_series && view.is_live() {
            true => describe::end_unix_ns(profile),
            false => describe::start_unix_ns(profile),
        },
        ..of_view(profile, target, view, &samples, &attributes, dictionary)
    };
    let profiles = views.map(of_view).collect();
    let scope = InstrumentationScope {
        name: "heapbpf".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_profiles = vec![ScopeProfiles { scope: Some(scope), profiles, schema_url: String::new() }];
    ResourceProfiles { resource: Some(resource(target, more)), scope_profiles, schema_url: String::new() }
}

/// Attributes of `more` replace those of the target.
fn resource(target: &TargetProfile, more: Vec<(String, String)>) -> Resource {
    let cgroup = target.facts.cgroup.as_deref();
    let text = |key, value: &str| (key, Value::StringValue(value.to_owned()));
    let attributes = [
        Some(("process.pid", Value::IntValue(target.facts.pid.0.into()))),
        Some(text("process.command", &target.facts.command)),
        Some(text("process.executable.name", &target.facts.comm)),
        cgroup.map(|cgroup| text("process.linux.cgroup", cgroup)),
        cgroup.and_then(|cgroup| Workload::of_cgroup(cgroup).container_id).map(|id| text("container.id", id)),
    ];
    let own = attributes.into_iter().flatten().filter(|(key, _)| more.iter().all(|(other, _)| other != key));
    let own: Vec<_> = own.map(|(key, value)| (key.to_owned(), value)).collect();
    let more = more.into_iter().map(|(key, value)| (key, Value::StringValue(value)));
    let pair = |(key, value): (String, Value)| KeyValue {
        key,
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    };
    Resource { attributes: own.into_iter().chain(more).map(pair).collect(), ..Resource::default() }
}

fn profile_attributes(profile: &Profile, dictionary: &mut Dictionary<'_>) -> Vec<i32> {
    let window = profile.window.as_ref().map(|window| Attribute::Text(window.reason.name().to_owned()));
    let older_than_ns = profile.older_than_ns.map(|age_ns| Attribute::Int(signed(age_ns)));
    let attributes = [
        ("heapbpf.interval", Some(Attribute::Text(describe::interval(profile)))),
        ("heapbpf.verdict", Some(Attribute::Text(describe::verdict(profile)))),
        ("heapbpf.left_out", describe::left_out(profile).map(Attribute::Text)),
        ("heapbpf.incomplete", Some(Attribute::Bool(profile.incomplete()))),
        ("heapbpf.window.reason", window),
        ("heapbpf.older_than_ns", older_than_ns),
    ];
    let attributes = attributes.into_iter();
    attributes.filter_map(|(key, attribute)| Some(dictionary.attribute(key, attribute?))).collect()
}

fn of_view(
    profile: &Profile,
    target: &TargetProfile,
    view: View,
    samples: &[(&CallsiteProfile, Sample)],
    attributes: &[i32],
    dictionary: &mut Dictionary<'_>,
) -> OtlpProfile {
    let with_value = |(callsite, sample): &(&CallsiteProfile, Sample)| {
        let value = signed(view.of_callsite(callsite));
        (value > 0).then(|| Sample { values: vec![value], ..sample.clone() })
    };
    let mut attribute_indices = attributes.to_vec();
    // The interval is of all blocks; that of the old ones among them is unknown.
    if !profile.is_exact_of(target)
        && !view.shows_old_blocks_only(profile)
        && let Some(bounds) = view.bounds(profile, &target.totals, profile.interval_bytes_of(target))
    {
        let [low, high] = bounds.map(|end| Attribute::Float(end.to_bits()));
        attribute_indices.push(dictionary.attribute("heapbpf.total_95.low", low));
        attribute_indices.push(dictionary.attribute("heapbpf.total_95.high", high));
    }
    OtlpProfile {
        sample_type: Some(dictionary.value_type(view.sample_type())),
        samples: samples.iter().filter_map(with_value).collect(),
        period_type: Some(dictionary.value_type(("space", "bytes"))),
        period: signed(profile.interval_bytes),
        attribute_indices,
        ..OtlpProfile::default()
    }
}

/// The tables that all profiles of a request share. Their first entries are empty, so that 0 stands for none.
struct Dictionary<'a> {
    code: CodeTables<'a>,
    attributes: Interner<(i32, Attribute)>,
    /// Locations, the leaf first.
    stacks: Interner<Vec<u32>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Attribute {
    Text(String),
    Int(i64),
    Bool(bool),
    /// By its bits.
    Float(u64),
}

impl<'a> Dictionary<'a> {
    /// Code without a name has no lines: the build id and the address allow symbolizing it later.
    fn new(profile: &'a Profile) -> Self {
        Self {
            code: CodeTables::new(profile, false),
            attributes: Interner::from_iter([(0, Attribute::Bool(false))]),
            stacks: Interner::from_iter([Vec::new()]),
        }
    }

    fn string(&mut self, text: impl Into<Cow<'a, str>>) -> i32 {
        number(self.code.string(text))
    }

    fn value_type(&mut self, (kind, unit): (&'static str, &'static str)) -> ValueType {
        ValueType { type_strindex: self.string(kind), unit_strindex: self.string(unit) }
    }

    fn attribute(&mut self, key: &'static str, attribute: Attribute) -> i32 {
        let key = self.string(key);
        number(self.attributes.intern((key, attribute)))
    }

    fn sample(
        &mut self,
        target: &'a TargetProfile,
        callsite: &'a CallsiteProfile,
        known: &mut KnownCalls<'a>,
    ) -> (&'a CallsiteProfile, Sample) {
        let stack = self.code.stack(target, callsite, known);
        let stack_index = number(self.stacks.intern(stack));
        let thread = callsite.thread.and_then(|thread| target.threads.get(thread));
        let thread_name = thread.and_then(|thread| thread.name.as_deref());
        let heap = target.heaps.get(callsite.heap);
        let attributes = [
            thread.map(|thread| ("thread.id", Attribute::Int(thread.tid.0.into()))),
            thread_name.map(|name| ("thread.name", Attribute::Text(name.to_owned()))),
            heap.map(|heap| ("heapbpf.heap", Attribute::Text(heap.name.clone()))),
            callsite.inherited.then_some(("heapbpf.inherited", Attribute::Bool(true))),
        ];
        let attributes = attributes.into_iter().flatten();
        let attribute_indices = attributes.map(|(key, attribute)| self.attribute(key, attribute)).collect();
        (callsite, Sample { stack_index, attribute_indices, ..Sample::default() })
    }

    fn finish(mut self) -> ProfilesDictionary {
        let mappings = std::mem::take(&mut self.code.mappings).into_iter().map(|mapping| {
            let build_id = mapping.build_id.map(|id| Attribute::Text(hex(id)));
            let attribute = build_id.map(|id| self.attribute("process.executable.build_id.gnu", id));
            let [memory_start, memory_limit, file_offset] = mapping.range;
            Mapping {
                memory_start,
                memory_limit,
                file_offset,
                filename_strindex: self.string(mapping.path),
                attribute_indices: attribute.into_iter().collect(),
            }
        });
        let mapping_table = mappings.collect();
        let line = |&(function, line): &(u32, u32)| Line {
            function_index: number(function),
            line: line.into(),
            ..Line::default()
        };
        let locations = std::mem::take(&mut self.code.locations).into_iter().map(|location| {
            let frame_type = location.frame_type.map(|name| Attribute::Text(name.to_owned()));
            let attribute = frame_type.map(|name| self.attribute("profile.frame.type", name));
            Location {
                mapping_index: number(location.mapping),
                address: location.address,
                lines: location.lines.iter().map(line).collect(),
                attribute_indices: attribute.into_iter().collect(),
            }
        });
        let location_table = locations.collect();
        let function = |[name, file]: [u32; 2]| Function {
            name_strindex: number(name),
            filename_strindex: number(file),
            ..Function::default()
        };
        let attribute = |(key_strindex, attribute)| {
            let value = match attribute {
                Attribute::Text(text) => Value::StringValue(text),
                Attribute::Int(number) => Value::IntValue(number),
                Attribute::Bool(truth) => Value::BoolValue(truth),
                Attribute::Float(bits) => Value::DoubleValue(f64::from_bits(bits)),
            };
            KeyValueAndUnit { key_strindex, value: Some(AnyValue { value: Some(value) }), unit_strindex: 0 }
        };
        let stack = |locations: Vec<u32>| Stack { location_indices: locations.into_iter().map(number).collect() };
        let attributes = self.attributes.into_iter().skip(1).map(attribute);
        ProfilesDictionary {
            mapping_table,
            location_table,
            function_table: self.code.functions.into_iter().map(function).collect(),
            link_table: vec![Link::default()],
            string_table: self.code.strings.into_iter().map(Cow::into_owned).collect(),
            attribute_table: std::iter::once(KeyValueAndUnit::default()).chain(attributes).collect(),
            stack_table: self.stacks.into_iter().map(stack).collect(),
        }
    }
}

/// A message cannot hold tables of more than 2^31 entries.
fn number(index: u32) -> i32 {
    i32::try_from(index).unwrap_or(0)
}
