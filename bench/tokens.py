"""What streaming tokens costs a training step: steps of a fixed length, fed by shoal and by a batch that is in memory.

``python bench/tokens.py`` writes 64 MiB of tokens (uint16, rows of 2049) as MDS and as Parquet shards in a temporary
directory, reads them once, and prints: tokens a second when nothing is done with them; and, for steps of 2, 5 and 20 ms
on batches of 32 rows, in which the process sleeps as one does that waits for an accelerator, how long streamed steps
took by those on data in memory, and the part of the time in which the loop waited for a batch. The median of the
rounds. The window is 16 MiB.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import shoal
import shoal.pack
import shoal.torch
from shoal.errors import ShuffleWarning

LENGTH, ROWS, BATCH, WINDOW = 2049, 16_384, 32, "16MiB"
STEP_SECONDS = (0.002, 0.005, 0.020)


def write_mds(directory: Path) -> None:
    options = {"columns": {"tokens": f"ndarray:uint16:{LENGTH}"}}
    draw = np.random.default_rng(0)
    with shoal.pack.Writer(directory, format="mds", shard_bytes="8MiB", options=options) as writer:
        for _ in range(ROWS):
            writer.write({"tokens": draw.integers(0, 50_257, LENGTH, dtype=np.uint16)})


def write_parquet(directory: Path) -> None:
    directory.mkdir()
    draw = np.random.default_rng(0)
    for shard in range(8):
        tokens = draw.integers(0, 50_257, (ROWS // 8, LENGTH), dtype=np.uint16)
        column = pa.FixedSizeListArray.from_arrays(pa.array(tokens.ravel()), LENGTH)
        pq.write_table(pa.table({"tokens": column}), directory / f"{shard}.parquet", row_group_size=128)


def batches_of(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def steps(batches: Iterator[Any], num_steps: int, step_seconds: float) -> tuple[float, float]:
    """Seconds of some steps, and those spent waiting for batches."""
    waited, began = 0.0, time.perf_counter()
    for _ in range(num_steps):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        batch["tokens"][:, :-1].long()  # what every step does first
        if step_seconds:
            time.sleep(step_seconds)
    return time.perf_counter() - began, waited


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", ShuffleWarning)
    for name, write in (("mds", write_mds), ("parquet", write_parquet)):
        with tempfile.TemporaryDirectory() as scratch:
            os.environ["SHOAL_CACHE_DIR"] = f"{scratch}/cache"
            data = Path(scratch, "data")
            write(data)
            ds = shoal.open(data).shuffle(seed=0, window=WINDOW).batch(BATCH)
            loader = shoal.torch.DataLoader(ds)
            stream = batches_of(loader)
            first = next(stream)
            rates = [_rate(stream) for _ in range(arguments.rounds)]
            print(f"{name}: {statistics.median(rates):,.0f} tokens/s when nothing is done with them")
            for seconds in STEP_SECONDS:
                rounds = [_round(stream, first, seconds) for _ in range(arguments.rounds)]
                ratio, share = (statistics.median(values) for values in zip(*rounds, strict=True))
                print(f"  steps of {1000 * seconds:2.0f} ms: {ratio:.3f} of the time in memory, {share:.2%} waiting")
            print(f"  state: {len(json.dumps(loader.state_dict()))} bytes")
            stream.close()


def _rate(stream: Iterator[Any]) -> float:
    seconds, _ = steps(stream, 400, 0.0)
    return 400 * BATCH * (LENGTH - 1) / seconds


def _round(stream: Iterator[Any], first: Any, step_seconds: float) -> tuple[float, float]:
    num_steps = max(50, int(0.5 / step_seconds))
    streamed, waited = steps(stream, num_steps, step_seconds)
    resident, _ = steps(iter([first] * num_steps), num_steps, step_seconds)
    return streamed / resident, waited / streamed


if __name__ == "__main__":
    main()
