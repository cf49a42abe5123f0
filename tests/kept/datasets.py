"""Small datasets with the same bytes on every machine; every sample holds its number ``n``.

Shards of Parquet and Arrow depend on the version of pyarrow: `write_tables` makes them once for each release.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from tests.formats import writers
from tests.samples import write_tar

COUNTS = (13, 1, 17, 9)
"""Samples of the shards of each dataset."""
CLASSES = 3
WRITTEN = 1_700_000_000
"""Modification time of all shards in seconds: an index holds these times as the versions of its shards."""
FORMATS = ("tar", "jsonl", "mds", "tfrecord", "parquet", "arrow")
TABLES = ("parquet", "arrow")


def sample(number: int) -> dict[str, int]:
    """The fields of one sample: its number, its class and its length."""
    return {"n": number, "class": number * 7 % CLASSES, "length": number * 5 % 11 + 1}


def write_datasets(directory: Path) -> None:
    """Write the datasets that need no other library to ``directory``, one folder for each format, and two more."""
    for name in ("tar", "jsonl", "mds", "tfrecord", "other", "grown"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    first = 0
    for shard, count in enumerate(COUNTS):
        rows = [sample(number) for number in range(first, first + count)]
        write_tar(directory / "tar" / f"s-{shard}.tar", [_tar_sample(row) for row in rows])
        for name, start in (("jsonl", 0), ("grown", 0), ("other", 1000)):
            lines = "".join(json.dumps(row | {"n": row["n"] + start, "pad": "x" * 90}) + "\n" for row in rows)
            (directory / name / f"s-{shard}.jsonl").write_text(lines, encoding="utf-8", newline="\n")
        values = [[np.int64(value).tobytes() for value in row.values()] for row in rows]
        (directory / "mds" / f"s-{shard}.mds").write_bytes(writers.mds_of(dict.fromkeys(rows[0], ("int64", 8)), values))
        records = [writers.example({name: np.array([value]) for name, value in row.items()}) for row in rows]
        (directory / "tfrecord" / f"s-{shard}.tfrecord").write_bytes(b"".join(map(writers.framed, records)))
        first += count
    set_times(directory)


def write_tables(directory: Path) -> None:
    """Write the datasets of pyarrow."""
    import pyarrow as pa
    import pyarrow.feather
    import pyarrow.parquet

    first = 0
    for name in TABLES:
        (directory / name).mkdir(parents=True, exist_ok=True)
    for shard, count in enumerate(COUNTS):
        table = pa.Table.from_pylist([sample(number) for number in range(first, first + count)])
        pyarrow.parquet.write_table(table, directory / "parquet" / f"s-{shard}.parquet", row_group_size=5)
        pyarrow.feather.write_feather(table, str(directory / "arrow" / f"s-{shard}.arrow"), chunksize=5)
        first += count
    set_times(directory)


def write_inputs(directory: Path) -> Path:
    """Write the files that are packed, one folder for each class."""
    for number in range(sum(COUNTS)):
        path = directory / f"class-{number % CLASSES}" / f"{number:03d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"{number} ".encode() * 40)
    set_times(directory)
    return directory


def set_times(directory: Path) -> None:
    """Set the modification time of all files."""
    for path in directory.rglob("*"):
        if path.is_file():
            os.utime(path, (WRITTEN, WRITTEN))


def digests_of(directory: Path) -> dict[str, str]:
    """Digests of all files, by relative path."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {
        path.relative_to(directory).as_posix(): hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
        for path in paths
    }


def _tar_sample(row: dict[str, int]) -> dict[str, Any]:
    key = f"{row['n']:05d}".encode()
    return {"__key__": key, "json": json.dumps(row).encode(), "cls": str(row["class"]).encode()}
