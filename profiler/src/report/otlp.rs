//! OpenTelemetry's profiles signal (OTLP, `v1development`): an `ExportProfilesServiceRequest`, as it is sent to a collector.
//!
//! Owns what is a resource, a profile, a sample and an attribute. A profile of OTLP has one quantity, so each target has four.

use std::io;

use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development::{
    Profile as OtlpProfile, ResourceProfiles, Sample, ScopeProfiles, ValueType,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;

use super::{Presentation, Report, ReportError, View, describe, roots};
use crate::model::{CallsiteProfile, Profile, TargetProfile};
use dictionary::{Attribute, Dictionary};
use locations::Locations;

mod dictionary;
mod locations;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Otlp;

impl Report for Otlp {
    /// The profile of the view comes first, which viewers show first. What `--by` groups by is an attribute in any case.
    fn write(
        &self,
        profile: &Profile,
        presentation: &Presentation,
        out: &mut dyn io::Write,
    ) -> Result<(), ReportError> {
        out.write_all(&request(profile, presentation).encode_to_vec())?;
        Ok(())
    }
}

fn request(profile: &Profile, presentation: &Presentation) -> ExportProfilesServiceRequest {
    let mut dictionary = Dictionary::new();
    let resource_profiles =
        profile.targets.iter().map(|target| of_target(profile, target, presentation.view, &mut dictionary)).collect();
    ExportProfilesServiceRequest { resource_profiles, dictionary: Some(dictionary.finish()) }
}

fn of_target(profile: &Profile, target: &TargetProfile, view: View, dictionary: &mut Dictionary) -> ResourceProfiles {
    let identities = identities(profile, target, dictionary);
    let said = said(profile, dictionary);
    let first = std::iter::once(view);
    let views = first.chain(View::ALL.into_iter().filter(|other| *other != view));
    let profiles = views.map(|view| of_view(profile, target, view, &identities, &said, dictionary)).collect();
    let scope = InstrumentationScope {
        name: "heapbpf".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_profiles = vec![ScopeProfiles { scope: Some(scope), profiles, schema_url: String::new() }];
    ResourceProfiles { resource: Some(resource(target)), scope_profiles, schema_url: String::new() }
}

/// The process, by OpenTelemetry's names.
fn resource(target: &TargetProfile) -> Resource {
    let cgroup = target.cgroup.as_deref();
    let text = |key, value: &str| (key, Value::StringValue(value.to_owned()));
    let attributes = [
        Some(("process.pid", Value::IntValue(target.pid.0.into()))),
        Some(text("process.command", &target.command)),
        Some(text("process.executable.name", &target.comm)),
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

/// The 64 hexadecimal digits that container engines end the names of their control groups in, if this is such a one.
fn container_id(cgroup: &str) -> Option<&str> {
    let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    cgroup.rsplit(|c| !is_digit(c)).find(|digits| digits.len() == 64)
}

/// What tells a callsite from others: its stack's number, its attributes'.
struct Identity<'a> {
    callsite: &'a CallsiteProfile,
    stack: i32,
    attributes: Vec<i32>,
}

fn identities<'a>(profile: &Profile, target: &'a TargetProfile, dictionary: &mut Dictionary) -> Vec<Identity<'a>> {
    let mut locations = Locations::new(profile, target);
    let identity = |callsite: &'a CallsiteProfile| {
        let mut stack = locations.of_stack(callsite, dictionary);
        // The outermost comes last.
        let gaps: Vec<String> = roots::gaps(callsite).collect();
        stack.extend(gaps.iter().rev().map(|gap| dictionary.said(gap)));
        let stack = dictionary.stack(stack);
        Identity { callsite, stack, attributes: attributes(target, callsite, dictionary) }
    };
    target.callsites.iter().map(identity).collect()
}

/// Of a sample.
fn attributes(target: &TargetProfile, callsite: &CallsiteProfile, dictionary: &mut Dictionary) -> Vec<i32> {
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

/// What a reader has to know to believe a profile: attributes of each.
fn said(profile: &Profile, dictionary: &mut Dictionary) -> Vec<i32> {
    let text = Attribute::Text;
    let mut said = vec![
        dictionary.attribute("heapbpf.interval", text(describe::interval(profile))),
        dictionary.attribute("heapbpf.losses", text(describe::losses(profile))),
        dictionary.attribute("heapbpf.incomplete", Attribute::Bool(profile.incomplete())),
    ];
    if let Some(window) = &profile.window {
        said.push(dictionary.attribute("heapbpf.window.reason", text(window.reason.name().to_owned())));
    }
    if let Some(age_ns) = profile.older_than_ns {
        let age_ns = i64::try_from(age_ns).unwrap_or(i64::MAX);
        said.push(dictionary.attribute("heapbpf.older_than_ns", Attribute::Int(age_ns)));
    }
    said
}

fn of_view(
    profile: &Profile,
    target: &TargetProfile,
    view: View,
    identities: &[Identity],
    said: &[i32],
    dictionary: &mut Dictionary,
) -> OtlpProfile {
    let sample = |identity: &Identity| {
        let value = view.of_callsite(identity.callsite);
        (value > 0).then(|| Sample {
            stack_index: identity.stack,
            attribute_indices: identity.attributes.clone(),
            values: vec![i64::try_from(value).unwrap_or(i64::MAX)],
            ..Sample::default()
        })
    };
    let mut attribute_indices = said.to_vec();
    // Of all blocks: of the old ones among them it is not known.
    if !profile.is_exact_of(target) && !view.shows_old_blocks_only(profile) {
        let confidence = view.confidence(&target.totals);
        let [low, high] = confidence.map(|end| Attribute::Float(end.to_bits()));
        attribute_indices.push(dictionary.attribute("heapbpf.total_95.low", low));
        attribute_indices.push(dictionary.attribute("heapbpf.total_95.high", high));
    }
    let (name, unit) = sample_type(view);
    OtlpProfile {
        sample_type: Some(value_type(name, unit, dictionary)),
        samples: identities.iter().filter_map(sample).collect(),
        time_unix_nano: profile.window.as_ref().map_or(profile.started_unix_ns, |window| window.start_unix_ns),
        duration_nano: describe::duration_ns(profile),
        period_type: Some(value_type("space", "bytes", dictionary)),
        period: i64::try_from(profile.interval_bytes).unwrap_or(i64::MAX),
        attribute_indices,
        ..OtlpProfile::default()
    }
}

/// As Go's heap profiles name it.
const fn sample_type(view: View) -> (&'static str, &'static str) {
    match view {
        View::LiveBytes => ("inuse_space", "bytes"),
        View::LiveCount => ("inuse_objects", "count"),
        View::AllocBytes => ("alloc_space", "bytes"),
        View::AllocCount => ("alloc_objects", "count"),
    }
}

fn value_type(name: &str, unit: &str, dictionary: &mut Dictionary) -> ValueType {
    ValueType { type_strindex: dictionary.string(name), unit_strindex: dictionary.string(unit) }
}
