"""The price of `filter(refill=True)`: time of the training process, size of merged states, and loading them elsewhere.

python bench/refill.py
"""

from __future__ import annotations

import io
import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import shoal
import shoal.torch
from shoal.errors import ShuffleWarning
from shoal.order.state_dict import State
from shoal.order.states.deals import Deal, settled
from shoal.orders import Window

ROUNDS = 5
KINDS: dict[str, tuple[tuple[int, ...], Any, int]] = {
    "2048 tokens (4 KB)": ((2048,), np.int16, 12_000),
    "an image (147 KB)": ((224, 224, 3), np.uint8, 1_500),
}
NUM_STEPS = 10_000
NUM_SAMPLES = 10**9


def keep(sample: dict[str, Any]) -> bool:
    """Half of the samples."""
    return bool(int(sample["__key__"]) % 2)


def write(directory: Path, shape: tuple[int, ...], kind: Any, num_samples: int) -> None:
    """One kind of samples, as npy in shards of WebDataset."""
    import tarfile  # noqa: PLC0415

    rng = np.random.default_rng(0)
    with tarfile.open(directory / "a.tar", "w") as tar:
        for number in range(num_samples):
            data = io.BytesIO()
            np.save(data, rng.integers(0, 100, shape).astype(kind))
            member = tarfile.TarInfo(f"{number:06d}.npy")
            member.size = data.tell()
            data.seek(0)
            tar.addfile(member, data)


def epoch(directory: Path, num_workers: int, *, refill: bool) -> tuple[float, float, int]:
    """Seconds and seconds of this process's processor time between the first batch and the last, and kept samples."""
    ds = shoal.open(str(directory)).shuffle(seed=0).decode().filter(keep, refill=refill).batch(64)
    loader = iter(shoal.torch.DataLoader(ds, num_workers=num_workers, prefetch_factor=4 if num_workers else 0))
    next(loader)
    began, worked, count = time.perf_counter(), time.process_time(), 0
    for batch in loader:
        count += len(batch["npy"])
    return time.perf_counter() - began, time.process_time() - worked, count


def streams() -> None:
    """Compare with a filter without refill."""
    for name, (shape, kind, num_samples) in KINDS.items():
        with tempfile.TemporaryDirectory() as place:
            write(Path(place), shape, kind, num_samples)
            for num_workers in (0, 2):
                best: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
                for _ in range(ROUNDS):
                    for refill, found in best.items():
                        wall, worked, count = epoch(Path(place), num_workers, refill=refill)
                        found.append((wall / count * 1e6, worked / count * 1e6))
                for refill, found in best.items():
                    wall, worked = np.median(found, axis=0)
                    text = f"{wall:7.0f} us a kept sample, {worked:6.0f} us of the training process's processor"
                    print(f"{name:20} {num_workers} workers  refill={refill!s:5} {text}")


def states() -> None:
    """Ranks that each take 64 of 10^9 samples at a step, half of them kept."""
    order = Window(4096, 64).bind(np.full(NUM_SAMPLES // 1000, 1000), seed=0, epoch=0)
    rng = np.random.default_rng(0)
    for world_size in (8, 64, 100, 1024):
        # Samples taken for so many kept ones: a negative binomial distribution.
        steps = min(NUM_STEPS, NUM_SAMPLES // (3 * 64 * world_size))
        taken = (steps * 64 + rng.negative_binomial(steps * 64, 0.5, world_size)).tolist()
        deal = Deal(0, 0, 64 * world_size, world_size, tuple(taken))
        state = State(0, 0, 0, {"name": "window", "version": 1, "chunks": 4096}, "0" * 32, deals=(deal,))
        size = len(json.dumps(state.to_dict()))
        began = time.perf_counter()
        (found,) = settled([deal], order)
        seconds = time.perf_counter() - began
        print(
            f"{world_size:5} ranks after {steps:6} steps: {size:5} bytes; ranks are up to {max(taken) - min(taken)}"
            f" samples apart; loaded for other sizes in {seconds:.2f} s ({len(found.positions)} positions ahead)"
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore", ShuffleWarning)
    states()
    streams()
