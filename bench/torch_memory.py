"""What worker processes of `shoal.torch.DataLoader` hold in memory, and what it costs to hold less.

``python bench/torch_memory.py`` writes 512 MiB of tars (members of 8 KiB) into a temporary directory and streams a
part of an epoch from a window of 128 MiB, with 0 to 4 workers; with a memory limit of the same 128 MiB for all workers
together; and from a server (of this machine), where workers share a cache. It prints the proportional set size of the
loader's process and its workers beyond that of the same processes before (what pages they share counts once; without
the pages of the cache, which are the system's), the bytes that were read by those that were delivered, and samples a
second.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import shoal
import shoal.pack
import shoal.torch
from shoal.errors import ShuffleWarning
from shoal.testing import RangeServer

MEMBER, NUM, WINDOW, BATCH = 8192, 65_536, "128MiB", 64


def pss_bytes() -> int:
    """The proportional set size of this process and its children, however they were started."""
    total = 0
    for pid in [os.getpid(), *(child.pid for child in multiprocessing.active_children())]:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) << 10
    return total


def measure(name: str, ds: shoal.Dataset, num_workers: int, num_steps: int) -> None:
    ds.set_epoch(0)
    loader = shoal.torch.DataLoader(ds.batch(BATCH), num_workers=num_workers)
    iterator = iter(loader)
    next(iterator)
    before = pss_bytes()
    most, began = before, time.perf_counter()
    for step in range(1, num_steps):
        next(iterator)
        if step % 32 == 0:
            most = max(most, pss_bytes())
    seconds = time.perf_counter() - began
    counted: dict[str, Any] = loader.stats()
    iterator.close()
    delivered = num_steps * BATCH * MEMBER
    print(
        f"  {name}, {num_workers} workers: {most >> 20:6,} MiB, of which {(most - before) >> 20:5,} came after the "
        f"first batch; read {counted['read_bytes'] / delivered:6.2f}; {num_steps * BATCH / seconds:9,.0f} samples/s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=512)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ShuffleWarning)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["SHOAL_CACHE_DIR"] = f"{scratch}/cache"
        data = Path(scratch, "data")
        noise = np.random.default_rng(0).bytes(MEMBER + NUM)
        with shoal.pack.Writer(data, format="tar", shard_bytes="64MiB") as writer:
            for number in range(NUM):
                writer.write({"__key__": f"{number:06d}", "bin": noise[number : number + MEMBER]})
        near = shoal.open(data).shuffle(seed=0, window=WINDOW)
        for num_workers in (0, 1, 2, 4):
            measure("files", near, num_workers, arguments.steps)
        for num_workers in (2, 4):
            limited = near.reading(memory_limit=WINDOW)
            measure("files, 128 MiB for all", limited, num_workers, arguments.steps // 4)
        with RangeServer(data) as server:
            urls = [server.url_of(path.name) for path in sorted(data.glob("*.tar"))]
            far = shoal.open(urls, index=data / "shoal.index").shuffle(seed=0, window=WINDOW)
            for num_workers in (0, 2, 4):
                measure("a server", far, num_workers, arguments.steps)


if __name__ == "__main__":
    main()
