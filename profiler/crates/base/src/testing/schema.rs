//! JSON reports against their schemas in docs/, and schemas against reports: both have the same fields.

use std::collections::BTreeSet;
use std::path::Path;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// Returns the schema of a report, after comparing it with `docs/{name}.schema.json`. `UPDATE_GOLDEN=1` rewrites the file.
#[track_caller]
pub fn check_schema<T: JsonSchema>(name: &str, title: &str) -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.insert("$id".to_owned(), format!("urn:heapbpf:{name}:1").into());
    schema.insert("title".to_owned(), title.into());
    let actual = format!("{:#}\n", schema.as_value());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../../docs/{name}.schema.json"));
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        std::fs::write(&path, &actual).expect("docs can be written to");
    }
    let expected = std::fs::read_to_string(&path).expect("the schema is in docs");
    assert!(actual == expected, "{} is out of date; run with UPDATE_GOLDEN=1 to rewrite it", path.display());
    schema.to_value()
}

/// Keywords that [`Reader`] checks, and annotations.
pub const KEYWORDS: &[&str] = &[
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "default",
    "description",
    "enum",
    "format",
    "items",
    "maxItems",
    "minItems",
    "minimum",
    "oneOf",
    "pattern",
    "prefixItems",
    "properties",
    "required",
    "type",
];

/// Validates values, and collects the properties that occurred.
pub struct Reader<'a> {
    definitions: &'a Map<String, Value>,
    seen: BTreeSet<*const Value>,
}

impl<'a> Reader<'a> {
    /// Returns a reader of values that has seen none.
    pub fn of(schema: &'a Value) -> Self {
        Self { definitions: schema["$defs"].as_object().expect("definitions"), seen: BTreeSet::new() }
    }

    /// Returns what is invalid in a value, and where.
    pub fn check(&mut self, value: &Value, schema: &'a Value, path: &str) -> Result<(), String> {
        let Some(schema) = schema.as_object() else {
            return if *schema == Value::Bool(true) { Ok(()) } else { Err(format!("{path}: must be absent")) };
        };
        let wrong = |what: &str| Err(format!("{path}: {value} is invalid by {what}"));
        if let Some(reference) = schema.get("$ref") {
            let name = reference.as_str().and_then(|name| name.strip_prefix("#/$defs/")).expect("a definition");
            let definitions = self.definitions;
            self.check(value, definitions.get(name).unwrap_or_else(|| panic!("{name} is not defined")), path)?;
        }
        for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            self.check(value, part, path)?;
        }
        if let Some(parts) = schema.get("anyOf").or(schema.get("oneOf")).and_then(Value::as_array)
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
        if schema.get("maxItems").is_some_and(|most| (items.len() as u64) > most.as_u64().expect("a number")) {
            return Err(format!("{path}: too many items"));
        }
        let first = schema.get("prefixItems").map_or(&[][..], list);
        for (at, item) in items.iter().enumerate() {
            if let Some(schema) = first.get(at).or_else(|| schema.get("items")) {
                self.check(item, schema, &format!("{path}/{at}"))?;
            }
        }
        Ok(())
    }

    /// Names of an object's properties, including those of referenced schemas.
    pub fn names(&self, schema: &'a Value) -> BTreeSet<&'a str> {
        let mut names = BTreeSet::new();
        if let Some(reference) = schema.get("$ref") {
            names.extend(self.names(&self.definitions[text(reference).trim_start_matches("#/$defs/")]));
        }
        for part in ["allOf", "anyOf", "oneOf"].iter().filter_map(|of| schema.get(of)).flat_map(list) {
            names.extend(self.names(part));
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        names.extend(properties.into_iter().flat_map(Map::keys).map(String::as_str));
        names
    }
}

/// The items of a list; any other value as a list of one.
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

/// Collects all nested schemas.
pub fn each<'a>(schema: &'a Value, found: &mut Vec<&'a Map<String, Value>>) {
    let Some(fields) = schema.as_object() else { return };
    found.push(fields);
    for (name, value) in fields {
        match name.as_str() {
            "properties" | "$defs" => {
                value.as_object().expect("schemas").values().for_each(|schema| each(schema, found))
            }
            "items" | "additionalProperties" => each(value, found),
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => list(value).iter().for_each(|schema| each(schema, found)),
            _ => {}
        }
    }
}

/// All nested schemas, without definitions that `other` has too.
fn own<'a>(schema: &'a Value, other: &Value) -> Vec<&'a Map<String, Value>> {
    let mut found = Vec::new();
    let definitions = schema["$defs"].as_object().expect("definitions");
    let own = definitions.iter().filter(|(name, schema)| other["$defs"].get(name.as_str()) != Some(schema));
    own.for_each(|(_, schema)| each(schema, &mut found));
    schema["properties"].as_object().expect("properties").values().for_each(|schema| each(schema, &mut found));
    found.extend(schema.as_object());
    found
}

/// Reports conform to the schema; together they have all its properties, except in definitions that `other` has too; and the
/// schema has all their fields.
pub fn check_reports(schema: &Value, reports: &[Value], other: &Value) {
    let mut reader = Reader::of(schema);
    for (number, report) in reports.iter().enumerate() {
        assert_eq!(reader.check(report, schema, ""), Ok(()), "report {number}");
        check_known(&reader, report, schema, "");
    }
    for properties in own(schema, other).iter().filter_map(|schema| schema.get("properties")) {
        for (name, property) in properties.as_object().expect("schemas by name") {
            assert!(reader.seen.contains(&std::ptr::from_ref(property)), "no report has `{name}` of {properties}");
            let is_described = property.get("description").is_some() || property.get("$ref").is_some();
            assert!(is_described, "`{name}` is not described");
        }
    }
}

/// Checks that the schema has every field of every object in the value.
fn check_known<'a>(reader: &Reader<'a>, value: &Value, schema: &'a Value, path: &str) {
    match value {
        Value::Object(fields) => {
            let names = reader.names(schema);
            for (name, value) in fields {
                // Counts by reason can have any name.
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

/// Parts and references of a schema.
fn below<'a>(reader: &Reader<'a>, schema: &'a Value) -> Vec<&'a Value> {
    let referred = schema.get("$ref").map(|name| &reader.definitions[text(name).trim_start_matches("#/$defs/")]);
    let parts = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|of| schema.get(of)).flat_map(list);
    parts.chain(referred).collect()
}
