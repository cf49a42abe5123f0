"""What a join costs: the matching of keys, time and memory for up to 10^8 keys, and the reading of both sides.

``python bench/join.py`` takes some minutes, and 7 GB of disk for 10^8 keys. Keys are numbers, hashed as a column of the
index; both sides have all keys, in equal order or shuffled. The reading compares a joined stream with its left side
alone: tars of 24 KiB, and captions of 200 bytes in equal order, shuffled, and in Parquet.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal.indexing.alignment.kept_alignments import kept_alignment, scratch_directory
from shoal.indexing.alignment.matched_keys import HashedKeys, MatchedKeys
from shoal.order.arrays.permutation import permute
from shoal.stream.derived.key_hashes import hashes_of_numbers, hashes_of_texts

SPAN = 1 << 16
SIZES, ORDERS = (10**6, 10**7, 10**8), ("equal", "shuffled")
SAMPLES, BYTES = 20_000, 24 << 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=10**8, help="the largest number of keys")
    parser.add_argument("--match", nargs=2, help="internal: match so many keys, in this order", default=None)
    asked = parser.parse_args()
    if asked.match:
        print(json.dumps(match(int(asked.match[0]), asked.match[1])))
        return
    print("keys a side, order | CPU s | of it user | s | MiB above the start at the peak | bytes of the file")
    for size in (size for size in SIZES if size <= asked.most):
        for order in ORDERS:
            command = [sys.executable, __file__, "--match", str(size), order]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            print(f"{size:,} {order} |", " | ".join(json.loads(result.stdout)), flush=True)
    texts = [f"n{i:08d}/{i:08d}" for i in range(10**6)]
    began = time.process_time()
    hashes_of_texts(texts)
    print(f"hashing 10^6 texts of 18 letters: {time.process_time() - began:.2f} CPU s")
    reading()


def hashed(size: int, *, is_shuffled: bool) -> Iterator[HashedKeys]:
    """The keys 0 to size - 1, computed span by span."""
    for first in range(0, size, SPAN):
        ids = np.arange(first, min(first + SPAN, size))
        yield HashedKeys(ids, *hashes_of_numbers(permute(ids, size, 7) if is_shuffled else ids))


def match(size: int, order: str) -> list[str]:
    """Match so many keys, write the alignment, and return what it cost."""
    for part in hashed(SPAN, is_shuffled=True):
        assert len(part.ids)
    before_kib, began, wall = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time(), time.time()

    def made(_: Any) -> MatchedKeys:
        left, right = hashed(size, is_shuffled=False), hashed(size, is_shuffled=order == "shuffled")
        return MatchedKeys(left, right, num_left=size, num_right=size, directory=scratch_directory())

    with tempfile.TemporaryDirectory(dir=".") as directory:
        os.environ["SHOAL_CACHE_DIR"] = str(Path(directory).resolve())
        kept = kept_alignment("0" * 32, made)
        assert kept.counts.num_matched == size
        num_bytes = Path(kept.path).stat().st_size
    usage = resource.getrusage(resource.RUSAGE_SELF)
    peak_mib = (usage.ru_maxrss - before_kib) / 1024
    times = (f"{time.process_time() - began:.1f}", f"{usage.ru_utime:.1f}", f"{time.time() - wall:.1f}")
    return [*times, f"{peak_mib:.0f}", f"{num_bytes:,}"]


def reading() -> None:
    """Stream both sides, and the left side alone, in turn."""
    with tempfile.TemporaryDirectory(dir=".") as home:
        os.environ["SHOAL_CACHE_DIR"] = str(Path(home, "cache").resolve())
        body = np.random.default_rng(0).bytes(BYTES)
        samples = ({"__key__": f"{i:06d}", "bin": body} for i in range(SAMPLES))
        shoal.pack.pack(samples, f"{home}/left", format="tar", shard_bytes="64MiB")
        orders = {"equal": range(SAMPLES), "shuffled": np.random.default_rng(1).permutation(SAMPLES).tolist()}
        for name, order in orders.items():
            captions = ({"__key__": f"{i:06d}", "caption": b"a" * 200} for i in order)
            shoal.pack.pack(captions, f"{home}/{name}", format="tar", shard_bytes="64MiB")
            lines = ({"id": f"{i:06d}", "caption": "a" * 200} for i in order)
            shoal.pack.pack(lines, f"{home}/{name}-parquet", format="parquet")
        left = shoal.open(f"{home}/left")
        kinds = {"alone": left}
        for name in orders:
            kinds[f"{name} tar"] = left.join(shoal.open(f"{home}/{name}"))
            kinds[f"{name} parquet"] = left.join(shoal.open(f"{home}/{name}-parquet"), on=("__key__", "id"))
        print("reading | CPU us a sample, least and median of 5 | reads | read again | peak held MiB")
        streams = {name: ds.shuffle(seed=0, window="64MiB").batch(64) for name, ds in kinds.items()}
        times: dict[str, list[float]] = {name: [] for name in streams}
        for _ in range(6):
            for name, ds in streams.items():
                began = time.process_time()
                for _batch in ds:
                    pass
                times[name].append((time.process_time() - began) / SAMPLES * 1e6)
        for name, ds in streams.items():
            warm, stats = sorted(times[name][1:]), ds.stats()
            counts = f"{stats['num_reads'] // 6:,} | {stats['num_rereads'] // 6:,} | "
            print(f"{name} | {warm[0]:.1f}, {warm[2]:.1f} | {counts}{stats['peak_held_bytes'] / 2**20:.1f}")


if __name__ == "__main__":
    main()
