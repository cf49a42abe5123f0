"""Runs in LitData's environment: the ids of configurations, by its shuffler or by its loader."""

from __future__ import annotations

import copy
import itertools
import json
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from litdata import StreamingDataLoader, StreamingDataset
from litdata.streaming.item_loader import Interval
from litdata.streaming.shuffle import FullShuffle
from litdata.streaming.writer import BinaryWriter
from litdata.utilities.env import _DistributedEnv


def ids_of(asked: dict[str, Any]) -> Any:
    """Ids in the order of steps, ranks and workers; or of the rest of an epoch, with a checkpoint."""
    if asked["is_loaded"]:
        return loaded_ids(asked)
    borders = np.cumsum([0, *asked["chunks"]]).tolist()
    intervals = [Interval(first, first, end, end) for first, end in itertools.pairwise(borders)]
    reader = SimpleNamespace(_config=None, _try_load_config=None, _max_cache_size=0)
    cache = SimpleNamespace(get_chunk_intervals=lambda: intervals, _reader=reader)
    drop_last = asked["world_size"] > 1 if asked["drop_last"] is None else asked["drop_last"]
    shuffle = FullShuffle(cache, asked["seed"], drop_last, asked["item_shuffle_window"])
    workers, size, epoch = max(1, asked["num_workers"]), asked["batch_size"], asked["epoch"] + 1
    environment = _DistributedEnv(asked["world_size"], 0, 1)
    chunks, parts = shuffle.get_chunks_and_intervals_per_workers(environment, workers, size, epoch)
    streams = [
        [
            item
            for chunk, part in zip(of_worker, its_parts, strict=True)
            for item in shuffle(np.arange(part[1], part[2]), len(intervals), epoch, int(chunk))
        ]
        for of_worker, its_parts in zip(chunks, parts, strict=True)
    ]
    ranks = []
    for rank in range(asked["world_size"]):
        batches = [
            [stream[first : first + size] for first in range(0, len(stream), size)]
            for stream in streams[rank * workers : (rank + 1) * workers]
        ]
        ranks.append([batch for turn in itertools.zip_longest(*batches) for batch in turn if batch is not None])
    steps = itertools.zip_longest(*ranks)
    return [int(item) for step in steps for batch in step if batch is not None for item in batch]


def loaded_ids(asked: dict[str, Any]) -> Any:
    """Ids that a real loader delivers, of chunks with just these samples."""
    directory = Path(tempfile.mkdtemp())
    try:
        writer = BinaryWriter(str(directory), chunk_size=asked["chunks"][0])
        for number in range(sum(asked["chunks"])):
            writer[number] = number
        writer.done()
        writer.merge()
        dataset = StreamingDataset(
            str(directory), shuffle=True, seed=asked["seed"], drop_last=asked["drop_last"],
            item_shuffle_window=asked["item_shuffle_window"],
        )  # fmt: skip
        loader = StreamingDataLoader(dataset, batch_size=asked["batch_size"], num_workers=asked["num_workers"])
        checkpoint: dict[str, Any] | None = None
        rest: list[int] = []
        for number in range(asked["epoch"] + 1):
            ids = []
            for step, batch in enumerate(loader):
                ids += [int(item) for item in batch]
                rest += [int(item) for item in batch] if checkpoint else []
                if asked["stops"] and number == asked["epoch"] and step == 1:
                    checkpoint, rest = copy.deepcopy(loader.state_dict()), []
        return {"checkpoint": checkpoint, "rest": rest} if checkpoint else ids
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps([ids_of(each) for each in asked]))
