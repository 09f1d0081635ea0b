"""Which of some names are in a file: in strings of JSON, or in the bytes of anything else, unpacked.

    names.py FILE NAMES

`NAMES` is a JSON list. Prints those that are not there, and the beginnings of what is like them.
"""

import gzip
import json
import sys


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for element in value:
            yield from strings(element)
    elif isinstance(value, dict):
        for key, element in value.items():
            yield key
            yield from strings(element)


def main(path, names):
    with open(path, "rb") as file:
        content = file.read()
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    if path.endswith(".json"):
        content = "\0".join(strings(json.loads(content))).encode()
    json.dump([name for name in json.loads(names) if name.encode() not in content], sys.stdout)


main(*sys.argv[1:])
