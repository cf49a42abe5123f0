"""Runs in Grain's environment: the ids of configurations."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import grain
from grain.experimental import WindowShuffleIterDataset, WindowShuffleMapDataset


def ids_of(asked: dict[str, Any]) -> list[int]:
    """Ids at positions ``[first, stop)`` of an epoch."""
    data, first, stop = grain.MapDataset.range(asked["samples"]), asked["first"], asked["stop"]
    begin = asked["epoch"] * asked["samples"]
    if asked["kind"] == "shuffle":
        shuffled = data.shuffle(seed=asked["seed"]).repeat()
        return [int(shuffled[begin + position]) for position in range(first, stop)]
    if asked["kind"] == "map":
        shuffled = WindowShuffleMapDataset(data, window_size=asked["window"], seed=asked["seed"]).repeat()
        return [int(shuffled[begin + position]) for position in range(first, stop)]
    endless = data.repeat().to_iter_dataset(grain.ReadOptions(num_threads=0))
    shuffled = iter(WindowShuffleIterDataset(endless, window_size=asked["window"], seed=asked["seed"]))
    ids = [int(next(shuffled)) for _ in range(begin + stop)]
    return ids[begin + first :]


asked = json.loads(Path(sys.argv[1]).read_text())
Path(sys.argv[2]).write_text(json.dumps([ids_of(each) for each in asked]))
