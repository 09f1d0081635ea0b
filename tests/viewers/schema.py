"""Checks JSON files against a JSON Schema, and prints what is wrong with them.

    schema.py SCHEMA FILE…
"""

import json
import sys

import jsonschema


def load(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def main(schema, *paths):
    schema = load(schema)
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    wrong = [
        f"{path}: {error.json_path}: {error.message[:200]}"
        for path in paths
        for error in validator(schema).iter_errors(load(path))
    ]
    json.dump({"draft": validator.META_SCHEMA["$id"], "wrong": wrong}, sys.stdout)


main(*sys.argv[1:])
