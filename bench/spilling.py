"""What it costs to read chunks that are too large for the window from where they lie decoded on the disk.

`python bench/spilling.py`: two row groups of 97 MiB and two compressed shards of 98 MiB, with a window of 16 MiB and a
cache (once empty, once filled), and with a window that holds both. Each in a process of its own: MiB at its peak above
what it had before the first sample, seconds to the first sample, and microseconds of CPU for each of 30,000 samples.

`python bench/spilling.py far`: two row groups of 49 MiB among 320 of 500 KiB, behind 20 ms and 60 MB/s a connection,
with windows of 16 and 64 MiB and an empty cache: seconds of the epoch, the longest wait for a sample, and the MB/s at
which each of the two came into the cache; MiB held at the peak, by `stats()`.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import shoal
from shoal.reading.remote.remote_readers import RemoteReaders
from shoal.reading.schedule.units import UnitRead

sys.path.append(str(Path(__file__).parent / "servers"))

from quick import Quick

NUM_SAMPLES = 30_000


def write_uneven_tables(directory: Path) -> None:
    """Rows of 512 numbers, incompressible as embeddings are: few of them in a group, but in two shards."""
    rng, first = np.random.default_rng(0), 0
    for shard, (num_rows, group_rows) in enumerate([(20_000, 250)] * 4 + [(25_000, 25_000)] * 2):
        values = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(num_rows * 512).astype(np.float32)), 512)
        table = pa.table({"id": np.arange(first, first + num_rows), "values": values})
        pq.write_table(table, directory / f"{shard}.parquet", row_group_size=group_rows, compression="none")
        first += num_rows


def write_tables(directory: Path) -> None:
    """Rows of 512 numbers and a text, incompressible as embeddings are."""
    rng, num_rows = np.random.default_rng(0), 40_000
    for shard in range(2):
        values = pa.array(rng.random(num_rows * 512).astype(np.float32))
        columns = {
            "id": np.arange(num_rows) + shard * num_rows,
            "values": pa.FixedSizeListArray.from_arrays(values, 512),
            "text": [f"{row}" * 100 for row in range(num_rows)],
        }
        pq.write_table(pa.table(columns), directory / f"{shard}.parquet", row_group_size=num_rows, compression="zstd")


def write_lines(directory: Path) -> None:
    """Lines of 1 KB that become a third of that."""
    for shard in range(2):
        lines = (
            json.dumps({"id": shard * 100_000 + line, "text": random.Random(line).randbytes(300).hex() + "x" * 400})
            for line in range(100_000)
        )
        (directory / f"{shard}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode(), 1))


def stream(data: str, window: str, cache: str) -> None:
    """In a process of its own: what a run takes."""
    warnings.simplefilter("ignore")
    opened = shoal.open(data, cache={"directory": cache, "budget": "1GiB"} if cache else None)
    ds = opened.shuffle(seed=1, window=window)
    before = memory("VmRSS")
    began, cpu = time.perf_counter(), time.process_time()
    first_seconds = 0.0
    for number, _ in enumerate(ds):
        first_seconds = first_seconds or time.perf_counter() - began
        if number == NUM_SAMPLES:
            break
    cpu_us = (time.process_time() - cpu) / NUM_SAMPLES * 1e6
    num_spills = ds.stats().get("num_spills", 0)
    peak = memory("VmHWM") - before
    print(f"{Path(data).name:8} {window:>6} {num_spills:7} {peak:9.0f} {first_seconds:9.2f} {cpu_us:9.0f}")


def stream_from_far(url: str, window: str, cache: str) -> None:
    """In a process of its own: an epoch from a remote store."""
    warnings.simplefilter("ignore")
    rates, come = [], RemoteReaders.in_turn

    def timed(self: RemoteReaders, read: UnitRead) -> Iterator[bytes]:
        began = time.perf_counter()
        yield from come(self, read)
        rates.append(f"{read.num_bytes / 1e6 / (time.perf_counter() - began):.0f}")

    RemoteReaders.in_turn = timed  # type: ignore[method-assign]
    opened = shoal.open(url, cache={"directory": cache, "budget": "1GiB"})
    ds, longest = opened.shuffle(seed=1, window=window), 0.0
    began = last = time.perf_counter()
    for _ in ds:
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    held = ds.stats()["peak_held_bytes"] / (1 << 20)
    print(f"{window:>8} {last - began:8.2f} {longest:11.2f}   {' '.join(rates):>12} {held:9.1f}")


def memory(name: str) -> float:
    """What the system says of this process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024


def main_far() -> None:
    """Make the data, and stream them from a remote store."""
    root = Path(tempfile.mkdtemp())
    try:
        (root / "data").mkdir()
        write_uneven_tables(root / "data")
        shoal.open(root / "data")  # makes the index
        print("  window  epoch s  longest s  MB/s of spills  held MiB", flush=True)
        for number, window in enumerate(("16MiB", "64MiB") * 3):
            with Quick(root / "data", 20.0, 60.0) as server:
                told = [f"{server.url}/{{0..5}}.parquet", window, str(root / f"cache-{number}")]
                subprocess.run([sys.executable, __file__, "far", *told], check=True)
            shutil.rmtree(root / f"cache-{number}")
    finally:
        shutil.rmtree(root)


def main() -> None:
    """Make the data, and run each case."""
    root = Path(tempfile.mkdtemp())
    try:
        for name, write in (("tables", write_tables), ("lines", write_lines)):
            (root / name).mkdir()
            write(root / name)
            shoal.open(root / name)  # makes the index
        print("data     window  spills  peak MiB   first s    us each", flush=True)
        for name in ("tables", "lines"):
            cache = str(root / f"cache-of-{name}")
            for window, place in (("16MiB", cache), ("16MiB", cache), ("1GiB", "")):
                subprocess.run([sys.executable, __file__, str(root / name), window, place], check=True)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["far"]:
            main_far()
        case ["far", *told]:
            stream_from_far(*told)
        case []:
            main()
        case told:
            stream(*told)
