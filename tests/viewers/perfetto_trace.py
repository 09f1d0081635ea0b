"""Decodes a trace with the descriptors of PyPI's perfetto and prints what is in it: clocks, flags of packets by sequence,
processes, heap dumps with their samples' stacks (names, the outermost first, inlined calls among them), and counters.

    perfetto_trace.py FILE

Whatever refers to something that is not there is an error.
"""

import json
import sys

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protos

TABLES = ["function_names", "mapping_paths", "build_ids", "mappings", "frames", "callstacks"]


def bytes_of(module):
    """The build id of symbols, which is declared as a string and holds raw bytes: by its field number."""
    text = module.SerializeToString()
    if not module.HasField("build_id"):
        return b""
    at = len(protos.ModuleSymbols(path=module.path).SerializeToString())
    assert text[at] == 2 << 3 | 2
    return text[at + 2 : at + 2 + text[at + 1]]


class Names:
    """What the numbers of a sequence stand for."""

    def __init__(self):
        self.tables = {name: {} for name in TABLES}
        self.symbols = {}

    def add(self, data):
        for name in TABLES:
            for entry in getattr(data, name):
                assert entry.iid not in self.tables[name], f"{name} {entry.iid} is there twice"
                self.tables[name][entry.iid] = entry

    def module(self, mapping):
        parts = [self.tables["mapping_paths"][part].str.decode() for part in mapping.path_string_ids]
        build_id = self.tables["build_ids"][mapping.build_id].str if mapping.build_id else b""
        return "".join("/" + part for part in parts), build_id

    def add_symbols(self, module):
        modules = {self.module(mapping) for mapping in self.tables["mappings"].values()}
        of = (module.path, bytes_of(module))
        assert of in modules, f"no mapping of {of}"
        for symbols in module.address_symbols:
            assert (*of, symbols.address) not in self.symbols
            self.symbols[(*of, symbols.address)] = list(symbols.lines)

    def frame(self, number):
        frame = self.tables["frames"][number]
        module = self.module(self.tables["mappings"][frame.mapping_id])
        name = self.tables["function_names"][frame.function_name_id].str.decode()
        lines = self.symbols.get((*module, frame.rel_pc))
        if not lines:
            return [{"function": name, "file": None, "line": None}]
        assert lines[-1].function_name == name
        return [
            {
                "function": line.function_name,
                "file": line.source_file_name if line.HasField("source_file_name") else None,
                "line": line.line_number if line.HasField("line_number") else None,
            }
            for line in reversed(lines)
        ]

    def stack(self, number):
        return [line for frame in self.tables["callstacks"][number].frame_ids for line in self.frame(frame)]


def dump_of(packet, dump, names):
    fields = [
        "pid", "heap_name", "timestamp", "start_timestamp", "sampling_interval_bytes", "orig_sampling_interval_bytes",
        "from_startup", "disconnected", "buffer_overran", "buffer_corrupted", "hit_guardrail", "rejected_concurrent", "client_error",
    ]
    assert all(dump.HasField(field) for field in fields)
    samples = [
        {
            "stack": sample.callstack_id, "alloc_bytes": sample.self_allocated, "free_bytes": sample.self_freed,
            "alloc_count": sample.alloc_count, "free_count": sample.free_count,
        }
        for sample in dump.samples
    ]
    assert all(sample["stack"] in names.tables["callstacks"] for sample in samples)
    return {**{field: getattr(dump, field) for field in fields}, "packet_timestamp": packet.timestamp, "samples": samples}


def main(path):
    trace = protos.Trace()
    with open(path, "rb") as file:
        trace.ParseFromString(file.read())
    answer = {"clocks": {}, "flags": {}, "kinds": [], "indices": [], "continued": [], "processes": {}, "threads": {}, "dumps": [], "counters": {}, "smaps": {}}
    names, pids, counters = Names(), {}, {}
    for packet in trace.packet:
        assert packet.trusted_packet_sequence_id
        answer["flags"].setdefault(packet.trusted_packet_sequence_id, []).append(packet.sequence_flags)
        answer["kinds"].append(packet.WhichOneof("data") or "interned_data")
        if packet.HasField("interned_data"):
            names.add(packet.interned_data)
        for clock in packet.clock_snapshot.clocks:
            answer["clocks"][clock.clock_id] = clock.timestamp
        for process in packet.process_tree.processes:
            assert process.pid not in answer["processes"]
            answer["processes"][process.pid] = process.cmdline[0]
        for thread in packet.process_tree.threads:
            answer["threads"][thread.tid] = thread.name
        if packet.HasField("profile_packet"):
            answer["indices"].append(packet.profile_packet.index)
            answer["continued"].append(packet.profile_packet.continued)
            answer["dumps"].extend(dump_of(packet, dump, names) for dump in packet.profile_packet.process_dumps)
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            if track.HasField("counter"):
                counter = {"name": track.name, "unit": track.counter.unit, "description": track.description, "values": []}
                counters[track.uuid] = {"pid": pids[track.parent_uuid], **counter}
            else:
                assert track.uuid not in pids and track.uuid not in counters
                pids[track.uuid] = track.process.pid
        if packet.HasField("track_event"):
            counter = counters[packet.track_event.track_uuid]
            assert packet.track_event.type == protos.TrackEvent.TYPE_COUNTER and packet.timestamp_clock_id == 3
            counter["values"].append([packet.timestamp, packet.track_event.counter_value])
        if packet.HasField("smaps_packet"):
            assert packet.smaps_packet.pid not in answer["smaps"]
            answer["smaps"][packet.smaps_packet.pid] = [
                {field.name: value for field, value in entry.ListFields()} for entry in packet.smaps_packet.entries
            ]
        if packet.HasField("module_symbols"):
            names.add_symbols(packet.module_symbols)
    # Lines of code come last, so stacks are read when all is known.
    answer["stacks"] = {number: names.stack(number) for number in names.tables["callstacks"]}
    answer["counters"] = list(counters.values())
    mappings = names.tables["mappings"].values()
    answer["mappings"] = [
        {
            "path": names.module(mapping)[0], "build_id": names.module(mapping)[1].hex(), "start": mapping.start, "end": mapping.end,
            "offset": mapping.exact_offset, "load_bias": mapping.load_bias,
        }
        for mapping in mappings
    ]
    json.dump(answer, sys.stdout)


main(*sys.argv[1:])
