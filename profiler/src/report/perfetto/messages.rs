//! The messages of a Perfetto trace that a heap profile takes, with the field numbers of `protos/perfetto/trace/`.
//!
//! Owns the layout on the wire and nothing else. What Perfetto calls a string and fills with bytes (a module's build id) is
//! bytes here.

use prost::Message;

/// `TracePacket`: one message of a trace, which is nothing but those.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    pub(super) timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "58")]
    pub(super) timestamp_clock_id: Option<u32>,
    #[prost(uint32, optional, tag = "10")]
    pub(super) trusted_packet_sequence_id: Option<u32>,
    #[prost(uint32, optional, tag = "13")]
    pub(super) sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "12")]
    pub(super) interned_data: Option<InternedData>,
    #[prost(oneof = "Data", tags = "2, 6, 11, 37, 60, 61")]
    pub(super) data: Option<Data>,
}

/// What a packet is about.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Data {
    #[prost(message, tag = "2")]
    ProcessTree(ProcessTree),
    #[prost(message, tag = "6")]
    ClockSnapshot(ClockSnapshot),
    #[prost(message, tag = "11")]
    TrackEvent(TrackEvent),
    #[prost(message, tag = "37")]
    ProfilePacket(ProfilePacket),
    #[prost(message, tag = "60")]
    TrackDescriptor(TrackDescriptor),
    #[prost(message, tag = "61")]
    ModuleSymbols(ModuleSymbols),
}

/// Readings of several clocks at one moment.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub(super) clocks: Vec<Clock>,
}

/// `ClockSnapshot.Clock`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Clock {
    #[prost(uint32, optional, tag = "1")]
    pub(super) clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) timestamp: Option<u64>,
}

/// Names of processes and threads.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessTree {
    #[prost(message, repeated, tag = "1")]
    pub(super) processes: Vec<Process>,
    #[prost(message, repeated, tag = "2")]
    pub(super) threads: Vec<Thread>,
}

/// `ProcessTree.Process`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Process {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    pub(super) ppid: Option<i32>,
    #[prost(string, repeated, tag = "3")]
    pub(super) cmdline: Vec<String>,
}

/// `ProcessTree.Thread`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Thread {
    #[prost(int32, optional, tag = "1")]
    pub(super) tid: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(int32, optional, tag = "3")]
    pub(super) tgid: Option<i32>,
}

/// What the numbers in later packets of the same sequence stand for.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedData {
    #[prost(message, repeated, tag = "5")]
    pub(super) function_names: Vec<InternedString>,
    #[prost(message, repeated, tag = "6")]
    pub(super) frames: Vec<Frame>,
    #[prost(message, repeated, tag = "7")]
    pub(super) callstacks: Vec<Callstack>,
    #[prost(message, repeated, tag = "16")]
    pub(super) build_ids: Vec<InternedString>,
    #[prost(message, repeated, tag = "17")]
    pub(super) mapping_paths: Vec<InternedString>,
    #[prost(message, repeated, tag = "19")]
    pub(super) mappings: Vec<Mapping>,
}

/// A text, or the raw bytes of a build id.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternedString {
    #[prost(uint64, optional, tag = "1")]
    pub(super) iid: Option<u64>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(super) str: Option<Vec<u8>>,
}

/// Where a file is mapped.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Mapping {
    #[prost(uint64, optional, tag = "1")]
    pub(super) iid: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) build_id: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub(super) start_offset: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub(super) start: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) end: Option<u64>,
    /// Of the segment in the file: its virtual address less its offset.
    #[prost(uint64, optional, tag = "6")]
    pub(super) load_bias: Option<u64>,
    /// The path's components.
    #[prost(uint64, repeated, packed = "false", tag = "7")]
    pub(super) path_string_ids: Vec<u64>,
    #[prost(uint64, optional, tag = "8")]
    pub(super) exact_offset: Option<u64>,
}

/// A place in code.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Frame {
    #[prost(uint64, optional, tag = "1")]
    pub(super) iid: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) function_name_id: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub(super) mapping_id: Option<u64>,
    /// Its virtual address as the file's ELF headers say it.
    #[prost(uint64, optional, tag = "4")]
    pub(super) rel_pc: Option<u64>,
}

/// A stack, the outermost frame first.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Callstack {
    #[prost(uint64, optional, tag = "1")]
    pub(super) iid: Option<u64>,
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub(super) frame_ids: Vec<u64>,
}

/// What heapprofd tells of heaps.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProfilePacket {
    #[prost(message, repeated, tag = "5")]
    pub(super) process_dumps: Vec<ProcessHeapSamples>,
    #[prost(bool, optional, tag = "6")]
    pub(super) continued: Option<bool>,
    #[prost(uint64, optional, tag = "7")]
    pub(super) index: Option<u64>,
}

/// `ProfilePacket.ProcessHeapSamples`: one heap of one process.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessHeapSamples {
    #[prost(uint64, optional, tag = "1")]
    pub(super) pid: Option<u64>,
    #[prost(message, repeated, tag = "2")]
    pub(super) samples: Vec<HeapSample>,
    #[prost(bool, optional, tag = "3")]
    pub(super) from_startup: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    pub(super) rejected_concurrent: Option<bool>,
    #[prost(message, optional, tag = "5")]
    pub(super) stats: Option<ProcessStats>,
    #[prost(bool, optional, tag = "6")]
    pub(super) disconnected: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    pub(super) buffer_overran: Option<bool>,
    #[prost(bool, optional, tag = "8")]
    pub(super) buffer_corrupted: Option<bool>,
    /// In nanoseconds of `CLOCK_MONOTONIC_COARSE`, as that of `start_timestamp`.
    #[prost(uint64, optional, tag = "9")]
    pub(super) timestamp: Option<u64>,
    #[prost(bool, optional, tag = "10")]
    pub(super) hit_guardrail: Option<bool>,
    #[prost(string, optional, tag = "11")]
    pub(super) heap_name: Option<String>,
    #[prost(uint64, optional, tag = "12")]
    pub(super) sampling_interval_bytes: Option<u64>,
    #[prost(uint64, optional, tag = "13")]
    pub(super) orig_sampling_interval_bytes: Option<u64>,
    /// 0: none.
    #[prost(int32, optional, tag = "14")]
    pub(super) client_error: Option<i32>,
    #[prost(uint64, optional, tag = "15")]
    pub(super) start_timestamp: Option<u64>,
}

/// `ProfilePacket.HeapSample`: what a callstack did since the profile began.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeapSample {
    #[prost(uint64, optional, tag = "1")]
    pub(super) callstack_id: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) self_allocated: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub(super) self_freed: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) alloc_count: Option<u64>,
    #[prost(uint64, optional, tag = "6")]
    pub(super) free_count: Option<u64>,
}

/// `ProfilePacket.ProcessStats`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessStats {
    #[prost(uint64, optional, tag = "1")]
    pub(super) unwinding_errors: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub(super) heap_samples: Option<u64>,
}

/// A track of the timeline.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub(super) uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(super) process: Option<ProcessDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub(super) parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub(super) counter: Option<CounterDescriptor>,
    #[prost(string, optional, tag = "14")]
    pub(super) description: Option<String>,
}

/// The process that a track is of.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(super) pid: Option<i32>,
    #[prost(string, repeated, tag = "2")]
    pub(super) cmdline: Vec<String>,
    #[prost(string, optional, tag = "6")]
    pub(super) process_name: Option<String>,
    #[prost(string, repeated, tag = "8")]
    pub(super) process_labels: Vec<String>,
}

/// That a track is a counter's.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CounterDescriptor {
    /// 3: bytes.
    #[prost(int32, optional, tag = "3")]
    pub(super) unit: Option<i32>,
}

/// A value of a counter, among others.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TrackEvent {
    /// 4: a counter's value.
    #[prost(int32, optional, tag = "9")]
    pub(super) r#type: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    pub(super) track_uuid: Option<u64>,
    #[prost(int64, optional, tag = "30")]
    pub(super) counter_value: Option<i64>,
}

/// Source lines of places in a module.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ModuleSymbols {
    #[prost(string, optional, tag = "1")]
    pub(super) path: Option<String>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(super) build_id: Option<Vec<u8>>,
    #[prost(message, repeated, tag = "3")]
    pub(super) address_symbols: Vec<AddressSymbols>,
}

/// The functions at a place, the innermost first.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AddressSymbols {
    #[prost(uint64, optional, tag = "1")]
    pub(super) address: Option<u64>,
    #[prost(message, repeated, tag = "2")]
    pub(super) lines: Vec<Line>,
}

/// A function with its line.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Line {
    #[prost(string, optional, tag = "1")]
    pub(super) function_name: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(super) source_file_name: Option<String>,
    #[prost(uint32, optional, tag = "3")]
    pub(super) line_number: Option<u32>,
}
