"""Checks JSON files against a JSON Schema, and prints what is wrong with them.

    schema.py SCHEMA FILE…
"""

import json
import sys

import jsonschema_rs


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def main(schema, *paths):
    schema = load(schema)
    jsonschema_rs.meta.validate(schema)
    validator = jsonschema_rs.validator_for(schema)
    wrong = [
        f"{path}: {error.instance_path}: {error.message[:200]}"
        for path in paths
        for error in validator.iter_errors(load(path))
    ]
    json.dump({"draft": schema["$schema"], "validator": type(validator).__name__, "wrong": wrong}, sys.stdout)


main(*sys.argv[1:])
