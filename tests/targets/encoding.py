"""Encodes rows as JSON and keeps the texts. All objects come from malloc (PYTHONMALLOC=malloc).

Usage: encoding.py            prints `ready`, answers a line of its input with `done` after a round of work
       encoding.py OUTPUT     works under memray, and writes what it has seen: JSON by stack, the innermost function first

A round precedes both, so that caches and specialized instructions are the same."""

import json
import sys

KEPT = []


class Store:
    def __init__(self):
        self.rows = []
        for i in range(100):
            self.rows.append({"key": i, "text": str(i) * 7, "parts": [i, i / 3, None]})

    def encode(self, row):
        return json.dumps(row)

    def texts(self):
        for row in self.rows:
            yield self.encode(row)


def work():
    # No comprehensions: memray has no line of their first instruction in 3.9.
    store = Store()
    KEPT.append(list(store.texts()))
    KEPT.append(json.dumps(store.rows, indent=1))
    for text in KEPT[-2]:
        KEPT.append(json.loads(text))


def main():
    import memray

    output = sys.argv[1]
    work()
    print("ready", flush=True)
    sys.stdin.readline()
    with memray.Tracker(output + ".memray"):
        work()
    print("done", flush=True)
    sys.stdin.readline()
    sums = {}
    for record in memray.FileReader(output + ".memray").get_allocation_records():
        if record.size:
            stack = tuple((name, file, line) for name, file, line in record.stack_trace())
            sum_of = sums.setdefault(stack, [0, 0])
            sum_of[0] += record.n_allocations
            sum_of[1] += record.size
    with open(output, "w", encoding="utf-8") as file:
        json.dump([{"stack": stack, "count": count, "bytes": size} for stack, (count, size) in sums.items()], file)
    print("done", flush=True)


main()
