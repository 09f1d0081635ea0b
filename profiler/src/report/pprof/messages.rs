//! The messages of `profile.proto`. What is an index into the string table says so.

use prost::Message;

use super::strings::Strings;

/// The whole file. Several that follow each other are one whose lists are joined.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub(super) sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    pub(super) sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    pub(super) mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    pub(super) location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub(super) function: Vec<Function>,
    /// The first one is empty.
    #[prost(string, repeated, tag = "6")]
    pub(super) string_table: Vec<String>,
    /// Beginning, since the Unix epoch.
    #[prost(int64, tag = "9")]
    pub(super) time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub(super) duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub(super) period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    pub(super) period: i64,
    /// Texts.
    #[prost(int64, repeated, tag = "13")]
    pub(super) comment: Vec<i64>,
    /// Text: the type of a sample type.
    #[prost(int64, tag = "14")]
    pub(super) default_sample_type: i64,
}

/// What a number means.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueType {
    /// Text.
    #[prost(int64, tag = "1")]
    pub(super) kind: i64,
    /// Text.
    #[prost(int64, tag = "2")]
    pub(super) unit: i64,
}

impl ValueType {
    pub(super) fn new(kind: &'static str, unit: &'static str, strings: &mut Strings<'_>) -> Self {
        Self { kind: strings.number(kind.into()), unit: strings.number(unit.into()) }
    }
}

/// A stack with its values.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Sample {
    /// Leaf first.
    #[prost(uint64, repeated, tag = "1")]
    pub(super) location_id: Vec<u64>,
    /// One for each sample type.
    #[prost(int64, repeated, tag = "2")]
    pub(super) value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(super) label: Vec<Label>,
}

/// What a sample belongs to: a text or a number.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Label {
    /// Text.
    #[prost(int64, tag = "1")]
    pub(super) key: i64,
    /// Text.
    #[prost(int64, tag = "2")]
    pub(super) text: i64,
    #[prost(int64, tag = "3")]
    pub(super) number: i64,
    /// Text.
    #[prost(int64, tag = "4")]
    pub(super) number_unit: i64,
}

/// Where a file's code was mapped.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Mapping {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(uint64, tag = "2")]
    pub(super) memory_start: u64,
    #[prost(uint64, tag = "3")]
    pub(super) memory_limit: u64,
    #[prost(uint64, tag = "4")]
    pub(super) file_offset: u64,
    /// Text.
    #[prost(int64, tag = "5")]
    pub(super) filename: i64,
    /// Text.
    #[prost(int64, tag = "6")]
    pub(super) build_id: i64,
    #[prost(bool, tag = "7")]
    pub(super) has_functions: bool,
    #[prost(bool, tag = "8")]
    pub(super) has_filenames: bool,
    #[prost(bool, tag = "9")]
    pub(super) has_line_numbers: bool,
    #[prost(bool, tag = "10")]
    pub(super) has_inline_frames: bool,
}

/// An instruction.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Location {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(uint64, tag = "2")]
    pub(super) mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub(super) address: u64,
    /// The last one is the function that the others were inlined into.
    #[prost(message, repeated, tag = "4")]
    pub(super) line: Vec<Line>,
}

/// A line of source.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Line {
    #[prost(uint64, tag = "1")]
    pub(super) function_id: u64,
    #[prost(int64, tag = "2")]
    pub(super) line: i64,
}

/// A function.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Function {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    /// Text: for people.
    #[prost(int64, tag = "2")]
    pub(super) name: i64,
    /// Text: as linkers know it. Left empty: where it is the same as the name, `go tool pprof` takes the name for one that has yet to be
    /// demangled, and cuts out all that is in brackets.
    #[prost(int64, tag = "3")]
    pub(super) system_name: i64,
    /// Text.
    #[prost(int64, tag = "4")]
    pub(super) filename: i64,
}
