"""What it costs to look at all samples before a table of them is written, beside a schema that was given.

python bench/schemas.py [SAMPLES] [FOLDER]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import shoal
from shoal.pack import repack

ROUNDS = 3


def sample(number: int) -> dict[str, Any]:
    """A line of 20 to 320 bytes."""
    meta = {"lang": "en", "score": number / 7}
    return {"id": number, "text": "word " * (number % 60), "meta": meta, "tags": ["a", "b"]}


SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("meta", pa.struct([("lang", pa.string()), ("score", pa.float64())])),
        ("tags", pa.list_(pa.string())),
    ]
)


def main() -> None:
    """JSON Lines to Parquet, both ways in turn."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as folder:
        source = Path(folder, "source")
        shoal.pack.pack(map(sample, range(count)), source, format="jsonl", shard_bytes="64MiB")
        print(f"{count} samples, {sum(path.stat().st_size for path in source.glob('*.jsonl')) / 1e6:.0f} MB")
        for _ in range(ROUNDS):
            for name, options in {"looked at": {}, "schema given": {"schema": SCHEMA}}.items():
                began = time.process_time()
                made = repack(source, f"{folder}/out", format="parquet", num_workers=1, options=options)
                seconds = time.process_time() - began
                print(f"{name:14s} {seconds:6.2f} CPU s, {made.num_looked_at} looked at, {made.peak_bytes >> 20} MiB")
                shutil.rmtree(f"{folder}/out")


if __name__ == "__main__":
    main()
