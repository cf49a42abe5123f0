"""How fast tars stream, next to the limit: reading the same bytes with readv, in the same run.

``python bench/stream.py`` makes two datasets of tars in a temporary directory (members of 4 KiB and of 100 KB), reads
them once so that they are in memory, and then, several times in turn: reads all bytes in order with `os.readv` into one
buffer; does that and makes bytes of each sample, the limit of whatever gives its users bytes of their own; reads the
chunks that shoal would read in random order (`os.pread`); and streams with shoal, one process, a window of 16 MiB,
sample by sample and in batches. The best of the rounds is printed, since other work on the machine only ever makes
things slower; the ratio is taken within each round, and its median printed.

WebDataset's figure (8 300 samples/s of 4 KiB) was measured elsewhere with its 1.0.2 on a like machine and is not
measured here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np

import shoal

WEBDATASET_SAMPLES_PER_SECOND = 8300
BUFFER_BYTES = 4 << 20
WINDOW = "16MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=768, help="payload of each dataset")
    parser.add_argument("--peak", default=None, help="internal: stream this dataset in a process of its own")
    arguments = parser.parse_args()
    if arguments.peak:
        print_peak(arguments.peak)
        return
    for member_bytes in (4096, 100_000):
        with tempfile.TemporaryDirectory() as directory:
            make_tars(Path(directory), member_bytes, arguments.megabytes * 10**6 // member_bytes)
            measure(directory, member_bytes, arguments.rounds)


def make_tars(directory: Path, member_bytes: int, num_members: int, num_shards: int = 16) -> None:
    """Write ustar shards of one member a sample, with random bytes."""
    random = np.random.default_rng(0)
    for shard, numbers in enumerate(np.array_split(np.arange(num_members), num_shards)):
        with tarfile.open(directory / f"train-{shard:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in numbers:
                info = tarfile.TarInfo(f"{number:08d}.bin")
                info.size = member_bytes
                tar.addfile(info, BytesIO(random.bytes(member_bytes)))


def measure(directory: str, member_bytes: int, rounds: int) -> None:
    dataset = shoal.open(directory).shuffle(seed=0, window=WINDOW)
    ways: dict[str, Callable[[], int]] = {
        "readv, in order": lambda: read_in_order(directory),
        "readv, bytes of each sample": lambda: read_in_order(directory, member_bytes),
        "pread of the same chunks": lambda: read_chunks(dataset),
        "shoal, samples": lambda: sum(len(sample["bin"]) for sample in dataset),
        "shoal, batches of 64": lambda: sum(sum(map(len, batch["bin"])) for batch in dataset.batch(64)),
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    num_bytes: dict[str, int] = {}
    for number in range(rounds + 1):
        for name, way in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            num_bytes[name] = way()
            if number:  # the first round warms up
                seconds[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    print(f"\nmembers of {member_bytes:,} bytes, {dataset.num_samples:,} samples, {rounds} rounds, {dataset.resolved}")
    print(f"{'':28} {'samples/s':>10} {'MB/s':>8} {'of readv':>9} {'of owned':>9} {'CPU us/sample':>14}")
    limits = [[num_bytes[name] / wall for wall, _ in seconds[name]] for name in list(ways)[:2]]
    for name, times in seconds.items():
        wall, cpu = (min(column) for column in zip(*times, strict=True))
        ratios = [
            statistics.median(num_bytes[name] / t / most for (t, _), most in zip(times, limit, strict=True))
            for limit in limits
        ]
        rate, each = dataset.num_samples / wall, cpu / dataset.num_samples * 1e6
        in_all = f"{num_bytes[name] / wall / 1e6:8,.0f} {ratios[0]:9.2f} {ratios[1]:9.2f}"
        print(f"{name:28} {rate:10,.0f} {in_all} {each:14.1f}")
    if member_bytes == 4096:
        best = min(wall for wall, _ in seconds["shoal, samples"])
        times_as_fast = dataset.num_samples / best / WEBDATASET_SAMPLES_PER_SECOND
        print(f"{times_as_fast:.1f} times WebDataset's {WEBDATASET_SAMPLES_PER_SECOND:,} samples/s (wanted: 15)")
    subprocess.run([sys.executable, __file__, "--peak", directory], check=True)


def read_in_order(directory: str, member_bytes: int = 0) -> int:
    """All bytes of all shards into one buffer, and out of it into bytes for each member if asked; their number.

    The second is the limit of whatever gives its users bytes of their own.
    """
    buffer = bytearray(BUFFER_BYTES)
    view = memoryview(buffer)
    total = 0
    for path in sorted(Path(directory).glob("*.tar")):
        descriptor = os.open(path, os.O_RDONLY)
        while got := os.readv(descriptor, [buffer]):
            total += got
            for first in range(0, got if member_bytes else 0, member_bytes or 1):
                bytes(view[first : first + member_bytes])
        os.close(descriptor)
    return total


def read_chunks(dataset: shoal.Dataset) -> int:
    """The chunks of the dataset in random order, each into bytes of its own; the number of bytes."""
    table = dataset.resolved.chunks
    paths = sorted(Path(dataset.stream.opened.paths[0]).parent.glob("*.tar"))
    descriptors = [os.open(path, os.O_RDONLY) for path in paths]
    order = np.random.default_rng(0).permutation(len(table))
    columns = (table.shard[order], table.first_byte[order], table.end_byte[order])
    total = 0
    for shard, first, end in zip(*(column.tolist() for column in columns), strict=True):
        total += len(os.pread(descriptors[shard], end - first, first))
    for descriptor in descriptors:
        os.close(descriptor)
    return total


def print_peak(directory: str) -> None:
    """Stream everything once and print the most memory this process had."""
    dataset = shoal.open(directory).shuffle(seed=0, window=WINDOW)
    for _ in dataset:
        pass
    # Not getrusage: a process begins with the peak of the one that started it.
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    held = dataset.stats()["peak_held_bytes"] / 2**20
    print(f"peak memory of a process that does nothing else: {peak:.0f} MiB (limit: 16 + 64), of which held {held:.1f}")


if __name__ == "__main__":
    main()
