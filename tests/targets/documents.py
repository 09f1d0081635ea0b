"""Writes and parses JSON, again and again: a program that allocates as Python does when it calls malloc for every object
(PYTHONMALLOC=malloc). Prints "ready 1", and then for each piece of work when it began and ended (nanoseconds of
CLOCK_MONOTONIC) and the CPU time that it took."""

import json
import time


def work():
    document = {f"key {i}": {"list": list(range(i % 20)), "text": "x" * i, "pair": (i, str(i))} for i in range(600)}
    for _ in range(4):
        document = json.loads(json.dumps(document, indent=1))
    return sorted(len(value["list"]) for value in document.values())


print("ready 1", flush=True)
while True:
    began, cpu = time.monotonic_ns(), time.process_time_ns()
    work()
    print(began, time.monotonic_ns(), time.process_time_ns() - cpu, flush=True)
