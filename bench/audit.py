"""What an audit costs: ``python bench/audit.py [--samples N ...]``; ids of a permutation in a mapped file."""

from __future__ import annotations

import argparse
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np

from shoal.measure import audit
from shoal.orders import Full

BLOCK = 1 << 24


def main() -> None:
    """Time and peak memory for each number of samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=float, nargs="+", default=[1e6, 1e7])
    for size in (int(number) for number in parser.parse_args().samples):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ids.npy"
            write_permutation(path, size)
            tracemalloc.start()
            begin = time.process_time()
            result = audit(np.load(path, mmap_mode="r"))
            seconds, peak = time.process_time() - begin, tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        print(
            f"{size:>13,} ids: {seconds:6.1f} s of CPU, peak {peak / 2**20:6.0f} MiB, {len(result.findings)} findings"
        )


def write_permutation(path: Path, size: int) -> None:
    """The ids of a perfect shuffle, in blocks."""
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.int64, shape=(size,))
    order = Full().bind([size], seed=3)
    for start in range(0, size, BLOCK):
        file[start : start + BLOCK] = order.ids(start, min(size, start + BLOCK))
    file.flush()


if __name__ == "__main__":
    main()
