//! The protobuf messages of pprof and Perfetto, one line per field.

/// Defines prost messages. The brackets contain the arguments of `#[prost]`.
macro_rules! messages {
    ($(
        $(#[$attribute:meta])*
        $message:ident {
            $($(#[$field_attribute:meta])* $field:ident: $type:ty = [$($prost:tt)*],)*
        }
    )*) => {$(
        $(#[$attribute])*
        #[derive(Clone, PartialEq, ::prost::Message)]
        pub(crate) struct $message {
            $($(#[$field_attribute])* #[prost($($prost)*)] pub(crate) $field: $type,)*
        }
    )*};
}

pub(super) mod pprof {
    /// Index into the string table.
    type Text = i64;

    messages! {
        /// Consecutive messages are one whose lists are concatenated.
        Profile {
            sample_type: Vec<ValueType> = [message, repeated, tag = "1"],
            sample: Vec<Sample> = [message, repeated, tag = "2"],
            mapping: Vec<Mapping> = [message, repeated, tag = "3"],
            location: Vec<Location> = [message, repeated, tag = "4"],
            function: Vec<Function> = [message, repeated, tag = "5"],
            /// The first text is empty.
            string_table: Vec<String> = [string, repeated, tag = "6"],
            time_nanos: i64 = [int64, tag = "9"],
            duration_nanos: i64 = [int64, tag = "10"],
            period_type: Option<ValueType> = [message, optional, tag = "11"],
            period: i64 = [int64, tag = "12"],
            comment: Vec<Text> = [int64, repeated, tag = "13"],
            default_sample_type: Text = [int64, tag = "14"],
        }

        ValueType {
            kind: Text = [int64, tag = "1"],
            unit: Text = [int64, tag = "2"],
        }

        Sample {
            /// Leaf first.
            location_id: Vec<u64> = [uint64, repeated, tag = "1"],
            /// One for each sample type.
            value: Vec<i64> = [int64, repeated, tag = "2"],
            label: Vec<Label> = [message, repeated, tag = "3"],
        }

        #[derive(Eq, Hash)]
        Label {
            key: Text = [int64, tag = "1"],
            text: Text = [int64, tag = "2"],
            number: i64 = [int64, tag = "3"],
            number_unit: Text = [int64, tag = "4"],
        }

        Mapping {
            id: u64 = [uint64, tag = "1"],
            memory_start: u64 = [uint64, tag = "2"],
            memory_limit: u64 = [uint64, tag = "3"],
            file_offset: u64 = [uint64, tag = "4"],
            filename: Text = [int64, tag = "5"],
            build_id: Text = [int64, tag = "6"],
            has_functions: bool = [bool, tag = "7"],
            has_filenames: bool = [bool, tag = "8"],
            has_line_numbers: bool = [bool, tag = "9"],
            has_inline_frames: bool = [bool, tag = "10"],
        }

        Location {
            id: u64 = [uint64, tag = "1"],
            mapping_id: u64 = [uint64, tag = "2"],
            address: u64 = [uint64, tag = "3"],
            /// The last one is the function that the others were inlined into.
            line: Vec<Line> = [message, repeated, tag = "4"],
        }

        Line {
            function_id: u64 = [uint64, tag = "1"],
            line: i64 = [int64, tag = "2"],
        }

        Function {
            id: u64 = [uint64, tag = "1"],
            name: Text = [int64, tag = "2"],
            /// Left empty: if it equals the name, `go tool pprof` demangles it and drops everything in brackets.
            system_name: Text = [int64, tag = "3"],
            filename: Text = [int64, tag = "4"],
        }
    }
}

/// Field numbers are of `protos/perfetto/trace/`. Strings that Perfetto fills with bytes (build ids) are bytes here.
pub(super) mod perfetto {
    #[derive(Clone, PartialEq, prost::Oneof)]
    pub(crate) enum Data {
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
        #[prost(message, tag = "68")]
        SmapsPacket(SmapsPacket),
    }

    messages! {
        TracePacket {
            timestamp: Option<u64> = [uint64, optional, tag = "8"],
            timestamp_clock_id: Option<u32> = [uint32, optional, tag = "58"],
            trusted_packet_sequence_id: Option<u32> = [uint32, optional, tag = "10"],
            sequence_flags: Option<u32> = [uint32, optional, tag = "13"],
            interned_data: Option<InternedData> = [message, optional, tag = "12"],
            data: Option<Data> = [oneof = "Data", tags = "2, 6, 11, 37, 60, 61, 68"],
        }

        SmapsPacket {
            pid: Option<u32> = [uint32, optional, tag = "1"],
            entries: Vec<SmapsEntry> = [message, repeated, tag = "2"],
        }

        SmapsEntry {
            path: Option<String> = [string, optional, tag = "1"],
            size_kb: Option<u64> = [uint64, optional, tag = "2"],
            private_dirty_kb: Option<u64> = [uint64, optional, tag = "3"],
            swap_kb: Option<u64> = [uint64, optional, tag = "4"],
            start_address: Option<u64> = [uint64, optional, tag = "6"],
            protection_flags: Option<u32> = [uint32, optional, tag = "10"],
            private_clean_resident_kb: Option<u64> = [uint64, optional, tag = "11"],
            shared_dirty_resident_kb: Option<u64> = [uint64, optional, tag = "12"],
            shared_clean_resident_kb: Option<u64> = [uint64, optional, tag = "13"],
            proportional_resident_kb: Option<u64> = [uint64, optional, tag = "15"],
        }

        ClockSnapshot {
            clocks: Vec<Clock> = [message, repeated, tag = "1"],
        }

        Clock {
            clock_id: Option<u32> = [uint32, optional, tag = "1"],
            timestamp: Option<u64> = [uint64, optional, tag = "2"],
        }

        ProcessTree {
            processes: Vec<Process> = [message, repeated, tag = "1"],
            threads: Vec<Thread> = [message, repeated, tag = "2"],
        }

        Process {
            pid: Option<i32> = [int32, optional, tag = "1"],
            ppid: Option<i32> = [int32, optional, tag = "2"],
            cmdline: Vec<String> = [string, repeated, tag = "3"],
        }

        Thread {
            tid: Option<i32> = [int32, optional, tag = "1"],
            name: Option<String> = [string, optional, tag = "2"],
            tgid: Option<i32> = [int32, optional, tag = "3"],
        }

        /// Interned values that later packets of the same sequence reference by id.
        InternedData {
            function_names: Vec<InternedString> = [message, repeated, tag = "5"],
            frames: Vec<Frame> = [message, repeated, tag = "6"],
            callstacks: Vec<Callstack> = [message, repeated, tag = "7"],
            build_ids: Vec<InternedString> = [message, repeated, tag = "16"],
            mapping_paths: Vec<InternedString> = [message, repeated, tag = "17"],
            mappings: Vec<Mapping> = [message, repeated, tag = "19"],
        }

        /// A text, or the raw bytes of a build id.
        InternedString {
            iid: Option<u64> = [uint64, optional, tag = "1"],
            str: Option<Vec<u8>> = [bytes = "vec", optional, tag = "2"],
        }

        Mapping {
            iid: Option<u64> = [uint64, optional, tag = "1"],
            build_id: Option<u64> = [uint64, optional, tag = "2"],
            start_offset: Option<u64> = [uint64, optional, tag = "3"],
            start: Option<u64> = [uint64, optional, tag = "4"],
            end: Option<u64> = [uint64, optional, tag = "5"],
            /// Virtual address of the segment in the file minus its offset.
            load_bias: Option<u64> = [uint64, optional, tag = "6"],
            path_string_ids: Vec<u64> = [uint64, repeated, packed = "false", tag = "7"],
            exact_offset: Option<u64> = [uint64, optional, tag = "8"],
        }

        Frame {
            iid: Option<u64> = [uint64, optional, tag = "1"],
            function_name_id: Option<u64> = [uint64, optional, tag = "2"],
            mapping_id: Option<u64> = [uint64, optional, tag = "3"],
            /// Virtual address by the file's ELF headers.
            rel_pc: Option<u64> = [uint64, optional, tag = "4"],
        }

        /// Outermost frame first.
        Callstack {
            iid: Option<u64> = [uint64, optional, tag = "1"],
            frame_ids: Vec<u64> = [uint64, repeated, packed = "false", tag = "2"],
        }

        ProfilePacket {
            process_dumps: Vec<ProcessHeapSamples> = [message, repeated, tag = "5"],
            continued: Option<bool> = [bool, optional, tag = "6"],
            index: Option<u64> = [uint64, optional, tag = "7"],
        }

        ProcessHeapSamples {
            pid: Option<u64> = [uint64, optional, tag = "1"],
            samples: Vec<HeapSample> = [message, repeated, tag = "2"],
            from_startup: Option<bool> = [bool, optional, tag = "3"],
            rejected_concurrent: Option<bool> = [bool, optional, tag = "4"],
            stats: Option<ProcessStats> = [message, optional, tag = "5"],
            disconnected: Option<bool> = [bool, optional, tag = "6"],
            buffer_overran: Option<bool> = [bool, optional, tag = "7"],
            buffer_corrupted: Option<bool> = [bool, optional, tag = "8"],
            /// Nanoseconds of `CLOCK_MONOTONIC_COARSE`, like `start_timestamp`.
            timestamp: Option<u64> = [uint64, optional, tag = "9"],
            hit_guardrail: Option<bool> = [bool, optional, tag = "10"],
            heap_name: Option<String> = [string, optional, tag = "11"],
            sampling_interval_bytes: Option<u64> = [uint64, optional, tag = "12"],
            orig_sampling_interval_bytes: Option<u64> = [uint64, optional, tag = "13"],
            /// 0: none.
            client_error: Option<i32> = [int32, optional, tag = "14"],
            start_timestamp: Option<u64> = [uint64, optional, tag = "15"],
        }

        /// Cumulative amounts of a call stack.
        HeapSample {
            callstack_id: Option<u64> = [uint64, optional, tag = "1"],
            self_allocated: Option<u64> = [uint64, optional, tag = "2"],
            self_freed: Option<u64> = [uint64, optional, tag = "3"],
            alloc_count: Option<u64> = [uint64, optional, tag = "5"],
            free_count: Option<u64> = [uint64, optional, tag = "6"],
        }

        ProcessStats {
            unwinding_errors: Option<u64> = [uint64, optional, tag = "1"],
            heap_samples: Option<u64> = [uint64, optional, tag = "2"],
        }

        TrackDescriptor {
            uuid: Option<u64> = [uint64, optional, tag = "1"],
            name: Option<String> = [string, optional, tag = "2"],
            process: Option<ProcessDescriptor> = [message, optional, tag = "3"],
            parent_uuid: Option<u64> = [uint64, optional, tag = "5"],
            counter: Option<CounterDescriptor> = [message, optional, tag = "8"],
            description: Option<String> = [string, optional, tag = "14"],
        }

        ProcessDescriptor {
            pid: Option<i32> = [int32, optional, tag = "1"],
            cmdline: Vec<String> = [string, repeated, tag = "2"],
            process_name: Option<String> = [string, optional, tag = "6"],
            process_labels: Vec<String> = [string, repeated, tag = "8"],
        }

        CounterDescriptor {
            unit: Option<i32> = [int32, optional, tag = "3"],
        }

        TrackEvent {
            r#type: Option<i32> = [int32, optional, tag = "9"],
            track_uuid: Option<u64> = [uint64, optional, tag = "11"],
            counter_value: Option<i64> = [int64, optional, tag = "30"],
        }

        ModuleSymbols {
            path: Option<String> = [string, optional, tag = "1"],
            build_id: Option<Vec<u8>> = [bytes = "vec", optional, tag = "2"],
            address_symbols: Vec<AddressSymbols> = [message, repeated, tag = "3"],
        }

        /// Functions at an address, the innermost first.
        AddressSymbols {
            address: Option<u64> = [uint64, optional, tag = "1"],
            lines: Vec<Line> = [message, repeated, tag = "2"],
        }

        Line {
            function_name: Option<String> = [string, optional, tag = "1"],
            source_file_name: Option<String> = [string, optional, tag = "2"],
            line_number: Option<u32> = [uint32, optional, tag = "3"],
        }
    }
}
