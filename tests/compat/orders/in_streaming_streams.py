"""Runs in Streaming's environment: the ids of epochs of several streams."""

import json
import logging
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from streaming import StreamingDataset
from streaming.base.batching import generate_work
from streaming.base.stream import Stream
from streaming.base.util import number_abbrev_to_int
from streaming.base.world import World

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)


def dataset_of(asked: dict[str, Any]) -> Any:
    """What `generate_work` reads of a StreamingDataset, made as its constructor makes it."""
    shards = [np.array(each) for each in asked["shards"]]
    weights = ("proportion", "repeat", "choose")
    streams = [SimpleNamespace(**{name: each[name] for name in weights if name in each}) for each in asked["streams"]]
    samples = np.array([each.sum() for each in shards])
    size = asked["epoch_size"] and number_abbrev_to_int(asked["epoch_size"])
    epoch_size = Stream.apply_weights.__func__(Stream, streams, samples, size, asked["seed"])
    sizes, counts = np.concatenate(shards), np.array([len(each) for each in shards])
    dataset = SimpleNamespace(
        streams=streams,
        num_streams=len(streams),
        epoch_size=epoch_size,
        samples_per_shard=sizes,
        sample_offset_per_shard=np.cumsum(sizes) - sizes,
        shard_offset_per_stream=np.cumsum(counts) - counts,
        shards_per_stream=counts,
        shuffle=True,
        shuffle_seed=asked["seed"],
        shuffle_algo=asked["algorithm"],
        epoch_seed_change=asked["sampling_method"] == "balanced",
        partition_algo="relaxed",
        initial_physical_nodes=None,
    )
    for name in ("num_canonical_nodes", "shuffle_block_size", "sampling_method", "sampling_granularity", "batch_size"):
        setattr(dataset, name, asked[name])
    dataset.resample_streams = lambda *given: StreamingDataset.resample_streams(dataset, *given)
    return dataset


def ids_of(asked: dict[str, Any]) -> Any:
    nodes, ranks, batch = asked["physical_nodes"], asked["ranks_per_node"], asked["batch_size"]
    try:
        dataset = dataset_of(asked)
        world = World(nodes, ranks, asked["workers"], 0)
        found = generate_work(asked["batching_method"], dataset, world, asked["epoch"], asked["drop_first"])
    except ValueError:
        return "ValueError"
    if asked["kind"] == "order":
        samples_last = asked["batching_method"] in ("stratified", "device_per_stream")
        in_order = found.transpose(3, 2, 0, 1, 4) if samples_last else found.transpose(3, 2, 4, 1, 0)
        in_order = in_order.reshape(-1)
        return in_order[in_order >= 0].tolist()
    steps = found.transpose(3, 2, 0, 1, 4).reshape(-1, nodes * ranks, batch)
    steps = [step for step in steps if step.max() >= 0]
    if asked["batching_method"] == "device_per_stream":
        steps = [step for step in steps if step.min() >= 0]
    return [
        [some for step in steps if (some := [each for each in step[rank].tolist() if each >= 0])]
        for rank in range(nodes * ranks)
    ]


asked = json.loads(Path(sys.argv[1]).read_text())
Path(sys.argv[2]).write_text(json.dumps([ids_of(each) for each in asked]))
