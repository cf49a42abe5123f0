"""What a sample costs in CPU seconds: small ones of tar and MDS, large ones of Parquet, documents with metadata.

``python bench/samples.py`` writes datasets to a temporary directory: tokens of 4 KiB in tar with the headers that
WebDataset writes, in MDS and as tf.train.Example in TFRecord, bytes of 100 KB in Parquet, and documents of 2 KB with
JSON or columns of metadata in MDS, JSONL and Parquet. Each is streamed one by one and in batches of 64, with a window
of 16 MiB; for Parquet, pyarrow's own reading of all row groups is measured beside it. Printed are the median and the
least CPU microseconds a sample of the rounds. To compare two versions, run it in turn with one and the other in
PYTHONPATH, on one ``--data`` directory.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tarfile
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import shoal
import shoal.pack
from shoal.errors import ShuffleWarning

WINDOW = "16MiB"
GROUP_BYTES = 4 << 20


def write_tar(directory: Path, num_samples: int) -> None:
    draw = np.random.default_rng(0)
    for shard, numbers in enumerate(np.array_split(np.arange(num_samples), 16)):
        with tarfile.open(directory / f"{shard:05d}.tar", "w") as tar:
            for number in numbers:
                for name, data in (("bin", draw.bytes(4096)), ("cls", b"%d" % (number % 100))):
                    info = tarfile.TarInfo(f"{number:09d}.{name}")
                    info.size, info.mtime, info.uname = len(data), 1.7e9 + number / 7, "bigdata"
                    tar.addfile(info, io.BytesIO(data))


def write_mds(directory: Path, num_samples: int, *, documents: bool) -> None:
    draw = np.random.default_rng(0)
    of_each = {"text": "str", "meta": "json"} if documents else {"x": "ndarray:uint16:2048"}
    options = {"columns": {"idx": "int", "class": "int", **of_each}}
    with shoal.pack.Writer(directory, format="mds", shard_bytes="16MiB", options=options) as writer:
        for number in range(num_samples):
            sample: dict[str, Any] = {"idx": number, "class": number % 100}
            if documents:
                sample |= {"text": document(number), "meta": metadata(number)}
            else:
                sample["x"] = draw.integers(0, 50_000, 2048, dtype=np.uint16)
            writer.write(sample)


def write_parquet(directory: Path, num_samples: int, *, documents: bool) -> None:
    draw = np.random.default_rng(0)
    for shard, numbers in enumerate(np.array_split(np.arange(num_samples), 16)):
        columns: dict[str, Any] = {"idx": pa.array(numbers, pa.int64()), "class": pa.array(numbers % 100, pa.int32())}
        if documents:
            columns["text"] = pa.array([document(int(number)) for number in numbers])
            rows = [metadata(int(number)) for number in numbers]
            columns |= {name: pa.array([row[name] for row in rows]) for name in rows[0]}
        else:
            columns["x"] = pa.array([draw.bytes(100_000) for _ in numbers], pa.binary())
        how = "snappy" if documents else "none"
        num_rows = GROUP_BYTES // (2000 if documents else 100_000)
        path = directory / f"{shard:05d}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=num_rows, compression=how, use_dictionary=False)


def write_lines(directory: Path, num_samples: int) -> None:
    with shoal.pack.Writer(directory, format="jsonl", shard_bytes="16MiB") as writer:
        for number in range(num_samples):
            writer.write({"idx": number, "class": number % 100, "text": document(number), "meta": metadata(number)})


def write_records(directory: Path, num_samples: int) -> None:
    draw = np.random.default_rng(0)
    with shoal.pack.Writer(directory, format="tfrecord", shard_bytes="16MiB") as writer:
        for number in range(num_samples):
            writer.write({"x": draw.bytes(4096), "class": np.array([number % 100])})


def document(number: int) -> str:
    return f"{number} the quick brown fox {number % 977} " * (30 + number % 70)


def metadata(number: int) -> dict[str, Any]:
    url = f"https://example.org/{number % 977}/{number}.html"
    return {"url": url, "lang": ("en", "de", "fr")[number % 3], "score": number % 1000 / 1000}


WRITERS: dict[str, tuple[int, Callable[[Path, int], None]]] = {
    "tokens, tar": (32_768, write_tar),
    "tokens, mds": (32_768, lambda directory, n: write_mds(directory, n, documents=False)),
    "tokens, tfrecord": (32_768, write_records),
    "blobs, parquet": (2560, lambda directory, n: write_parquet(directory, n, documents=False)),
    "documents, mds": (32_768, lambda directory, n: write_mds(directory, n, documents=True)),
    "documents, jsonl": (32_768, write_lines),
    "documents, parquet": (32_768, lambda directory, n: write_parquet(directory, n, documents=True)),
}


def exhaust(stream: Any) -> None:
    for _ in stream:
        pass


def read_tables(directory: Path) -> None:
    for path in sorted(directory.glob("*.parquet")):
        with path.open("rb") as file:
            opened = pq.ParquetFile(file, pre_buffer=False)
            for group in range(opened.num_row_groups):
                opened.read_row_group(group, use_threads=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, help="a directory for the datasets, which are kept there")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ShuffleWarning)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["SHOAL_CACHE_DIR"] = f"{scratch}/cache"
        for name, (num_samples, write) in WRITERS.items():
            directory = (arguments.data or Path(scratch)) / name.replace(", ", "-")
            if not directory.exists():
                directory.mkdir(parents=True)
                write(directory, num_samples)
            ds = shoal.open(directory).shuffle(seed=0, window=WINDOW)
            if "tar" in name:
                ds = ds.decode()
            ways: dict[str, Callable[[], None]] = {
                "one by one": partial(exhaust, ds),
                "batches of 64": partial(exhaust, ds.batch(64)),
            }
            if "parquet" in name:
                ways["pyarrow alone"] = partial(read_tables, directory)
            for way, seconds in timed(ways, arguments.rounds).items():
                each = [1e6 * second / num_samples for second in seconds]
                print(f"{name:20} {way:14} {statistics.median(each):7.2f} us of CPU ({min(each):.2f} at least)")


def timed(ways: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """The CPU seconds of each way in each round, interleaved, after one round that warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            began = time.process_time()
            way()
            if number:
                seconds[name].append(time.process_time() - began)
    return seconds


if __name__ == "__main__":
    main()
