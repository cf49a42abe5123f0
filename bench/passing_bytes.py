"""What crosses the network if tars are indexed and then read, with and without bytes that the scan leaves in files.

``python bench/passing_bytes.py`` serves tars of small members over http from another process, indexes them, and then
reads all of their bytes in requests of 1 MiB in random order, as a stream does that follows the indexing.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from far_index import NUM_SHARDS, serve, write

from shoal.formats.format_registry import format_named
from shoal.indexing.build import build_index
from shoal.storage.passing_bytes.passing_bytes import PassingBytes
from shoal.storage.retry import with_retries
from shoal.storage.sources.source import expand
from shoal.storage.store_of_url import open_store
from shoal.storage.store_protocol import Store, StoreWrapper

SHAPES = ((1000, 20_000), (4096, 8000), (20_000, 1800), (100_000, 360))  # bytes of a member, members of a shard
READ_BYTES = 1 << 20
NUM_THREADS = 32


def main() -> None:
    if len(sys.argv) == 3:
        serve(sys.argv[2])
        return
    print(
        f"{'members':20}{'':10}{'MB':>7}{'scanned':>9}{'seconds':>9}{'CPU':>7}{'then read':>11}{'seconds':>9}{'CPU':>7}"
    )
    for member_bytes, num_members in SHAPES:
        with tempfile.TemporaryDirectory() as directory:
            for shard in range(NUM_SHARDS):
                write(Path(directory, f"{shard:03d}.tar"), member_bytes, num_members)
                Path(directory, f"{shard:03d}.tar.idx").unlink()  # with it, few bytes would be scanned
            command = [sys.executable, __file__, "--serve", directory]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
                assert server.stdout is not None
                url = server.stdout.readline().strip()
                for budget_bytes in (0, 200_000_000, 8 << 30):
                    figures = run(f"{url}/{{000..{NUM_SHARDS - 1:03d}}}.tar", budget_bytes)
                    shape = f"{num_members:,} x {member_bytes:,}"
                    print(f"{shape:20}{f'{budget_bytes / 1e6:,.0f} MB':10}{figures}", flush=True)
                server.communicate("stop\n")


class Counted(StoreWrapper):
    """A store that counts the bytes that are read."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.sizes: list[int] = []

    def read_range(self, path: str, first_byte: int, end_byte: int) -> bytes:
        """Read from the store, and count."""
        self.sizes.append(end_byte - first_byte)
        return self.store.read_range(path, first_byte, end_byte)


def run(source: str, budget_bytes: int) -> str:
    """Bytes of all shards; of the scan and of reading everything after it: bytes fetched, seconds, and CPU seconds."""
    store = Counted(open_store(source))
    found = expand(source, suffixes=(".tar",), store=store)
    with tempfile.TemporaryDirectory() as directory:
        passing = PassingBytes(directory, budget_bytes=budget_bytes)
        began, worked = time.perf_counter(), time.process_time()
        build_index(found, store=with_retries(passing.noting(store)), format=format_named("tar"), cache_dir=directory)
        text = figures(store, began, worked)
        sizes = {path: store.stat(path).num_bytes for path in found.paths}
        reads = [(path, first) for path, size in sizes.items() for first in range(0, size, READ_BYTES)]
        random.Random(1).shuffle(reads)
        serving = passing.serving(store)
        began, worked = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(NUM_THREADS) as threads:
            asked = [(path, first, min(sizes[path], first + READ_BYTES)) for path, first in reads]
            num_bytes = sum(threads.map(lambda one: len(serving.read_range(*one)), asked))
        assert num_bytes == sum(sizes.values())
        text = f"{num_bytes / 1e6:7,.0f}{text}  {figures(store, began, worked)}"
        passing.close()
    return text


def figures(store: Counted, began: float, worked: float) -> str:
    """Megabytes fetched since the last call, seconds, and CPU seconds."""
    num_bytes = sum(store.sizes)
    store.sizes.clear()
    return f"{num_bytes / 1e6:9,.0f}{time.perf_counter() - began:9.2f}{time.process_time() - worked:7.2f}"


if __name__ == "__main__":
    main()
