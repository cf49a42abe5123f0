"""A directory in which shards arrive during a run, and what an epoch over some of them holds."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.stream.made import text

import shoal
from shoal.stream.dataset import Dataset

_FIRST_TIME_NS = 1_700_000_000_000_000_000
_APART_NS = 1_000_000_000


class Arriving:
    """A directory of JSON Lines shards; sample ``{"id": i, "text": text(i)}``, numbered in the order of arrival.

    ``arrivals`` has the names of all shards in the order of their arrival, each later than the one before.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.directory = directory
        self.arrivals: list[str] = []
        self._ids: dict[str, range] = {}

    def arrive(self, names: Sequence[str], count: int = 7) -> list[str]:
        """Put new shards into the directory; return their paths in the order of a listing."""
        for name in names:
            first = sum(map(len, self._ids.values()))
            self._ids[name] = range(first, first + count)
            lines = (json.dumps({"id": i, "text": text(i)}) + "\n" for i in self._ids[name])
            path = self.directory / f".{name}.tmp"  # a shard appears whole
            path.write_text("".join(lines))
            self.arrivals.append(name)
            time_ns = _FIRST_TIME_NS + len(self.arrivals) * _APART_NS
            os.utime(path, ns=(time_ns, time_ns))
            path.rename(self.directory / name)
        return [str(self.directory / name) for name in sorted(names)]

    def ids_in(self, paths: Sequence[str]) -> list[int]:
        """The ids of the samples of some shards, in their order."""
        return [i for path in paths for i in self._ids[Path(path).name]]


def shuffled(source: Any, **how: Any) -> Dataset:
    """A dataset in a small window, in single samples."""
    return shoal.open(source, **how).shuffle(seed=5, window="24KiB")


def order_of(arriving: Arriving, paths: Sequence[str], epoch: int) -> list[int]:
    """The ids by position of an epoch over shards, from a dataset of exactly these shards that never grew."""
    ids = shuffled(list(paths)).ids(epoch)
    return np.array(arriving.ids_in(paths))[ids].tolist()


def taken(dataset: Dataset, num_batches: int | None = None) -> list[list[int]]:
    """The ids of some batches, or of all that are left of an epoch."""
    batches: list[list[int]] = []
    for batch in dataset:
        assert [text(i) for i in batch["id"].tolist()] == batch["text"]
        repeated = batch.get("__pad__", np.zeros(len(batch["text"]), dtype=bool))
        batches.append(batch["id"][~repeated].tolist())
        if len(batches) == num_batches:
            break
    return batches


def joined(batches: Sequence[Sequence[int]]) -> list[int]:
    """All ids of batches."""
    return [i for batch in batches for i in batch]
