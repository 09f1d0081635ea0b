"""A round of work by Python for `cargo xtask faults --engine inline`: the protocol is that of attacked.h."""

import hashlib
import json
import select
import sys


def do_round():
    digest = hashlib.sha256()
    table = {str(i): [j * i for j in range(i % 50)] for i in range(400)}
    text = json.dumps(table)
    digest.update(text.encode())
    assert json.loads(text) == table
    try:
        raise ValueError(text[:40])
    except ValueError as error:
        digest.update(str(error).encode())
    digest.update(bytes(bytearray(200_000)))
    return digest.hexdigest()[:16]


def main():
    result, wrong, rounds = do_round(), 0, 1
    print("ready", flush=True)
    waits = False
    while True:
        while waits or select.select([0], [], [], 0)[0]:
            line = sys.stdin.buffer.raw.readline().decode().strip() or "stop"
            if line == "stop":
                print(f"result {result} wrong {wrong} rounds {rounds}", flush=True)
                return
            waits = line == "idle"
            if waits:
                print("idle", flush=True)
        wrong += do_round() != result
        rounds += 1


main()
