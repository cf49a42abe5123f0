"""Rows a second at which `shoal index --columns` reads columns from shards of a million samples, by format.

    python bench/index_columns.py DIRECTORY [--rows 1000000] [--repeats 3]

Each sample has a label, a language inside an object, a list of 0 to 63 tokens and a text of about 200 bytes; the
columns are ``label``, ``lang=meta.lang`` and ``tokens:len``. Printed are rows a second, by the clock and by the
processor time of the process; runs of the formats take turns. Shards are made once, and kept.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

from shoal.formats.column_paths import as_columns
from shoal.indexing.open_source import open_source
from shoal.pack import Writer
from shoal.pipeline.sample_columns.added_columns import add_columns

COLUMNS = "label", "lang=meta.lang", "tokens:len"


def row(number: int) -> dict[str, Any]:
    """One sample, the same every time."""
    return {
        "label": number % 1000,
        "meta": {"lang": ("de", "en", "fr", "it")[number % 4], "source": f"page {number % 97}"},
        "tokens": list(range(number % 64)),
        "text": f"row {number} " + "some words of a text " * (5 + number % 9),
    }


def shards(directory: Path, name: str, num_rows: int) -> Path:
    """Shards of a format, made if they are not there."""
    path = directory / f"{name}-{num_rows}"
    if not path.exists():
        with Writer(path, format=name, shard_bytes=64 << 20) as writer:
            for number in range(num_rows):
                sample = row(number)
                if name == "tar":
                    sample = {"__key__": f"{number:09d}", "json": json.dumps(sample).encode()}
                writer.write(sample)
    return path


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rows", type=int, default=10**6)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    paths = {name: shards(arguments.directory, name, arguments.rows) for name in ("jsonl", "tar", "parquet", "arrow")}
    for repeat in range(arguments.repeats):
        for name, path in paths.items():
            opened = open_source(path)
            began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
            index = add_columns(opened, as_columns(list(COLUMNS)))
            seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            rates = f"{arguments.rows / seconds:10,.0f} rows/s {arguments.rows / cpu:10,.0f} rows/CPU s"
            size = opened.index.num_bytes / 2**20
            print(f"{repeat} {name:8} {rates}  {size:6,.0f} MiB, peak {after.ru_maxrss / 1024:,.0f} MiB", flush=True)
            assert int(index.columns["tokens:len"].sum()) == sum(number % 64 for number in range(arguments.rows))


if __name__ == "__main__":
    main()
