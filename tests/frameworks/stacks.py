"""Describes the stacks of blocks, as Python knows them. Appended to the file $STACKS: a line of JSON per block, with the functions, files
and lines of its stack, the innermost first."""

import ctypes
import json
import os
import sys

# Bytes of each block, which no other block has.
SIZE = 40_961
OUTPUT = os.open(os.environ["STACKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
LIBC = ctypes.CDLL(None)
MALLOC = LIBC.malloc
MALLOC.argtypes, MALLOC.restype = [ctypes.c_size_t], ctypes.c_void_p
FREE = LIBC.free
FREE.argtypes, FREE.restype = [ctypes.c_void_p], None


def described(size=SIZE):
    """Returns the size. Describes the caller, who allocates on the same line."""
    frame, stack = sys._getframe(1), []
    while frame:
        code = frame.f_code
        stack.append([code.co_qualname, code.co_filename, frame.f_lineno])
        frame = frame.f_back
    os.write(OUTPUT, (json.dumps(stack) + "\n").encode())
    return size
