"""What it costs to split a dataset by the hash of a group: time for each sample and memory, for 10^8 samples.

``python bench/splits.py`` takes some minutes. Times are CPU seconds, the best of several calls.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

from shoal.formats.rows.tar.reader import Tar
from shoal.index.table import Index
from shoal.indexing.opened_dataset import Opened
from shoal.order.seeds import key, text_keys
from shoal.stream.dataset import Dataset
from shoal.stream.dataset_spec import DatasetSpec

WAYS = ("each sample", "shard", "text of 10^6", "number", "number, 1000 excluded", "real")
FRACTIONS = ({"train": 0.98, "val": 0.02}, {"a": 0.5, "b": 0.5})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10**8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--way", help="internal: measure one way in a process of its own", default=None)
    asked = parser.parse_args()
    if asked.way:
        print(json.dumps(costs(asked.way, asked.samples, asked.repeats)))
        return
    print(
        f"{asked.samples:,} samples in 10,000 shards; CPU seconds, ns for each sample, MiB above the index at the peak"
    )
    for way in WAYS:
        command = [sys.executable, __file__, "--way", way, "--samples", str(asked.samples)]
        command += ["--repeats", str(asked.repeats)]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"by {way:22}",
            *(f"{seconds:6.2f} s {seconds / asked.samples * 1e9:5.1f} ns  " for seconds in found["seconds"]),
            f"{found['peak']:6.0f} MiB",
        )
    texts = [f"speaker-{number:09}" for number in range(10**6)]
    begin = time.process_time()
    text_keys(key(0, 0, "x"), texts)
    print(f"a text of 17 letters: {time.process_time() - begin:.2f} us")


def costs(way: str, num_samples: int, repeats: int) -> dict[str, Any]:
    """CPU seconds for each pair of fractions, and MiB of the peak above what was there before."""
    ds, options = made(way, num_samples)
    made_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    best = []
    for fractions in FRACTIONS:
        times = []
        for _ in range(repeats):
            begin = time.process_time()
            parts = ds.split(fractions, **options)
            times.append(time.process_time() - begin)
            assert sum(part.num_samples for part in parts.values()) >= num_samples * 0.98
        best.append(min(times))
    return {"seconds": best, "peak": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - made_before) / 1024}


def made(way: str, num_samples: int) -> tuple[Dataset, dict[str, Any]]:
    """A dataset without bytes, of one extent a shard, and the arguments of `split`."""
    shards = 10_000
    each = num_samples // shards
    words = [f"speaker-{number}" for number in range(10**6)] if way.startswith("text") else []
    column: Any = np.arange(num_samples, dtype=np.int32)
    column = column % 10**6 if words else (column / 3).astype(np.float32) if way == "real" else column
    ones = np.ones(shards, dtype=np.int64)
    index = Index(
        format="tar",
        shard_names=[f"train-{number:06}.tar" for number in range(shards)],
        shard_bytes=ones * each * 1024,
        shard_versions=[""] * shards,
        shard_heads={},
        extent_shard=np.arange(shards, dtype=np.int32),
        extent_first_byte=ones * 0,
        extent_end_byte=ones * each * 1024,
        extent_num_samples=ones * each,
        extent_decoded_bytes=ones * each * 1024,
        extent_layout_crc=np.zeros(shards, dtype=np.uint32),
        extent_checksum=None,
        sample_bytes=None,
        fingerprint="none",
        columns={"group": column},
        metadata={"texts": {"group": words}} if words else {},
    )
    nothing: Any = None
    options: dict[str, Any] = {} if way == "each sample" else {"by": "shard" if way == "shard" else "group"}
    if "excluded" in way:
        options["exclude"] = range(0, 1_000_000, 1000)
    return Dataset(DatasetSpec.of(Opened(nothing, index, tuple(index.shard_names), Tar(), None, nothing))), options


if __name__ == "__main__":
    main()
