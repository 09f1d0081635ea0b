//! Parses Perfetto traces by an independent table of the field numbers of its `.proto` files.

use std::fmt::Write as _;

/// A message with its fields in the order of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Message(Vec<(&'static str, Value)>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Number(u64),
    Bytes(Vec<u8>),
    Message(Message),
}

#[derive(Clone, Copy)]
enum Kind {
    Number,
    Bytes,
    Message(&'static str),
}

use Kind::{Bytes as B, Message as M, Number as N};

/// Messages, with the number, name and kind of their fields.
type Fields = &'static [(u64, &'static str, Kind)];

const SCHEMA: &[(&str, Fields)] = &[
    ("Trace", &[(1, "packet", M("TracePacket"))]),
    (
        "TracePacket",
        &[
            (2, "process_tree", M("ProcessTree")),
            (6, "clock_snapshot", M("ClockSnapshot")),
            (8, "timestamp", N),
            (10, "trusted_packet_sequence_id", N),
            (11, "track_event", M("TrackEvent")),
            (12, "interned_data", M("InternedData")),
            (13, "sequence_flags", N),
            (37, "profile_packet", M("ProfilePacket")),
            (58, "timestamp_clock_id", N),
            (60, "track_descriptor", M("TrackDescriptor")),
            (61, "module_symbols", M("ModuleSymbols")),
            (68, "smaps_packet", M("SmapsPacket")),
        ],
    ),
    ("SmapsPacket", &[(1, "pid", N), (2, "entries", M("SmapsEntry"))]),
    (
        "SmapsEntry",
        &[
            (1, "path", B),
            (2, "size_kb", N),
            (3, "private_dirty_kb", N),
            (4, "swap_kb", N),
            (6, "start_address", N),
            (10, "protection_flags", N),
            (11, "private_clean_resident_kb", N),
            (12, "shared_dirty_resident_kb", N),
            (13, "shared_clean_resident_kb", N),
            (15, "proportional_resident_kb", N),
        ],
    ),
    ("ClockSnapshot", &[(1, "clocks", M("Clock"))]),
    ("Clock", &[(1, "clock_id", N), (2, "timestamp", N)]),
    ("ProcessTree", &[(1, "processes", M("Process")), (2, "threads", M("Thread"))]),
    ("Process", &[(1, "pid", N), (2, "ppid", N), (3, "cmdline", B)]),
    ("Thread", &[(1, "tid", N), (2, "name", B), (3, "tgid", N)]),
    ("TrackEvent", &[(9, "type", N), (11, "track_uuid", N), (30, "counter_value", N)]),
    (
        "InternedData",
        &[
            (5, "function_names", M("InternedString")),
            (6, "frames", M("Frame")),
            (7, "callstacks", M("Callstack")),
            (16, "build_ids", M("InternedString")),
            (17, "mapping_paths", M("InternedString")),
            (19, "mappings", M("Mapping")),
        ],
    ),
    ("InternedString", &[(1, "iid", N), (2, "str", B)]),
    (
        "Mapping",
        &[
            (1, "iid", N),
            (2, "build_id", N),
            (3, "start_offset", N),
            (4, "start", N),
            (5, "end", N),
            (6, "load_bias", N),
            (7, "path_string_ids", N),
            (8, "exact_offset", N),
        ],
    ),
    ("Frame", &[(1, "iid", N), (2, "function_name_id", N), (3, "mapping_id", N), (4, "rel_pc", N)]),
    ("Callstack", &[(1, "iid", N), (2, "frame_ids", N)]),
    ("ProfilePacket", &[(5, "process_dumps", M("ProcessHeapSamples")), (6, "continued", N), (7, "index", N)]),
    (
        "ProcessHeapSamples",
        &[
            (1, "pid", N),
            (2, "samples", M("HeapSample")),
            (3, "from_startup", N),
            (4, "rejected_concurrent", N),
            (5, "stats", M("ProcessStats")),
            (6, "disconnected", N),
            (7, "buffer_overran", N),
            (8, "buffer_corrupted", N),
            (9, "timestamp", N),
            (10, "hit_guardrail", N),
            (11, "heap_name", B),
            (12, "sampling_interval_bytes", N),
            (13, "orig_sampling_interval_bytes", N),
            (14, "client_error", N),
            (15, "start_timestamp", N),
        ],
    ),
    (
        "HeapSample",
        &[
            (1, "callstack_id", N),
            (2, "self_allocated", N),
            (3, "self_freed", N),
            (5, "alloc_count", N),
            (6, "free_count", N),
        ],
    ),
    ("ProcessStats", &[(1, "unwinding_errors", N), (2, "heap_samples", N)]),
    (
        "TrackDescriptor",
        &[
            (1, "uuid", N),
            (2, "name", B),
            (3, "process", M("ProcessDescriptor")),
            (5, "parent_uuid", N),
            (8, "counter", M("CounterDescriptor")),
            (14, "description", B),
        ],
    ),
    ("ProcessDescriptor", &[(1, "pid", N), (2, "cmdline", B), (6, "process_name", B), (8, "process_labels", B)]),
    ("CounterDescriptor", &[(3, "unit", N)]),
    ("ModuleSymbols", &[(1, "path", B), (2, "build_id", B), (3, "address_symbols", M("AddressSymbols"))]),
    ("AddressSymbols", &[(1, "address", N), (2, "lines", M("Line"))]),
    ("Line", &[(1, "function_name", B), (2, "source_file_name", B), (3, "line_number", N)]),
];

impl Message {
    /// A trace from its bytes.
    pub(super) fn trace(bytes: &[u8]) -> Self {
        Self::read("Trace", bytes)
    }

    fn read(name: &str, mut bytes: &[u8]) -> Self {
        let (_, fields) = SCHEMA.iter().find(|(known, _)| *known == name).expect("the message is in the table");
        let mut message = Self::default();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let (_, field, kind) = fields
                .iter()
                .find(|(number, _, _)| *number == key >> 3)
                .unwrap_or_else(|| panic!("{name} has no field {}", key >> 3));
            let value = match (kind, key & 7) {
                (Kind::Number, 0) => Value::Number(varint(&mut bytes)),
                (Kind::Bytes, 2) => Value::Bytes(delimited(&mut bytes).to_vec()),
                (Kind::Message(of), 2) => Value::Message(Self::read(of, delimited(&mut bytes))),
                (_, wire) => panic!("{name}.{field} is of wire type {wire}"),
            };
            message.0.push((field, value));
        }
        message
    }

    /// The messages in a field.
    pub(super) fn all<'a>(&'a self, field: &'a str) -> impl Iterator<Item = &'a Self> {
        self.values(field).filter_map(|value| if let Value::Message(message) = value { Some(message) } else { None })
    }

    /// The numbers in a field.
    pub(super) fn numbers<'a>(&'a self, field: &'a str) -> impl Iterator<Item = u64> {
        self.values(field).filter_map(|value| if let Value::Number(number) = value { Some(*number) } else { None })
    }

    /// The number in a field that has one.
    pub(super) fn number(&self, field: &str) -> u64 {
        self.numbers(field).next().unwrap_or_else(|| panic!("there is no {field} in\n{self}"))
    }

    /// The text in a field that has one.
    pub(super) fn text(&self, field: &str) -> String {
        let mut texts =
            self.values(field).filter_map(|value| if let Value::Bytes(text) = value { Some(text) } else { None });
        let text = texts.next().unwrap_or_else(|| panic!("there is no {field} in\n{self}"));
        String::from_utf8(text.clone()).expect("it is a text")
    }

    fn values<'a>(&'a self, field: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |(known, _)| *known == field).map(|(_, value)| value)
    }

    fn print(&self, out: &mut String, depth: usize) {
        for (name, value) in &self.0 {
            let _ = write!(out, "{:1$}{name}", "", depth * 2);
            let _ = match value {
                Value::Number(number) => writeln!(out, ": {number}"),
                Value::Bytes(bytes) => match str::from_utf8(bytes) {
                    Ok(text) => writeln!(out, ": {text:?}"),
                    Err(_) => writeln!(out, ": {bytes:02x?}"),
                },
                Value::Message(message) if message.0.iter().all(|(_, value)| !matches!(value, Value::Message(_))) => {
                    let mut line = String::new();
                    message.print(&mut line, 0);
                    writeln!(out, " {{ {} }}", line.trim_end().replace('\n', ", "))
                }
                Value::Message(message) => {
                    let _ = writeln!(out, " {{");
                    message.print(out, depth + 1);
                    writeln!(out, "{:1$}}}", "", depth * 2)
                }
            };
        }
    }
}

impl std::fmt::Display for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = String::new();
        self.print(&mut text, 0);
        f.write_str(&text)
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..70).step_by(7) {
        let (first, rest) = bytes.split_first().expect("the number ends");
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return number;
        }
    }
    panic!("a number is too long")
}

fn delimited<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let length = usize::try_from(varint(bytes)).expect("it is in memory");
    let (field, rest) = bytes.split_at(length);
    *bytes = rest;
    field
}
