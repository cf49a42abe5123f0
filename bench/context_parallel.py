"""CPU time of context parallel slices: ``python bench/context_parallel.py``.

Whole sequences and slices of the same documents, interleaved; the median of several epochs, per million tokens of whole
sequences, and the median ratio to whole sequences.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import shoal

LENGTH, NUM_DOCUMENTS = 65_536, 20_000
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "whole": (1, {}),
    "zigzag, n = 2": (1, {"context_parallel": 2}),
    "zigzag, n = 8": (1, {"context_parallel": 8}),
    "contiguous, n = 8": (1, {"context_parallel": 8, "context_slices": "contiguous"}),
    "whole, multiple_of=16": (16, {}),
    "documents, n = 8, multiple_of=16": (16, {"context_parallel": 8, "context_slices": "documents"}),
}


def documents() -> Iterator[dict[str, Any]]:
    """Documents of log-normal lengths, mean 665."""
    rng = np.random.default_rng(0)
    for _ in range(NUM_DOCUMENTS):
        size = int(rng.lognormal(6, 1)) + 1
        yield {"tokens": rng.integers(1, 50_000, size, dtype=np.uint16), "num_tokens": size}


def epoch(directory: Path, multiple_of: int, how: dict[str, Any]) -> tuple[float, float]:
    """CPU milliseconds per million tokens of whole sequences, and the filled share of the places."""
    ds = shoal.open(directory).shuffle(seed=0)
    ds = ds.pack_sequences(LENGTH, strategy="best_fit", multiple_of=multiple_of, extras=["cu_seqlens", "loss_mask"])
    ds = ds.batch(1).partition(rank=0, world_size=how.get("context_parallel", 1), **how)
    begin = time.process_time()
    num_places = LENGTH * sum(1 for _ in ds)
    return (time.process_time() - begin) / num_places * 1e9, ds.stats()["num_tokens"] / num_places


def main(num_epochs: int = 7) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as home:
        directory = Path(home, "tokens")
        shoal.pack.pack(documents(), directory, format="mds", columns=["num_tokens"])
        runs = [{name: epoch(directory, *case) for name, case in CASES.items()} for _ in range(num_epochs)]
    for name in CASES:
        times = [run[name][0] for run in runs]
        ratio = np.median([run[name][0] / run["whole"][0] for run in runs])
        print(f"| {name} | {np.median(times):.1f} | {ratio:.2f} | {runs[0][name][1]:.4f} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
