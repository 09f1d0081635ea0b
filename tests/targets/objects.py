"""Keeps small objects: as many MiB as each line of its input asks for. Prints `ready`, then `done` after each line."""

import sys

kept = []
print("ready", flush=True)
for line in sys.stdin:
    # A float of 24 bytes, and a tuple of 48 with one element and its share of the list.
    kept.append([(float(at),) for at in range(int(line) * (1 << 20) // 80)])
    print("done", flush=True)
