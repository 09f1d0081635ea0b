"""Work of many kinds for an interpreter: parsers in C, recursion through C, two threads. Says `ready`, then goes on until
it is killed."""

import ast
import copy
import decimal
import io
import json
import pickle
import random
import re
import threading
import xml.etree.ElementTree as xml

FUNCTIONS = re.findall(r"^def .*\n(?:(?: .*)?\n)+", open(ast.__file__, encoding="utf-8").read(), re.MULTILINE)


def tree(depth):
    return {"name": "x" * depth, "children": [tree(depth - 1) for _ in range(3)] if depth else []}


def sorted_deeply(depth):
    """Each level is half a dozen frames of the interpreter: `sorted` calls a key function, which sorts."""
    return sorted([depth], key=lambda item: [sorted_deeply(depth - 1)] if depth else [item])


def documents(depth):
    value = tree(depth)
    text = json.dumps(value, indent=1)
    assert json.loads(text) == value
    assert pickle.loads(pickle.dumps(value)) == value
    copy.deepcopy(value)


def markup(count):
    root = xml.Element("root")
    for i in range(count):
        xml.SubElement(root, "item", number=str(i)).text = "text & more" * (i % 7)
    xml.fromstring(xml.tostring(root))


def source(count):
    functions = FUNCTIONS[count::17]
    re.findall(r"(?:def|class)\s+(\w+)\s*\(([^()]*)\)", "".join(functions))
    for function in functions:
        ast.unparse(ast.parse(function))
        compile(function, "part", "exec")


def text(count):
    stream = io.StringIO()
    for i in range(count):
        marked = re.sub(r"(.)", lambda found: f"<{found[1]}>", str(i))
        stream.write(f"{decimal.Decimal(i) / 7:.20} {i:x} {marked}\n")
    " ".join(sorted(stream.getvalue().split(), key=str.lower))


def work(rounds, seed):
    draw = random.Random(seed)
    for _ in rounds:
        documents(draw.randrange(1, 4))
        sorted_deeply(draw.randrange(1, 20))
        markup(draw.randrange(1, 50))
        source(draw.randrange(0, 17))
        text(draw.randrange(1, 50))


def forever():
    while True:
        yield


# Whatever is loaded late is loaded now.
work(range(20), 0)
print("ready", flush=True)
for seed in (1, 2):
    threading.Thread(target=work, args=(forever(), seed)).start()
