"""Functions that numba compiles, which allocate and call Python."""

import ctypes

import numba

import work
from stacks import FREE, MALLOC, described

# numba calls functions of ctypes itself, without Python.
malloc, free = MALLOC, FREE


@numba.njit
def kernel(size):
    block = malloc(size)
    free(block)
    return size


@numba.njit
def recursive(depth, size):
    if depth == 0:
        return kernel(size)
    return recursive(depth - 1, size) + 1


@numba.njit
def calls_back(number):
    with numba.objmode(result="int64"):
        result = work.handle(number)
    return result


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(work.handle)


@numba.njit
def through_pointer(number):
    return CALLBACK(number)


def handle(number):
    kernel(described())
    recursive(number % 5, described())
    return calls_back(number) + through_pointer(number + 1) + sum(map(kernel, [described()]))


handle(0), handle(1), handle(2), handle(3)
