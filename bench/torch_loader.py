"""What a resume costs by where it is, and what worker processes cost or gain, with `shoal.torch.DataLoader`.

``python bench/torch_loader.py`` makes 400,000 JSON lines (90 MB) in a temporary directory. It prints the time from a
new loader to its first batch at the start, in the middle and at 99 % of the epoch, and samples a second with the thread
of ``num_workers=0`` and with processes, where the samples are small and where each costs 0.2 ms of Python. The best of
three.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import shoal
import shoal.torch
from shoal.errors import ShuffleWarning

NUM_SHARDS, LINES = 20, 20_000
BATCH = 256


def write(directory: Path) -> None:
    directory.mkdir()
    for shard in range(NUM_SHARDS):
        lines = (json.dumps({"id": shard * LINES + i, "text": "x" * 200}) + "\n" for i in range(LINES))
        (directory / f"s-{shard:03d}.jsonl").write_text("".join(lines))


def work(sample: dict[str, Any]) -> dict[str, Any]:
    """A function of the user that takes 0.2 ms."""
    until = time.perf_counter() + 0.0002
    while time.perf_counter() < until:
        pass
    return sample


def main() -> None:
    warnings.simplefilter("ignore", ShuffleWarning)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["SHOAL_CACHE_DIR"] = f"{scratch}/cache"
        data = Path(scratch, "data")
        write(data)
        plain = shoal.open(data).shuffle(seed=0, window="8MiB").with_ids()
        start = plain.state_dict()
        print("milliseconds to the first batch of a new loader, by position; bytes of the state")
        for num_workers in (0, 2):
            for share in (0.0, 0.5, 0.99):
                state = {**start, "position": int(plain.num_samples * share)}
                best = min(first_batch(plain, num_workers, state) for _ in range(3))
                print(f"  {num_workers} workers, {share:4.0%}: {1000 * best:5.0f} ms, {len(json.dumps(state))} bytes")
        print("samples a second, and seconds to the first batch left out")
        for name, ds, num_steps in (("small samples", plain, 200), ("0.2 ms each", plain.map(work), 40)):
            for num_workers in (0, 1, 2):
                best = max(rate(ds, num_workers, num_steps) for _ in range(3))
                print(f"  {name}, {num_workers} workers: {best:9,.0f}")


def first_batch(ds: shoal.Dataset, num_workers: int, state: dict[str, Any]) -> float:
    loader = shoal.torch.DataLoader(ds.batch(BATCH), num_workers=num_workers)
    loader.load_state_dict(state)
    began = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    seconds = time.perf_counter() - began
    iterator.close()
    return seconds


def rate(ds: shoal.Dataset, num_workers: int, num_steps: int) -> float:
    iterator = iter(shoal.torch.DataLoader(ds.batch(BATCH), num_workers=num_workers))
    next(iterator)
    began = time.perf_counter()
    for _ in range(num_steps):
        next(iterator)
    seconds = time.perf_counter() - began
    iterator.close()
    return num_steps * BATCH / seconds


if __name__ == "__main__":
    main()
