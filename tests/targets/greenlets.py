"""Allocates blocks in greenlets, which have stacks of their own within that of the thread. The stack of each block is written before it
is allocated, as by frames.py: that of a greenlet ends at its first function.

Usage: greenlets.py OUTPUT. Prints `ready`, answers each line of its input with `done`, and keeps its blocks."""

import json
import sys
import threading

sys.path.insert(0, "/opt/greenlet")
from greenlet import getcurrent, greenlet

OUTPUT = open(sys.argv[1], "w", encoding="utf-8")
KEPT = []
SIZE = [100_000]


def described():
    """The size of the next block. Describes the caller's stack."""
    frame, stack = sys._getframe(1), []
    while frame:
        code = frame.f_code
        stack.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
        frame = frame.f_back
    SIZE[0] += 8
    print(json.dumps({"bytes": SIZE[0] + 1, "stack": stack}), file=OUTPUT, flush=True)
    return SIZE[0]


def block():
    # One malloc: bytearrays end with a null byte.
    KEPT.append(bytearray(described()))


def nested(depth, function, *arguments):
    return nested(depth - 1, function, *arguments) if depth else function(*arguments)


def waits(times):
    """Allocates each time that it is continued."""
    for _ in range(times):
        block()
        getcurrent().parent.switch()
    block()


def called_by_c(function, *arguments):
    list(map(lambda _: function(*arguments), [0]))


def starts_others():
    """A greenlet that is the parent of others."""
    inner = greenlet(nested)
    inner.switch(3, waits, 1)
    block()
    inner.switch()
    block()


def exchange():
    """Two greenlets continue each other, from other depths of the thread's stack."""

    def first():
        block()
        nested(2, others[1].switch)
        block()

    def second():
        nested(5, block)
        others[0].switch()
        block()

    others = [greenlet(first), greenlet(second)]
    nested(12, others[0].switch)
    nested(1, others[1].switch)


def work():
    waiting = [greenlet(called_by_c if number % 2 else nested) for number in range(6)]
    # Started deep within the stack, and continued where nothing of that is left.
    for number, task in enumerate(waiting):
        nested(20 - 3 * number, task.switch, *([waits, 2] if number % 2 else [number, waits, 2]))
    for depth in 0, 30:
        for task in waiting:
            nested(depth, called_by_c, task.switch)
    nested(4, starts_others)
    greenlet(starts_others).switch()
    exchange()
    block()


print("ready", flush=True)
for line in sys.stdin:
    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    print("done", flush=True)
