"""Allocates blocks in many kinds of Python frames. The size of each is its own, and its stack is known: the interpreter's own
description (`sys._getframe`) is written before the block is allocated, as a line of JSON with the size and the functions,
files and lines, the innermost first.

Usage: frames.py OUTPUT [PIPE]. Prints `ready`, answers each line of its input with `done`, and keeps its blocks; with a named pipe,
it waits for a line from there, allocates once and exits. Runs on CPython 3.8 and later."""

import asyncio
import ctypes
import functools
import importlib
import json
import os
import sys
import tempfile
import threading

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


def nested(depth):
    return block() if depth == 0 else nested(depth - 1)


def generator(count):
    for _ in range(count):
        block()
        yield
        KEPT.append(bytearray(described()))


def delegating():
    yield from generator(2)


async def inner():
    block()
    await asyncio.sleep(0)
    block()


async def outer():
    await inner()
    await asyncio.gather(inner(), inner())
    async for _ in asynchronous():
        block()


async def asynchronous():
    block()
    yield


def decorated(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(*arguments)

    return wrapper


class Base:
    def __init__(self):
        block()


class Derived(Base):
    def __init__(self):
        super().__init__()
        self.items = [block() for _ in range(2)]

    def __del__(self):
        block()

    @property
    def value(self):
        return block()

    @staticmethod
    @decorated
    def fixed():
        block()

    def __getitem__(self, index):
        block()
        if index > 1:
            raise IndexError
        return index

    def __lt__(self, other):
        block()
        return True

    def __enter__(self):
        block()

    def __exit__(self, *exception):
        block()

    class Nested:
        def größe(self):
            block()

        def 数(self):
            block()

        def 𐌀(self):
            block()


def callback():
    """Through C, which calls back."""
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

    def compare(_one, _other):
        block()
        return 0

    numbers = (ctypes.c_int * 2)(2, 1)
    ctypes.CDLL(None).qsort(numbers, 2, 4, function(compare))


def imported():
    """Of a module whose code is freed when it has been imported."""
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        for number in range(3):
            name = f"imported_{number}"
            with open(os.path.join(folder, f"{name}.py"), "w", encoding="utf-8") as file:
                file.write("import __main__\n" * number + "import __main__\n__main__.block()\n\nclass Inside:\n    __main__.block()\n")
            # Its folder may have the same time of modification as before, by which the importer recognises new files.
            importlib.invalidate_caches()
            importlib.import_module(name)
            del sys.modules[name]
        sys.path.remove(folder)


def long(lines):
    """A function with a long line table."""
    source = "def long_function(value):\n" + "".join(f"    value += {i}; value -= {i}\n" for i in range(lines)) + "    block()\n"
    names = {"block": block}
    exec(compile(source, f"<{lines} lines>", "exec"), names)
    names["long_function"](1)


def defining():
    class Local:
        KEPT.append(bytearray(described()))

    return Local


def failing():
    try:
        raise ValueError
    except ValueError:
        block()
    finally:
        block()


def all_kinds():
    block()
    nested(150)
    sorted([1, 2], key=lambda number: block() or number)
    list(map(lambda _: block(), [1]))
    functools.reduce(lambda one, other: block(), [1, 2])
    list(generator(2))
    list(delegating())
    asyncio.run(outer())
    derived = Derived()
    derived.value, derived.fixed(), list(derived), sorted([derived, derived])
    with derived:
        block()
    del derived
    for name in ("größe", "数", "𐌀"):
        getattr(Derived.Nested(), name)()
    callback()
    imported()
    exec("block(); (lambda: block())()", {"block": block})
    eval("[block() for _ in '12']", {"block": block})
    long(100)
    long(1500 if len(sys.argv) == 2 else 300)
    failing()
    defining()
    KEPT.append({"key": block(), **{str(number): block() for number in range(2)}})


if len(sys.argv) > 2:
    with open(sys.argv[2], encoding="utf-8") as pipe:
        pipe.readline()
    all_kinds()
    sys.exit()
print("ready", flush=True)
for line in sys.stdin:
    all_kinds()
    threads = [threading.Thread(target=all_kinds) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    print("done", flush=True)
