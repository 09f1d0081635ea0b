"""Keeps a list of 250,000 integers that have an object each (`keep`), or blocks of a MiB that it asks CPython for as an
extension module does (`large`), and frees (`free`); `drop` drops the list. Speaks as all targets do."""

import ctypes
import sys

allocate = ctypes.pythonapi.PyObject_Malloc
free = ctypes.pythonapi.PyObject_Free
free.restype, free.argtypes = None, [ctypes.c_void_p]
allocate.restype, allocate.argtypes = ctypes.c_void_p, [ctypes.c_size_t]

print("ready", flush=True)
kept = []
for line in sys.stdin:
    if line.startswith("exit"):
        sys.exit(int(line[4:]))
    if line == "keep\n":
        kept = [1_000_000_000 + i for i in range(250_000)]
    elif line == "drop\n":
        kept = []
    elif line == "large\n":
        kept = [allocate(1 << 20) for _ in range(50)]
    elif line == "free\n":
        while kept:
            free(kept.pop())
    print('{"peak_bytes":0,"sites":[]}', flush=True)
