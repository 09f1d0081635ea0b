"""Writes and parses JSON: a program that allocates as Python does when it calls malloc for every object
(PYTHONMALLOC=malloc). Prints `ready`, then answers each line of its input, a number of rounds, with `done`."""

import json
import sys


def work():
    document = {f"key {i}": {"list": list(range(i % 20)), "text": "x" * i, "pair": (i, str(i))} for i in range(600)}
    for _ in range(4):
        document = json.loads(json.dumps(document, indent=1))
    return sorted(len(value["list"]) for value in document.values())


print("ready", flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        work()
    print("done", flush=True)
