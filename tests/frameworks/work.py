"""What handlers of all Python services do: blocks below functions that are called in many ways."""

import functools
import json
from concurrent.futures import ThreadPoolExecutor

from stacks import FREE, MALLOC, SIZE, described

POOL = ThreadPoolExecutor(2)


def native():
    FREE(MALLOC(described()))


def array():
    # Ends with a null byte.
    return bytearray(described(SIZE - 1))


def recursion(depth):
    return recursion(depth - 1) if depth else array()


def generated(times):
    for _ in range(times):
        yield array()


def decorated(function):
    @functools.wraps(function)
    def wrapper(*arguments, **keywords):
        return function(*arguments, **keywords)

    return wrapper


class Model:
    def __init__(self, number):
        self.number = number
        native()

    def __lt__(self, other):
        native()
        return self.number < other.number

    @property
    def content(self):
        return [array() for _ in range(1)]

    @classmethod
    @decorated
    def load(cls, text):
        return json.loads(text, object_hook=lambda found: cls(found["number"]))

    def __enter__(self):
        native()
        return self

    def __exit__(self, *error):
        native()


def handle(number):
    """Does a request's work; the number decides which."""
    if number % 4 == 0:
        with Model.load('{"number": 1}') as model:
            return len(model.content)
    if number % 4 == 1:
        return len(sorted([Model(2), Model(1)]))
    if number % 4 == 2:
        recursion(number % 23)
        return sum(map(len, generated(2)))
    POOL.submit(recursion, number % 5).result()
    try:
        raise ValueError(number)
    except ValueError:
        native()
    return 1
