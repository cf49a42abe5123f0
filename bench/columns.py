"""How fast columns of numbers stream in batches: tokens of 4 KiB, one process, a window of 16 MiB.

``python bench/columns.py`` writes MDS shards of one fixed column and Parquet shards of one column of fixed lists in a
temporary directory, reads them once, and then in turn: reads all bytes in order (`os.readv`), streams batches of 64,
and streams them with a stage that does nothing, which takes the way over samples. The best of the rounds is printed.

``--mixtures`` instead streams one dataset of 64 MDS shards in batches of 64, and mixtures of 1, 2, 8 and 64 sources
that share these shards out: CPU time, medians of the rounds, with the first batch and after it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import shoal

WINDOW, BATCH, TOKENS = "16MiB", 64, 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--samples", type=int, default=65_536)
    parser.add_argument("--mixtures", action="store_true")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens of a sample of a mixture, 2 bytes each")
    arguments = parser.parse_args()
    if arguments.mixtures:
        measure_mixtures(arguments.samples, arguments.tokens, arguments.rounds)
        return
    for name, write in (("mds", write_mds), ("parquet", write_parquet)):
        with tempfile.TemporaryDirectory() as directory:
            for shard, rows in enumerate(np.array_split(np.arange(arguments.samples), 16)):
                tokens = np.random.default_rng(shard).integers(0, 2**16, (len(rows), TOKENS)).astype(np.uint16)
                write(Path(directory, f"shard-{shard:05d}.{name}"), tokens)
            measure(name, directory, arguments.rounds)


def write_mds(path: Path, tokens: np.ndarray) -> None:
    size = tokens[0].nbytes
    about = {
        "column_names": ["tokens"],
        "column_encodings": [f"ndarray:uint16:{tokens.shape[1]}"],
        "column_sizes": [size],
    }
    config = json.dumps(about).encode()
    starts = 4 * (len(tokens) + 2) + len(config) + size * np.arange(len(tokens) + 1)
    path.write_bytes(len(tokens).to_bytes(4, "little") + starts.astype("<u4").tobytes() + config + tokens.tobytes())


def write_parquet(path: Path, tokens: np.ndarray) -> None:
    column = pa.FixedSizeListArray.from_arrays(pa.array(tokens.reshape(-1)), TOKENS)
    pq.write_table(pa.table({"tokens": column}), path, row_group_size=16, compression="none", use_dictionary=False)


def measure(name: str, directory: str, rounds: int) -> None:
    warnings.simplefilter("ignore", shoal.errors.ShuffleWarning)
    ds = shoal.open(directory).shuffle(seed=0, window=WINDOW)
    ways: dict[str, Callable[[], int]] = {
        "readv, in order": lambda: read_in_order(directory),
        "batches of 64": lambda: sum(len(batch["tokens"]) for batch in ds.batch(BATCH)),
        "with a stage for each sample": lambda: sum(
            len(batch["tokens"]) for batch in ds.map(lambda sample: sample).batch(BATCH)
        ),
    }
    best = dict.fromkeys(ways, np.inf)
    for _ in range(rounds):
        for way, run in ways.items():
            began = time.perf_counter()
            run()
            best[way] = min(best[way], time.perf_counter() - began)
    print(f"\n{name}: {ds.num_samples:,} samples of {TOKENS * 2:,} bytes, {ds.resolved}")
    for way, seconds in best.items():
        rate = ds.num_samples / seconds
        print(f"  {way:30} {rate:12,.0f} samples/s {rate * TOKENS * 2 / 1e6:8,.0f} MB/s")


def measure_mixtures(num_samples: int, num_tokens: int, rounds: int) -> None:
    warnings.simplefilter("ignore", shoal.errors.ShuffleWarning)
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory, f"{shard:02}.mds") for shard in range(64)]
        for shard, path in enumerate(paths):
            tokens = np.random.default_rng(shard).integers(0, 2**16, (num_samples // 64, num_tokens)).astype(np.uint16)
            write_mds(path, tokens)
        ways = {"one dataset": shoal.open(paths).shuffle(seed=0, window=WINDOW)}
        for num_sources in (1, 2, 8, 64):
            sources = {f"{part:02}": shoal.open(paths[part::num_sources]) for part in range(num_sources)}
            ways[f"mixture of {num_sources:2}"] = shoal.mix(sources).shuffle(seed=0, window=WINDOW)
        found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, ds in ways.items():
                found[way].append(cpu_seconds(ds))
        one = np.median(found["one dataset"], axis=0)
        for way, each in found.items():
            (first, after, whole), low, high = np.median(each, axis=0), np.min(each, axis=0), np.max(each, axis=0)
            print(
                f"{way:14} first batch {1e3 * first:5.1f} ms, after it {1e6 * after:.2f} us a sample "
                f"({1e6 * low[1]:.2f} to {1e6 * high[1]:.2f}; {after / one[1]:.2f} x one dataset), "
                f"with it {1e6 * whole:.2f} us ({whole / one[2]:.2f} x)"
            )


def cpu_seconds(ds: shoal.Dataset) -> tuple[float, float, float]:
    """CPU seconds of the first batch, for each sample after it, and for each of all samples."""
    began = time.process_time()
    batches = iter(ds.batch(BATCH))
    next(batches)
    first = time.process_time()
    num_samples = sum(len(batch["tokens"]) for batch in batches)
    end = time.process_time()
    return first - began, (end - first) / num_samples, (end - began) / (num_samples + BATCH)


def read_in_order(directory: str) -> int:
    total, buffer = 0, bytearray(4 << 20)
    for path in sorted(Path(directory).iterdir()):
        with path.open("rb", buffering=0) as file:
            while got := file.readinto(buffer):
                total += got
    return total


if __name__ == "__main__":
    main()
