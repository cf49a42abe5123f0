"""Shards for the growing order, and control over how far their indexing has come."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.index.table import Index
from shoal.indexing.growing import segments_ahead
from shoal.stream.dataset import Dataset

WINDOW = "2KiB"
COUNTS = [9, 14, 3, 0, 21, 8, 17, 5, 11, 2, 19, 13, 7, 10, 16, 4] * 2


def write_shards(directory: Path, counts: list[int] = COUNTS) -> Path:
    """Write lines of 60 to 90 bytes; each has the name of its shard and its number there."""
    directory.mkdir(parents=True, exist_ok=True)
    for shard, count in enumerate(counts):
        lines = [f'{{"key": "{shard}/{number}", "text": "{"word " * (9 + number % 7)}"}}\n' for number in range(count)]
        (directory / f"{shard:03d}.jsonl").write_text("".join(lines))
    return directory


def keys_of_all(counts: list[int] = COUNTS) -> list[str]:
    """Return the keys of all samples."""
    return sorted(f"{shard}/{number}" for shard, count in enumerate(counts) for number in range(count))


def growing(directory: Path, *, seed: int = 5, index: str = "grow", **terms: Any) -> Dataset:
    """Open shards in the growing order of small segments."""
    return shoal.open(directory, index=index).shuffle(seed=seed, window=WINDOW, **terms)


class Gate:
    """A gate before each segment's index: it opens for as many as are let through."""

    def __init__(self) -> None:
        self._passes = threading.Semaphore(0)

    def let(self, num_segments: int) -> None:
        """Let the indexes of some more segments be made."""
        self._passes.release(num_segments)

    def wait(self) -> None:
        """Wait for a pass."""
        assert self._passes.acquire(timeout=60)


@contextmanager
def gated(num_segments: int) -> Iterator[Gate]:
    """Index only so many segments until more are let through."""
    gate, made = Gate(), segments_ahead.SegmentJob.segment

    def waiting(job: segments_ahead.SegmentJob, segment: int) -> Index:
        gate.wait()
        return made(job, segment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments_ahead.SegmentJob, "segment", waiting)
        gate.let(num_segments)
        try:
            yield gate
        finally:
            gate.let(1000)
