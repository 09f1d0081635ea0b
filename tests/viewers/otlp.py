"""Decodes an ExportProfilesServiceRequest and prints what is in it: each resource's attributes and its profiles with the sum
of their values, names of functions, build ids of mappings, and what is not as the specification has it.

    otlp.py FILE
"""

import json
import sys

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest

TABLES = ["mapping", "location", "function", "link", "string", "attribute", "stack"]


def value(any_value):
    return getattr(any_value, any_value.WhichOneof("value"))


def complaints(dictionary):
    for name in TABLES:
        table = getattr(dictionary, name + "_table")
        if not table or table[0] != type(table[0])():
            yield f"the first {name} is not empty"
        entries = [entry if isinstance(entry, str) else entry.SerializeToString(deterministic=True) for entry in table]
        if len(set(entries)) != len(entries):
            yield f"a {name} stands there twice"
    for location in dictionary.location_table[1:]:
        mapping = dictionary.mapping_table[location.mapping_index]
        if mapping.memory_limit and not mapping.memory_start <= location.address < mapping.memory_limit:
            yield f"{location.address:#x} is not in its mapping"


def main(path):
    request = ExportProfilesServiceRequest()
    with open(path, "rb") as file:
        request.ParseFromString(file.read())
    dictionary = request.dictionary
    strings = dictionary.string_table

    def attributes(indices):
        pairs = [dictionary.attribute_table[index] for index in indices]
        return {strings[pair.key_strindex]: value(pair.value) for pair in pairs}

    def profile(profile):
        for sample in profile.samples:
            for location in dictionary.stack_table[sample.stack_index].location_indices:
                assert dictionary.location_table[location]
        return {
            "type": [strings[profile.sample_type.type_strindex], strings[profile.sample_type.unit_strindex]],
            "period": profile.period,
            "attributes": attributes(profile.attribute_indices),
            "sum": sum(sum(sample.values) for sample in profile.samples),
        }

    build_ids = {}
    for mapping in dictionary.mapping_table:
        build_id = attributes(mapping.attribute_indices).get("process.executable.build_id.gnu")
        if build_id:
            build_ids[build_id] = strings[mapping.filename_strindex]
    answer = {
        "resources": [
            {
                "attributes": {pair.key: value(pair.value) for pair in resource.resource.attributes},
                "profiles": [profile(each) for scope in resource.scope_profiles for each in scope.profiles],
            }
            for resource in request.resource_profiles
        ],
        "functions": [strings[function.name_strindex] for function in dictionary.function_table],
        "build_ids": sorted(build_ids.items()),
        "inlined": sum(len(location.lines) > 1 for location in dictionary.location_table),
        "complaints": list(complaints(dictionary)),
    }
    json.dump(answer, sys.stdout)


main(*sys.argv[1:])
