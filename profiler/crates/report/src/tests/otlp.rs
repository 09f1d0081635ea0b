//! OTLP requests, decoded by the crate of the messages.

use std::collections::BTreeSet;
use std::fmt::Write;

use heapbpf_ledger::model::Profile;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{
    KeyValueAndUnit, Location, Mapping, Profile as OtlpProfile, ProfilesDictionary, Stack,
};
use proptest::prelude::*;
use prost::Message;

use super::{check_golden, properties, written};
use crate::testing as profiles;
use crate::{Format, View};

#[test]
fn goldens() {
    for (name, profile) in [
        ("exact", profiles::exact()),
        ("sampled", profiles::sampled()),
        ("kinds", profiles::kinds()),
        ("empty", profiles::empty()),
    ] {
        check_golden(&format!("otlp/{name}.txt"), &Decoded::of(&profile, View::LiveBytes).text());
    }
}

struct Decoded {
    request: ExportProfilesServiceRequest,
    dictionary: ProfilesDictionary,
}

fn at(index: i32) -> usize {
    usize::try_from(index).expect("indices are not negative")
}

impl Decoded {
    fn of(profile: &Profile, view: View) -> Self {
        let bytes = written(Format::Otlp, profile, view);
        let request = ExportProfilesServiceRequest::decode(bytes.as_slice()).expect("the bytes are a request");
        let dictionary = request.dictionary.clone().expect("there is a dictionary");
        Self { request, dictionary }
    }

    fn string(&self, index: i32) -> &str {
        &self.dictionary.string_table[at(index)]
    }

    fn attribute(&self, index: i32) -> String {
        assert!(index > 0, "0 is no attribute");
        let KeyValueAndUnit { key_strindex, value, .. } = &self.dictionary.attribute_table[at(index)];
        format!("{}={}", self.string(*key_strindex), shown(value.as_ref()))
    }

    fn attributes(&self, indices: &[i32]) -> String {
        indices.iter().map(|&index| self.attribute(index)).collect::<Vec<_>>().join(" ")
    }

    /// A line per function of the location, or its address if it has none.
    fn location(&self, index: i32) -> String {
        let Location { mapping_index, address, lines, attribute_indices } = &self.dictionary.location_table[at(index)];
        let lines: Vec<String> = lines
            .iter()
            .map(|line| {
                let function = self.dictionary.function_table[at(line.function_index)];
                let (name, file) = (self.string(function.name_strindex), self.string(function.filename_strindex));
                format!("{name:?} {file}:{}", line.line)
            })
            .collect();
        let attributes = self.attributes(attribute_indices);
        format!("{address:#x} in {mapping_index}: {} {attributes}", lines.join(" in "))
    }

    fn mapping(&self, mapping: &Mapping) -> String {
        let Mapping { memory_start, memory_limit, file_offset, filename_strindex, attribute_indices } = mapping;
        let attributes = self.attributes(attribute_indices);
        let file = self.string(*filename_strindex);
        format!("{memory_start:#x}-{memory_limit:#x} {file_offset:#x} {file} {attributes}")
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let line = |text: &mut String, words: std::fmt::Arguments| writeln!(text, "{words}").expect("a string");
        for (number, mapping) in self.dictionary.mapping_table.iter().enumerate() {
            line(&mut text, format_args!("mapping {number}: {}", self.mapping(mapping)));
        }
        for resource in &self.request.resource_profiles {
            for pair in &resource.resource.as_ref().expect("a resource").attributes {
                line(&mut text, format_args!("resource {}={}", pair.key, shown(pair.value.as_ref())));
            }
            let scope = &resource.scope_profiles[0];
            for profile in &scope.profiles {
                let (of, period) = (self.types(profile), profile.period);
                let (time, duration) = (profile.time_unix_nano, profile.duration_nano);
                line(&mut text, format_args!("profile {of} period {period} time {time} duration {duration}"));
                line(&mut text, format_args!("  {}", self.attributes(&profile.attribute_indices)));
                for sample in &profile.samples {
                    let attributes = self.attributes(&sample.attribute_indices);
                    line(&mut text, format_args!("  {:?} {attributes}", sample.values));
                    let Stack { location_indices } = &self.dictionary.stack_table[at(sample.stack_index)];
                    for &location in location_indices {
                        line(&mut text, format_args!("    {}", self.location(location)));
                    }
                }
            }
        }
        text
    }

    fn types(&self, profile: &OtlpProfile) -> String {
        let of = |of: Option<_>| {
            let of: opentelemetry_proto::tonic::profiles::v1development::ValueType = of.expect("a type");
            format!("{}/{}", self.string(of.type_strindex), self.string(of.unit_strindex))
        };
        format!("{} of {}", of(profile.sample_type), of(profile.period_type))
    }

    /// The sum of all values of profiles of this type.
    fn total(&self, sample_type: &str) -> i64 {
        let profiles = self.request.resource_profiles.iter().flat_map(|resource| &resource.scope_profiles[0].profiles);
        profiles
            .filter(|profile| self.string(profile.sample_type.expect("a type").type_strindex) == sample_type)
            .flat_map(|profile| &profile.samples)
            .map(|sample| sample.values.iter().sum::<i64>())
            .sum()
    }
}

fn shown(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => format!("{text:?}"),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::BoolValue(truth)) => truth.to_string(),
        Some(Value::DoubleValue(number)) => format!("{number:.1}"),
        other => panic!("no value of ours: {other:?}"),
    }
}

fn is_each_once<T: std::fmt::Debug>(table: &[T]) -> bool {
    table.iter().map(|entry| format!("{entry:?}")).collect::<BTreeSet<_>>().len() == table.len()
}

fn check(profile: &Profile, view: View) {
    let decoded = Decoded::of(profile, view);
    // Resolves everything that a sample references, and fails if an index is invalid.
    decoded.text();
    let tables = &decoded.dictionary;
    assert_eq!(tables.string_table[0], "");
    assert_eq!(tables.mapping_table[0], Mapping::default());
    assert_eq!(tables.location_table[0], Location::default());
    assert_eq!(tables.function_table[0], Default::default());
    assert_eq!(tables.attribute_table[0], KeyValueAndUnit::default());
    assert_eq!(tables.stack_table[0], Stack::default());
    assert_eq!(tables.link_table, [Default::default()]);
    assert!(is_each_once(&tables.string_table) && is_each_once(&tables.mapping_table));
    assert!(is_each_once(&tables.function_table) && is_each_once(&tables.location_table));
    assert!(is_each_once(&tables.attribute_table) && is_each_once(&tables.stack_table));
    for resource in &decoded.request.resource_profiles {
        let samples = resource.scope_profiles[0].profiles.iter().flat_map(|profile| &profile.samples);
        assert!(samples.clone().all(|sample| sample.values.len() == 1 && sample.values[0] > 0));
        let first = resource.scope_profiles[0].profiles[0].sample_type.expect("a type").type_strindex;
        assert_eq!(decoded.string(first), name(view));
    }
    for view in View::ALL {
        let callsites = profile.targets.iter().flat_map(|target| &target.callsites);
        let expected: u64 = callsites.map(|callsite| view.of_callsite(callsite)).sum();
        assert_eq!(u64::try_from(decoded.total(name(view))), Ok(expected), "{view}");
    }
}

fn name(view: View) -> &'static str {
    match view {
        View::LiveBytes => "inuse_space",
        View::LiveCount => "inuse_objects",
        View::AllocBytes => "alloc_space",
        View::AllocCount => "alloc_objects",
    }
}

#[test]
fn values_add_up_to_the_totals() {
    for profile in profiles::all() {
        View::ALL.into_iter().for_each(|view| check(&profile, view));
    }
}

proptest! {
    #[test]
    fn values_of_any_profile_add_up(profile in properties::profile(), view in proptest::sample::select(View::ALL.to_vec())) {
        check(&profile, view);
    }
}

#[test]
fn inlined_functions_are_lines_of_one_location() {
    let text = Decoded::of(&profiles::sampled(), View::LiveBytes).text();
    let line = text.lines().find(|line| line.contains("Vec<T,A>::push")).expect("the location is there");
    let order = ["Vec<T,A>::push", "Cache<K,V>::insert", "<[u8; 8] as app::Key>::hash"];
    let places: Vec<usize> = order.iter().map(|name| line.find(name).expect("on the same line")).collect();
    assert!(places.is_sorted(), "the innermost comes first: {line}");
}

#[test]
fn the_container_id_is_from_the_control_group() {
    let id = "0123456789abcdef".repeat(4);
    for (cgroup, expected) in [
        (format!("/system.slice/docker-{id}.scope"), Some(id.as_str())),
        (format!("/kubepods/burstable/pod1/{id}"), Some(id.as_str())),
        ("/system.slice/cached.service".to_owned(), None),
        (format!("/x/{id}0"), None),
    ] {
        let mut profile = profiles::exact();
        profile.targets[0].facts.cgroup = Some(cgroup.as_str().into());
        let text = Decoded::of(&profile, View::LiveBytes).text();
        let found = text.lines().find_map(|line| line.strip_prefix("resource container.id="));
        assert_eq!(found.map(|id| id.trim_matches('"')), expected, "{cgroup}");
    }
}
