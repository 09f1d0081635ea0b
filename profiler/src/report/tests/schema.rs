//! The JSON report against its schema in docs/, and the schema against reports: neither has a field that the other has not.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{guardrails, profiles, render};
use crate::model::guardrails::ProbeCosts;
use crate::model::leaks::{LeakCandidate, Leaks};
use crate::model::{Profile, Window, WindowReason};
use crate::report::{Format, View};
use crate::units::EstimatedBytes;

pub(super) fn schema() -> Value {
    serde_json::from_str(include_str!("../../../../docs/report.schema.json")).expect("the schema is JSON")
}

/// Profiles that together have all there is.
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
    let mut limited = guardrails::limited();
    limited.health.guardrails.costs = Some(ProbeCosts {
        emulated_ns: 300.0,
        single_stepped_ns: 900.0,
        emulated_with_return_ns: 700.0,
        single_stepped_with_return_ns: 1300.0,
    });
    let others = [window, limited, growing()];
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

/// What is checked of a schema by [`Reader`], and what is for people.
const KEYWORDS: &[&str] = &[
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "description",
    "enum",
    "items",
    "minItems",
    "minimum",
    "pattern",
    "prefixItems",
    "properties",
    "required",
    "type",
];

/// Reads values by a schema, and keeps which of its properties there were.
struct Reader<'a> {
    definitions: &'a Map<String, Value>,
    seen: BTreeSet<*const Value>,
}

impl<'a> Reader<'a> {
    /// What is wrong with a value, and where.
    fn check(&mut self, value: &Value, schema: &'a Value, path: &str) -> Result<(), String> {
        let Some(schema) = schema.as_object() else {
            return if *schema == Value::Bool(true) { Ok(()) } else { Err(format!("{path}: nothing may be there")) };
        };
        let wrong = |what: &str| Err(format!("{path}: {value} is wrong by {what}"));
        if let Some(reference) = schema.get("$ref") {
            let name = reference.as_str().and_then(|name| name.strip_prefix("#/$defs/")).expect("a definition");
            let definitions = self.definitions;
            self.check(value, definitions.get(name).unwrap_or_else(|| panic!("{name} is not defined")), path)?;
        }
        for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            self.check(value, part, path)?;
        }
        if let Some(parts) = schema.get("anyOf").and_then(Value::as_array)
            && !parts.iter().any(|part| self.check(value, part, path).is_ok())
        {
            return wrong("anyOf");
        }
        if schema.get("type").is_some_and(|of| !list(of).iter().any(|of| is_of(value, of))) {
            return wrong("type");
        }
        if schema.get("const").is_some_and(|only| only != value)
            || schema.get("enum").is_some_and(|values| !list(values).contains(value))
            || schema
                .get("minimum")
                .is_some_and(|least| value.as_f64().is_some_and(|number| Some(number) < least.as_f64()))
        {
            return wrong("its value");
        }
        match value {
            Value::Object(fields) => self.check_fields(fields, schema, path),
            Value::Array(items) => self.check_items(items, schema, path),
            _ => Ok(()),
        }
    }

    fn check_fields(
        &mut self,
        fields: &Map<String, Value>,
        schema: &'a Map<String, Value>,
        path: &str,
    ) -> Result<(), String> {
        let missing = schema.get("required").map_or(&[][..], list).iter().find(|name| !fields.contains_key(text(name)));
        if let Some(name) = missing {
            return Err(format!("{path}: no {name}"));
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        for (name, value) in fields {
            let path = format!("{path}/{name}");
            match (properties.and_then(|properties| properties.get(name)), schema.get("additionalProperties")) {
                (Some(property), _) => {
                    self.seen.insert(property);
                    self.check(value, property, &path)?;
                }
                (None, Some(other)) => self.check(value, other, &path)?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    fn check_items(&mut self, items: &[Value], schema: &'a Map<String, Value>, path: &str) -> Result<(), String> {
        if schema.get("minItems").is_some_and(|least| (items.len() as u64) < least.as_u64().expect("a number")) {
            return Err(format!("{path}: too few items"));
        }
        let first = schema.get("prefixItems").map_or(&[][..], list);
        for (at, item) in items.iter().enumerate() {
            if let Some(schema) = first.get(at).or_else(|| schema.get("items")) {
                self.check(item, schema, &format!("{path}/{at}"))?;
            }
        }
        Ok(())
    }

    /// The names of properties that the schema has for an object, also by what it refers to.
    fn names(&self, schema: &'a Value) -> BTreeSet<&'a str> {
        let mut names = BTreeSet::new();
        if let Some(reference) = schema.get("$ref") {
            names.extend(self.names(&self.definitions[text(reference).trim_start_matches("#/$defs/")]));
        }
        for part in ["allOf", "anyOf"].iter().filter_map(|of| schema.get(of)).flat_map(list) {
            names.extend(self.names(part));
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        names.extend(properties.into_iter().flat_map(Map::keys).map(String::as_str));
        names
    }
}

/// The items of a list; another value as the only one.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn is_of(value: &Value, of: &Value) -> bool {
    match text(of) {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other} is no type"),
    }
}

/// All schemas in one: of definitions, properties, items.
fn each<'a>(schema: &'a Value, found: &mut Vec<&'a Map<String, Value>>) {
    let Some(fields) = schema.as_object() else { return };
    found.push(fields);
    for (name, value) in fields {
        match name.as_str() {
            "properties" | "$defs" => {
                value.as_object().expect("schemas").values().for_each(|schema| each(schema, found))
            }
            "items" | "additionalProperties" => each(value, found),
            "allOf" | "anyOf" | "prefixItems" => list(value).iter().for_each(|schema| each(schema, found)),
            _ => {}
        }
    }
}

/// All schemas in one, without definitions that another has alike.
fn own<'a>(schema: &'a Value, other: &Value) -> Vec<&'a Map<String, Value>> {
    let mut found = Vec::new();
    let definitions = schema["$defs"].as_object().expect("definitions");
    let own = definitions.iter().filter(|(name, schema)| other["$defs"].get(name.as_str()) != Some(schema));
    own.for_each(|(_, schema)| each(schema, &mut found));
    schema["properties"].as_object().expect("properties").values().for_each(|schema| each(schema, &mut found));
    found.extend(schema.as_object());
    found
}

/// Reports keep to a schema and have all of it, but for definitions that `other` has alike; and the schema has all of theirs.
pub(super) fn check_reports(schema: &Value, reports: &[Value], other: &Value) {
    let definitions = schema["$defs"].as_object().expect("definitions");
    let mut reader = Reader { definitions, seen: BTreeSet::new() };
    for (number, report) in reports.iter().enumerate() {
        assert_eq!(reader.check(report, schema, ""), Ok(()), "report {number}");
        check_known(&reader, report, schema, "");
    }
    for properties in own(schema, other).iter().filter_map(|schema| schema.get("properties")) {
        for (name, property) in properties.as_object().expect("schemas by name") {
            assert!(reader.seen.contains(&std::ptr::from_ref(property)), "no report has `{name}` of {properties}");
            let is_said = property.get("description").is_some() || property.get("$ref").is_some();
            assert!(is_said, "`{name}` is not described");
        }
    }
}

#[test]
fn reports_keep_to_the_schema_and_have_all_of_it() {
    check_reports(&schema(), &reports(), &Value::Null);
}

#[test]
fn the_schema_has_every_field_of_callsites() {
    let schema = schema();
    let reader = Reader { definitions: schema["$defs"].as_object().expect("definitions"), seen: BTreeSet::new() };
    let known = reader.names(&schema["$defs"]["callsite"]);
    assert!(known.contains("stack") && known.contains("live_bytes_95") && known.contains("age_histogram"));
}

/// Every field of every object in the value is a property of the schema.
fn check_known<'a>(reader: &Reader<'a>, value: &Value, schema: &'a Value, path: &str) {
    match value {
        Value::Object(fields) => {
            let names = reader.names(schema);
            for (name, value) in fields {
                // Numbers by reason have any name.
                let Some(property) = property(reader, schema, name) else {
                    assert!(names.is_empty(), "the schema has no `{path}/{name}`");
                    continue;
                };
                check_known(reader, value, property, &format!("{path}/{name}"));
            }
        }
        Value::Array(items) => {
            let Some(schema) = found(reader, schema, "items") else { return };
            items.iter().for_each(|item| check_known(reader, item, schema, &format!("{path}[]")));
        }
        _ => {}
    }
}

fn property<'a>(reader: &Reader<'a>, schema: &'a Value, name: &str) -> Option<&'a Value> {
    let own = schema.get("properties").and_then(|properties| properties.get(name));
    own.or_else(|| below(reader, schema).into_iter().find_map(|part| property(reader, part, name)))
}

fn found<'a>(reader: &Reader<'a>, schema: &'a Value, keyword: &str) -> Option<&'a Value> {
    schema.get(keyword).or_else(|| below(reader, schema).into_iter().find_map(|part| found(reader, part, keyword)))
}

/// The schemas that a schema is made of.
fn below<'a>(reader: &Reader<'a>, schema: &'a Value) -> Vec<&'a Value> {
    let referred = schema.get("$ref").map(|name| &reader.definitions[text(name).trim_start_matches("#/$defs/")]);
    let parts = ["allOf", "anyOf"].into_iter().filter_map(|of| schema.get(of)).flat_map(list);
    parts.chain(referred).collect()
}

#[test]
fn what_is_wrong_does_not_pass() {
    let schema = schema();
    let mut reader = Reader { definitions: schema["$defs"].as_object().expect("definitions"), seen: BTreeSet::new() };
    for (path, value) in [
        ("/version", Value::from(2)),
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
fn the_schema_asks_for_nothing_that_is_not_checked() {
    let schema = schema();
    let mut schemas = Vec::new();
    each(&schema, &mut schemas);
    for inner in &schemas[1..] {
        assert!(inner.keys().all(|keyword| KEYWORDS.contains(&keyword.as_str())), "{inner:?}");
    }
}
