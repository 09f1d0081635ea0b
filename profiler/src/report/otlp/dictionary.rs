//! The tables that all profiles of a request share. Their first entries are empty, so that 0 stands for nothing; nothing
//! stands in them twice.

use std::hash::Hash;

use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{
    Function, KeyValueAndUnit, Line, Link, Location, Mapping, ProfilesDictionary, Stack,
};
use rustc_hash::FxHashMap;

pub(super) struct Dictionary {
    strings: FxHashMap<String, i32>,
    attributes: FxHashMap<(i32, Attribute), i32>,
    functions: FxHashMap<Function, i32>,
    mappings: FxHashMap<Mapping, i32>,
    locations: FxHashMap<(i32, u64, Vec<Line>), i32>,
    stacks: FxHashMap<Vec<i32>, i32>,
    tables: ProfilesDictionary,
}

/// An attribute's value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Attribute {
    Text(String),
    Int(i64),
    Bool(bool),
    /// By its bits.
    Float(u64),
}

impl Dictionary {
    pub(super) fn new() -> Self {
        Self {
            strings: FxHashMap::from_iter([(String::new(), 0)]),
            attributes: FxHashMap::default(),
            functions: FxHashMap::from_iter([(Function::default(), 0)]),
            mappings: FxHashMap::from_iter([(Mapping::default(), 0)]),
            locations: FxHashMap::from_iter([((0, 0, Vec::new()), 0)]),
            stacks: FxHashMap::from_iter([(Vec::new(), 0)]),
            tables: ProfilesDictionary {
                mapping_table: vec![Mapping::default()],
                location_table: vec![Location::default()],
                function_table: vec![Function::default()],
                link_table: vec![Link::default()],
                string_table: vec![String::new()],
                attribute_table: vec![KeyValueAndUnit::default()],
                stack_table: vec![Stack::default()],
            },
        }
    }

    pub(super) fn finish(self) -> ProfilesDictionary {
        self.tables
    }

    pub(super) fn string(&mut self, text: &str) -> i32 {
        if let Some(&known) = self.strings.get(text) {
            return known;
        }
        number(&mut self.strings, text.to_owned(), &mut self.tables.string_table, String::clone)
    }

    pub(super) fn attribute(&mut self, key: &str, attribute: Attribute) -> i32 {
        let key = self.string(key);
        number(&mut self.attributes, (key, attribute), &mut self.tables.attribute_table, |(key, attribute)| {
            let value = match attribute {
                Attribute::Text(text) => Value::StringValue(text.clone()),
                Attribute::Int(number) => Value::IntValue(*number),
                Attribute::Bool(truth) => Value::BoolValue(*truth),
                Attribute::Float(bits) => Value::DoubleValue(f64::from_bits(*bits)),
            };
            KeyValueAndUnit { key_strindex: *key, value: Some(AnyValue { value: Some(value) }), unit_strindex: 0 }
        })
    }

    /// A function by its name and its source file, which may be empty.
    pub(super) fn function(&mut self, name: &str, file: &str) -> i32 {
        let function =
            Function { name_strindex: self.string(name), filename_strindex: self.string(file), ..Function::default() };
        number(&mut self.functions, function, &mut self.tables.function_table, Function::clone)
    }

    pub(super) fn mapping(&mut self, mapping: Mapping) -> i32 {
        number(&mut self.mappings, mapping, &mut self.tables.mapping_table, Mapping::clone)
    }

    /// An address in a mapping, and the functions there, the innermost first.
    pub(super) fn location(&mut self, mapping: i32, address: u64, lines: Vec<Line>) -> i32 {
        let key = (mapping, address, lines);
        number(&mut self.locations, key, &mut self.tables.location_table, |(mapping_index, address, lines)| Location {
            mapping_index: *mapping_index,
            address: *address,
            lines: lines.clone(),
            ..Location::default()
        })
    }

    /// A location that is no place in code, but has something to say.
    pub(super) fn said(&mut self, text: &str) -> i32 {
        let function_index = self.function(text, "");
        self.location(0, 0, vec![Line { function_index, ..Line::default() }])
    }

    /// Locations, the leaf first.
    pub(super) fn stack(&mut self, locations: Vec<i32>) -> i32 {
        number(&mut self.stacks, locations, &mut self.tables.stack_table, |locations| Stack {
            location_indices: locations.clone(),
        })
    }
}

/// The number of what is in the table, or is put there.
fn number<K: Hash + Eq, V>(
    numbers: &mut FxHashMap<K, i32>,
    key: K,
    table: &mut Vec<V>,
    entry: impl Fn(&K) -> V,
) -> i32 {
    *numbers.entry(key).or_insert_with_key(|key| {
        // A table beyond 2^31 entries does not fit into a message.
        let next = i32::try_from(table.len()).unwrap_or(0);
        table.push(entry(key));
        next
    })
}
