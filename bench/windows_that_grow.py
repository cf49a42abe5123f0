"""What one new shard costs windows of rows, beside opening all shards: processor seconds, the better of some rounds.

``python bench/windows_that_grow.py`` writes Parquet shards of 100,000 rows in 500 episodes, without an index. It opens
windows of 16 rows, adds a shard and looks at the source again. Then, with an empty cache, it opens all shards, and
recovers the windows that a state had before the last shard came.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import shoal
from shoal.indexing.opened_dataset import Known, Opened
from shoal.stream.generations.recovered_datasets import recovered_part

EPISODE, EPISODES, LENGTH = 200, 500, 16


def write_shard(directory: Path, number: int) -> None:
    """Write the rows of a shard."""
    rows = np.arange(number * EPISODES * EPISODE, (number + 1) * EPISODES * EPISODE)
    table = pa.table({"episode_index": rows // EPISODE, "x": rows.astype(np.float32)})
    pq.write_table(table, directory / f"{number:04d}.parquet", row_group_size=20 * EPISODE)


def windows(directory: Path) -> Opened:
    """Open the windows of all shards."""
    return shoal.open(directory).windows(LENGTH).stream.opened.one("the benchmark")


def run(num_shards: int, timed: Callable[[str, Callable[[], Any]], Any]) -> None:
    """Time one growth, and one recovery."""
    with tempfile.TemporaryDirectory() as home:
        os.environ["SHOAL_CACHE_DIR"] = str(Path(home, "cache"))
        data = Path(home, "data")
        data.mkdir()
        for number in range(num_shards):
            write_shard(data, number)
        part = windows(data)
        write_shard(data, num_shards)
        grown = timed("look again, one new shard", lambda: part.latest.look_again(part))
        timed("look again, nothing new", lambda: grown.latest.look_again(grown))
        os.environ["SHOAL_CACHE_DIR"] = str(Path(home, "another"))
        newest = timed("open all shards", lambda: windows(data))
        timed("recover the windows of a state", lambda: recovered_part(newest, Known.of(part.index)))


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print(f"| {'':30} | rows | processor seconds |\n| --- | --- | --- |")
    for num_shards in arguments.shards:
        seconds: dict[str, list[float]] = defaultdict(list)

        def timed(what: str, call: Callable[[], Any], seconds: dict[str, list[float]] = seconds) -> Any:
            begin = time.process_time()
            result = call()
            seconds[what].append(time.process_time() - begin)
            return result

        for _ in range(arguments.rounds):
            run(num_shards, timed)
        for what, some in seconds.items():
            print(f"| {what:30} | {num_shards * EPISODES * EPISODE:,} | {min(some):.2f} |")


if __name__ == "__main__":
    main()
