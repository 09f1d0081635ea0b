"""Keeps objects of its own types, and says how many it has: the protocol is that of `heapbpf_tests::target`."""

import array
import ctypes
import gc
import os
import signal
import sys
import tempfile
import threading


class Session:
    def __init__(self, number):
        self.number = number
        self.name = "user-%d" % number
        self.tags = [number, number + 1]


class Slot:
    __slots__ = ("first", "second")

    def __init__(self, number):
        self.first = self.second = number


class Outer:
    class Inner(dict):
        pass


class Meta(type):
    pass


class Made(metaclass=Meta):
    pass


class Bag(set):
    pass


# What looks like objects: lists whose arrays have a type in the second word, behind an address that is as low as a number of references if
# the interpreter is not position-independent, and arrays of numbers.
decoys = [[number, complex, Slot, int] for number in range(300)]
decoys += [[None, complex, None, None] for _ in range(3000)]
decoys += [[Slot] * 6 for _ in range(3000)]
decoys += [array.array("q", [number + 1, 8 * number + 8]) for number in range(3000)]
bags = [Bag(range(2000)) for _ in range(10)]
sessions, slots, others, stopped = [], [], [], threading.Event()


def add(count):
    start = len(sessions)
    sessions.extend(Session(number) for number in range(start, start + count))
    slots.extend(Slot(number) for number in range(count))
    others.extend(Outer.Inner(a=number) for number in range(count // 10))
    others.extend(Made() for _ in range(count // 100))


def churn():
    while not stopped.is_set():
        [Slot(number) for number in range(2000)]
        {number: str(number) for number in range(500)}


def count():
    counts = {}
    for thing in gc.get_objects():
        kind = type(thing)
        if kind in (Session, Slot, Outer.Inner, Made):
            counts[kind.__qualname__] = counts.get(kind.__qualname__, 0) + 1
    # Without references to other objects, they are not tracked.
    counts["Slot"] = len(slots)
    for name in sorted(counts):
        print(name, counts[name])


def stats():
    """Prints the bytes of blocks that the allocator itself counts."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        sys._debugmallocstats()
        os.dup2(kept, 2)
        os.close(kept)
        file.seek(0)
        for line in file.read().decode().splitlines():
            if line.startswith("# bytes in allocated blocks"):
                print(line.split()[-1].replace(",", ""))


def main():
    print("ready", flush=True)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "add":
            add(int(words[1]))
        elif words[0] == "drop":
            del sessions[-int(words[1]) :]
        elif words[0] == "count":
            count()
        elif words[0] == "stats":
            stats()
        elif words[0] == "fork":
            child = os.fork()
            if not child:
                # PR_SET_PDEATHSIG: it ends with its parent.
                ctypes.CDLL(None).prctl(1, signal.SIGKILL)
                signal.pause()
            print(child)
        elif words[0] == "churn":
            for _ in range(3):
                threading.Thread(target=churn, daemon=True).start()
        elif words[0] == "exit":
            os._exit(int(words[1]))
        else:
            raise ValueError(line)
        print("done", flush=True)


main()
