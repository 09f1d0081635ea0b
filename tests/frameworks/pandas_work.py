"""Functions that pandas and numpy call."""

import numpy
import pandas

import work
from stacks import SIZE, described

TABLE = pandas.DataFrame({"key": [1, 1, 2], "value": [1, 2, 3]})


def reduced(group):
    numpy.empty(described(), dtype=numpy.uint8)
    return group["value"].sum()


def handle(number):
    numpy.zeros(described(), dtype=numpy.uint8).sum()
    results = TABLE.groupby("key")[["value"]].apply(reduced)
    results = results.apply(lambda _: work.handle(number))
    numpy.vectorize(lambda value: work.handle(number + value))([1])
    numpy.frompyfunc(work.handle, 1, 1)(numpy.array([number + 1], dtype=object))
    return results.agg("sum") + TABLE["value"].rolling(2).apply(lambda _: work.handle(number), raw=True).sum()


assert SIZE % 8 == 1
handle(0), handle(1), handle(2), handle(3)
