"""Allocates blocks where native frames cannot be unwound: below generated code that has neither unwind tables nor frame pointers, and
below more native frames than a stack has. The stack of each is written before it is allocated, as by frames.py.

Usage: beyond.py OUTPUT. Prints `ready`, answers each line of its input with `done`, and keeps its blocks. Needs x86-64."""

import ctypes
import json
import mmap
import sys
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
    print(json.dumps({"bytes": SIZE[0], "stack": stack}), file=OUTPUT, flush=True)
    return SIZE[0]


def address(function):
    return ctypes.cast(function, ctypes.c_void_p).value.to_bytes(8, "little")


MALLOC = ctypes.CDLL(None).malloc
CODE = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
START = ctypes.addressof(ctypes.c_char.from_buffer(CODE))


def generate(code):
    """A function that passes its argument to malloc, and returns the result."""
    at = CODE.tell()
    CODE.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(START + at)


# push %rbp; mov $object, %rbp; mov $malloc, %rax; call *%rax; pop %rbp; ret
WITH_OBJECT = generate(
    b"\x55\x48\xbd" + id(KEPT).to_bytes(8, "little") + b"\x48\xb8" + address(MALLOC) + b"\xff\xd0\x5d\xc3"
)
# The register refers to two words on the stack, which are an object: push %rbp; sub $32, %rsp; mov $object, %rax; mov %rax, 16(%rsp);
# mov %rax, 24(%rsp); lea 16(%rsp), %rbp; mov $malloc, %rax; call *%rax; add $32, %rsp; pop %rbp; ret
WITH_WORDS = generate(
    b"\x55\x48\x83\xec\x20\x48\xb8" + id(KEPT).to_bytes(8, "little") + b"\x48\x89\x44\x24\x10\x48\x89\x44\x24\x18"
    b"\x48\x8d\x6c\x24\x10\x48\xb8" + address(MALLOC) + b"\xff\xd0\x48\x83\xc4\x20\x5d\xc3"
)


def kernel(function):
    KEPT.append(function(described()))


def called_by_c(function):
    list(map(kernel, [function, function]))


class Caller:
    def run(self, function):
        kernel(function)
        called_by_c(function)
        sorted([2, 1], key=lambda _: kernel(function) or 0)


def deep(depth):
    if depth > 0:
        return deep(depth - 1)
    # One malloc: bytearrays end with a null byte.
    KEPT.append(bytearray(described() - 1))


def work():
    for function in WITH_OBJECT, WITH_WORDS:
        Caller().run(function)
        thread = threading.Thread(target=called_by_c, args=(function,))
        thread.start()
        thread.join()
    sys.setrecursionlimit(2000)
    deep(700)


WITH_OBJECT(1)
print("ready", flush=True)
for line in sys.stdin:
    work()
    print("done", flush=True)
