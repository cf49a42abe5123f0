"""What the chunk cache costs: a hit and a miss next to a plain pread, eight processes at once, and hits over epochs.

``python bench/cache.py`` works in a temporary directory (``--directory`` for another disk). Everything is in the page
cache, so a pread costs what copying costs, and the rest is the cache's: opening, locking, a CRC-32 over all bytes. For
misses the fetch costs nothing. Times are those of one process, the best of the rounds, since other work on the machine
only makes things slower. The last part streams epochs of random order through a cache of half the data, next to what a
cache would give that forgets what was used longest ago (simulated).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from shoal.storage.chunk_cache.chunk_cache import ChunkCache
from shoal.storage.chunk_cache.ledger import charge_bytes

MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default=None, help="where to work")
    arguments = parser.parse_args()
    for chunk_bytes, num_chunks in ((64 << 10, 1024), (MIB, 128)):
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            one_process(Path(directory), chunk_bytes, num_chunks, arguments.rounds)
    for chunk_bytes, num_chunks in ((64 << 10, 1024), (MIB, 128)):
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            eight_processes(Path(directory), chunk_bytes, num_chunks)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        epochs(Path(directory))


def one_process(directory: Path, chunk_bytes: int, num_chunks: int, rounds: int) -> None:
    data = np.random.default_rng(0).bytes(chunk_bytes)
    plain = directory / "plain"
    with plain.open("wb") as file:
        for _ in range(num_chunks):
            file.write(data)
    descriptor = os.open(plain, os.O_RDONLY)
    told: dict[str, float] = {}

    def measure(name: str, read: Callable[[int], bytes]) -> None:
        began = time.perf_counter()
        for number in range(num_chunks):
            read(number)
        took = (time.perf_counter() - began) / num_chunks
        told[name] = min(told.get(name, took), took)

    for place in range(rounds):
        budget = 2 * num_chunks * chunk_bytes
        cache = ChunkCache(directory / str(place), budget_bytes=budget)
        full = ChunkCache(directory / f"full {place}", budget_bytes=num_chunks * chunk_bytes // 4)
        fetch = partial(bytes, data)
        read = partial(through, cache, chunk_bytes, fetch)
        measure("pread", lambda number: os.pread(descriptor, chunk_bytes, number * chunk_bytes))
        measure("miss, with room", read)
        measure("miss, full cache", partial(through, full, chunk_bytes, fetch))
        measure("first hit", read)
        measure("hit", read)
        assert cache.counts.num_hits == 2 * cache.counts.num_fills == 2 * num_chunks
        cache.close()
        full.close()
    os.close(descriptor)
    print(f"\n{num_chunks} chunks of {chunk_bytes >> 10} KiB, one process, best of {rounds}")
    for name, seconds in told.items():
        print(f"{name:18} {seconds * 1e6:9.1f} us {chunk_bytes / seconds / 1e6:9,.0f} MB/s")


def through(cache: ChunkCache, chunk_bytes: int, fetch: Callable[[], bytes], number: int) -> bytes:
    return cache.read(str(number), chunk_bytes, fetch)


def eight_processes(directory: Path, chunk_bytes: int, num_chunks: int, num_processes: int = 8) -> None:
    """All of them want all chunks, in the same order and at the same time: first of nobody's, then of the cache."""
    data = np.random.default_rng(0).bytes(chunk_bytes)
    print(f"\n{num_chunks} chunks of {chunk_bytes >> 10} KiB, {num_processes} processes on {os.cpu_count()} cores")
    for name, latency in (("misses, fetched in 5 ms", 0.005), ("hits", 0.005)):
        began = time.perf_counter()
        children = []
        for _ in range(num_processes):
            child = os.fork()
            if not child:
                cache = ChunkCache(directory, budget_bytes=2 * num_chunks * chunk_bytes)
                for number in range(num_chunks):
                    cache.read(str(number), chunk_bytes, partial(slow, data, latency))
                cache.close()
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        took = time.perf_counter() - began
        reader = ChunkCache(directory)
        book = reader._ledger.look()  # noqa: SLF001
        assert book is not None
        total = num_processes * num_chunks
        print(
            f"{name:24} {took:6.2f} s {took / num_chunks * 1e6:8.1f} us a chunk for all, "
            f"{total * chunk_bytes / took / 1e6:7,.0f} MB/s delivered; so far {book.num_fills} fetched of {total} reads"
        )
        reader.close()


def slow(data: bytes, seconds: float) -> bytes:
    time.sleep(seconds)
    return data


def epochs(directory: Path, num_chunks: int = 4000, chunk_bytes: int = 4000, num_epochs: int = 6) -> None:
    charge = charge_bytes(chunk_bytes + 16)
    data = bytes(chunk_bytes)
    print(f"\nhits of each epoch, {num_chunks} chunks, each time in a new order; 'forgetful': least recently used goes")
    for part in (0.25, 0.5, 0.75):
        place = directory / str(part)
        cache = ChunkCache(place, budget_bytes=max(MIB, int(part * num_chunks * charge) + (64 << 10)))
        forgetful: OrderedDict[int, None] = OrderedDict()
        ours, theirs, order = [], [], np.random.default_rng(1)
        for _ in range(num_epochs):
            before, hits = cache.counts.num_hits, 0
            for number in order.permutation(num_chunks).tolist():
                cache.read(str(number), chunk_bytes, partial(bytes, data))
                hits += number in forgetful
                forgetful[number] = None
                forgetful.move_to_end(number)
                if len(forgetful) > part * num_chunks:
                    forgetful.popitem(last=False)
            ours.append((cache.counts.num_hits - before) / num_chunks)
            theirs.append(hits / num_chunks)
        print(f"room for {part:4.0%}   shoal      {'  '.join(f'{share:4.0%}' for share in ours)}")
        print(f"                forgetful  {'  '.join(f'{share:4.0%}' for share in theirs)}")
        cache.close()


if __name__ == "__main__":
    main()
