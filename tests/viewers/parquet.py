"""Parquet files in DuckDB.

    parquet.py sums FILE              amounts by process and window, the largest callsite, and the schema's types
    parquet.py queries PAGE FOLDER    runs each query of docs/parquet.md on the files of a folder
    parquet.py fleet PAGE FILE FOLDER the same, on three simulated hosts, whose files have the columns of a real one
"""

import json
import re
import sys
import time

# The standard library's `html`, which DuckDB needs, comes before `html.py`.
sys.path.append(sys.path.pop(0))

import duckdb

AMOUNTS = ["live_bytes", "live_blocks", "alloc_bytes", "alloc_blocks", "free_bytes", "free_blocks", "opening_bytes"]
QUERY = re.compile(r"<!-- query: (\w+) -->\n```sql\n(.*?)```", re.DOTALL)


def dictionaries(query):
    relation = duckdb.sql(query)
    return [dict(zip(relation.columns, row)) for row in relation.fetchall()]


def sums(path):
    table = f"'{path}'"
    columns = ", ".join(f"sum({name})::bigint AS {name}" for name in AMOUNTS)
    window = "epoch_us(window_start) AS window_start, epoch_us(window_end) AS window_end"
    largest = "function, file, line, module, build_id, stack, positions, build_ids"
    return {
        "types": dict(zip(duckdb.sql(f"FROM {table}").columns, map(str, duckdb.sql(f"FROM {table}").types))),
        "windows": dictionaries(f"SELECT pid, host, {window}, {columns}, count(*) AS rows, bool_or(ended) AS ended, sum(live_bytes_variance) AS variance FROM {table} GROUP BY ALL ORDER BY pid, window_start"),
        "largest": dictionaries(f"SELECT {largest} FROM {table} ORDER BY live_bytes DESC, stack_id LIMIT 1")[0],
        "lengths": dictionaries(f"SELECT bool_and(len(stack) = len(positions) AND len(stack) = len(build_ids)) AS equal FROM {table}")[0]["equal"],
    }


def queries(page, folder):
    with open(page, encoding="utf-8") as file:
        text = file.read()
    found = dict(QUERY.findall(text))
    # Two builds with the same stacks; the same one twice if there is only one.
    pairs = f"SELECT min(build_id) AS old, max(build_id) AS new FROM '{folder}/*.parquet' WHERE build_id IS NOT NULL GROUP BY stack_id"
    builds = dictionaries(f"{pairs} ORDER BY count(DISTINCT build_id) DESC, stack_id LIMIT 1")[0]
    old, new = builds["old"], builds["new"]
    answer = {"rows": dictionaries(f"SELECT count(*) AS rows FROM '{folder}/*.parquet'")[0]["rows"], "queries": {}}
    for name, query in found.items():
        query = query.strip().rstrip(";").replace("fleet/*.parquet", f"{folder}/*.parquet").replace("'OLD'", f"'{old}'").replace("'NEW'", f"'{new}'")
        began = time.monotonic()
        rows = dictionaries(query)
        answer["queries"][name] = {"seconds": time.monotonic() - began, "rows": rows}
    return answer


HOUR_US, HOURS, LEAKED, STEADY, VARIANCE = 3_600_000_000, 48, 1_000_000, 5_000_000, 1e10
# Host, build, and hours after which its process ends and another one starts.
HOSTS = [("a", "aa", 7), ("b", "bb", 7), ("c", "bb", 1000)]


def simulated():
    """Rows of two days in windows of an hour: a callsite that leaks, and one that keeps what it has."""
    for host, build, life in HOSTS:
        for hour in range(HOURS):
            run, age = divmod(hour, life)
            ended = age == life - 1
            for stack, opening, live in [
                (1, age * LEAKED, (age + 1) * LEAKED),
                (2, STEADY if age else 0, STEADY),
            ]:
                yield {
                    "host": host, "comm": "app", "unit": "app", "pod_uid": f"{host}{run}", "pid": 100 + run, "stack_id": stack,
                    "function": f"f{stack}", "build_id": build, "opening_bytes": opening, "live_bytes": live, "ended": ended,
                    "alloc_bytes": 2 * LEAKED if stack == 1 else 0, "live_bytes_variance": VARIANCE if stack == 1 else 0.0,
                    "recording_start": 0, "window_start": hour * HOUR_US, "window_end": (hour + 1) * HOUR_US,
                }


def fleet(page, real, folder):
    duckdb.sql(f"CREATE TABLE rows AS FROM '{real}' LIMIT 0")
    for row in simulated():
        values = [f"make_timestamptz({value})" if name in ("recording_start", "window_start", "window_end") else repr(value) for name, value in row.items()]
        duckdb.sql(f"INSERT INTO rows ({', '.join(row)}) VALUES ({', '.join(values)})")
    for host, _, _ in HOSTS:
        duckdb.sql(f"COPY (FROM rows WHERE host = '{host}') TO '{folder}/{host}.parquet' (FORMAT parquet)")
    return queries(page, folder)


def main(what, *arguments):
    json.dump({"sums": sums, "queries": queries, "fleet": fleet}[what](*arguments), sys.stdout, default=str)


main(*sys.argv[1:])
