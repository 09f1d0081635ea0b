"""A service of an interpreter: keeps what it is told, and answers each line of its input. Says `ready` first. Has leaked 20 blocks of
3,001 bytes that its own allocator knows nothing of."""

import ctypes
import json
import sys


def forget():
    libc = ctypes.CDLL(None)
    # Its result is copied to no object, of which a trace could stay.
    libc.malloc.restype = None
    for _ in range(20):
        libc.malloc(3001)


SHELF = {f"key {i}": {"list": list(range(i % 20)), "text": "x" * i, "pair": (i, str(i))} for i in range(2000)}
forget()
# What was on the stack is written over.
json.loads(json.dumps(SHELF, indent=1))
print("ready", flush=True)
for line in sys.stdin:
    number = int(line)
    SHELF[f"key {number % 2000}"] = {"list": list(range(number % 20)), "text": "y" * (number % 997), "pair": (number, line)}
    book = json.loads(json.dumps(SHELF[f"key {number % 2000}"]))
    print(number + len(book["list"]), flush=True)
