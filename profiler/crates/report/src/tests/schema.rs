//! The JSON reports against their schemas in docs/, and the schemas against reports: both have the same fields.

use std::borrow::Cow;

use heapbpf_base::testing::schema::{KEYWORDS, Reader, check_reports, check_schema, each};
use heapbpf_base::units::EstimatedBytes;
use heapbpf_ledger::model::{FrameKind, LeakCandidate, Leaks, ProbeCosts, Profile, Window, WindowReason};
use schemars::generate::SchemaGenerator;
use schemars::{JsonSchema, Schema, json_schema};
use serde_json::Value;

use super::{guardrails, render};
use crate::json::schema::Report;
use crate::json::values::counts::Counts;
use crate::json::values::{Amount, Hex};
use crate::testing as profiles;
use crate::{Format, View};

pub(super) fn report_schema() -> Value {
    check_schema::<Report<'_>>("report", "heapbpf's JSON report")
}

/// Implements [`JsonSchema`] for types that serialize as simple values.
macro_rules! inline_schema {
    ($([$($generics:tt)*] $type:ty: $schema:tt;)*) => {
        $(impl<$($generics)*> JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        })*
    };
}

inline_schema! {
    [] Amount: { "type": "number" };
    [] Hex: { "type": "string", "pattern": "^0x[0-9a-f]+$" };
    [] Counts: { "type": "object", "additionalProperties": { "type": "integer", "minimum": 0 } };
}

/// Reports that together have all fields.
fn reports() -> Vec<Value> {
    let mut window = profiles::sampled();
    window.window = Some(Window {
        number: Some(3),
        reason: WindowReason::Growth,
        start_unix_ns: window.started_unix_ns,
        since_mark: true,
        end_unix_ns: window.ended_unix_ns,
        merged_count: 1,
    });
    let unnamed = window.frames.iter_mut().find(|frame| frame.module_offset.is_some() && frame.function.is_none());
    let unnamed = unnamed.expect("the profile has unnamed functions");
    (unnamed.function_start, unnamed.kind) = (Some(0x1200), FrameKind::Jitted);
    let mut limited = guardrails::limited();
    limited.health.guardrails.probe_costs = Some(ProbeCosts {
        emulated_ns: 300.0,
        single_stepped_ns: 900.0,
        emulated_with_return_ns: 700.0,
        single_stepped_with_return_ns: 1300.0,
    });
    let mut filtered = profiles::exact();
    filtered.filter = Some("focus=cache".to_owned());
    let others = [window, limited, filtered, growing(), profiles::kinds()];
    profiles::all().iter().chain(&others).map(report).collect()
}

fn growing() -> Profile {
    let mut profile = profiles::sampled();
    profile.older_than_ns = Some(5_000_000_000);
    for callsite in profile.targets.iter_mut().flat_map(|target| &mut target.callsites) {
        callsite.older = Some(profiles::taken(4096, 1, 77, 0).live());
    }
    let candidate = LeakCandidate {
        callsite: 0,
        bytes_per_second: 1234.5,
        margin: 17.25,
        old_share: 0.5,
        survival: None,
        score: 99.5,
    };
    profile.targets[0].leaks = Some(Leaks {
        span_ns: 30_000_000_000,
        too_short: false,
        candidates: vec![candidate],
        count: 1,
        suppressed_count: 2,
        suppressed_bytes: EstimatedBytes::exact(4096),
    });
    profile
}

fn report(profile: &Profile) -> Value {
    serde_json::from_str(&render(Format::Json, profile, View::LiveBytes)).expect("the report is JSON")
}

#[test]
fn reports_conform_to_the_schema_and_have_all_its_fields() {
    check_reports(&report_schema(), &reports(), &Value::Null);
}

#[test]
fn the_schema_has_every_field_of_callsites() {
    let schema = report_schema();
    let reader = Reader::of(&schema);
    let known = reader.names(&schema["$defs"]["Callsite"]);
    assert!(known.contains("stack") && known.contains("live_bytes_95") && known.contains("age_histogram"));
}

#[test]
fn invalid_reports_are_refused() {
    let schema = report_schema();
    let mut reader = Reader::of(&schema);
    for (path, value) in [
        ("/version", Value::from("1")),
        ("/targets/0/pid", Value::from("900")),
        ("/targets/0/beginning/origin", Value::from("found")),
        ("/targets/0/callsites/0/stack/0/inlined", Value::Null),
        ("/targets/0/totals/live_bytes_95", Value::from(vec![1.0])),
        ("/health/lost/ring_full", Value::from(-1)),
    ] {
        let mut wrong = report(&profiles::sampled());
        *wrong.pointer_mut(path).unwrap_or_else(|| panic!("no {path}")) = value;
        let error = reader.check(&wrong, &schema, "").expect_err(path);
        assert!(error.starts_with(path), "{path}: {error}");
    }
    let mut lacking = report(&profiles::sampled());
    lacking["targets"][0].as_object_mut().expect("an object").remove("comm");
    assert_eq!(reader.check(&lacking, &schema, ""), Err("/targets/0: no \"comm\"".to_owned()));
}

#[test]
fn the_schema_uses_checked_keywords_only() {
    let schema = report_schema();
    let mut schemas = Vec::new();
    each(&schema, &mut schemas);
    for inner in &schemas[1..] {
        assert!(inner.keys().all(|keyword| KEYWORDS.contains(&keyword.as_str())), "{inner:?}");
    }
}
