"""Runs in WebDataset's environment: the ids of configurations, and then the rank of each."""

from __future__ import annotations

import itertools
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import webdataset as wds

warnings.simplefilter("ignore")


def expander(samples: list[int]) -> Any:
    """A stage in place of those that open shards: the ids of the samples of each shard."""
    firsts = [0, *itertools.accumulate(samples)]

    def expanded(source: Any) -> Iterator[int]:
        for shard in source:
            number = int(shard["url"])
            yield from range(firsts[number], firsts[number] + samples[number])

    return expanded


def shuffle_of(kind: str, bufsize: int, initial: int, seed: Any) -> Any:
    """A stage, or none."""
    if bufsize < 1:
        return None
    made = wds.detshuffle if kind == "det" else wds.shuffle
    return made(bufsize, initial=initial, seed=seed)


def pipeline_of(asked: dict[str, Any]) -> Any:
    """The pipeline; by the constructor of WebDataset where that can have it."""
    name, seed, given = asked["name"], asked["seed"], asked["arguments"]
    urls = [str(number) for number in range(len(asked["samples"]))]
    shard_seed, sample_seed = given.get("shard_seed", seed), given.get("sample_seed", seed)
    expand = expander(asked["samples"])
    if name == "wds-resampled":
        source = wds.ResampledShards(urls, deterministic=True, seed=seed)
        splits = [wds.split_by_node, wds.split_by_worker] if given["split"] else []
        shards = shuffle_of("", given["shardshuffle"], given["shard_initial"], shard_seed)
        kind = "det" if given["detshuffle"] else ""
        samples = shuffle_of(kind, given["bufsize"], given["initial"], sample_seed)
        made = wds.DataPipeline(source, *splits, shards, expand, samples)
        return made.with_epoch(given["samples_per_worker"])
    samples = shuffle_of("det" if name == "wds-detshuffle" else "", given["bufsize"], given["initial"], sample_seed)
    if "list_seed" not in given and not given["shuffled_before_split"] and given["shard_initial"] == 100:
        made = wds.WebDataset(
            urls,
            shardshuffle=given["shardshuffle"],
            detshuffle=given["detshuffle"],
            seed=shard_seed,
            nodesplitter=wds.split_by_node,
            empty_check=False,
        )
        assert type(made.pipeline[-3]).__name__ == "StreamingOpen", made.pipeline
        made.pipeline[-3:] = [expand]
        if name == "wds-shuffle":
            return made.shuffle(given["bufsize"], initial=given["initial"], seed=sample_seed)
        return made.compose(samples) if samples is not None else made
    shards = shuffle_of("det" if given["detshuffle"] else "", given["shardshuffle"], given["shard_initial"], shard_seed)
    splits = [wds.split_by_node, wds.split_by_worker]
    source = wds.SimpleShardList(urls, seed=given.get("list_seed"))
    stages = [shards, *splits] if given["shuffled_before_split"] else [*splits, shards]
    return wds.DataPipeline(source, *stages, expand, samples)


def stream_of(asked: dict[str, Any], rank: int, worker: int) -> list[int]:
    """The samples of a worker in an epoch."""
    given = asked["arguments"]
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(given["world_size"]))
    os.environ.update(WORKER=str(worker), NUM_WORKERS=str(max(1, given["num_workers"])))
    pipeline = pipeline_of(asked)
    lives = given["persistent_workers"] or not given["num_workers"]
    for _ in range(asked["epoch"] if lives else 0):
        for _ in pipeline:
            pass
    return list(pipeline)


def ids_of(asked: dict[str, Any]) -> list[int]:
    """The batches of each worker in turn, in a rank; of each rank in turn, in a step."""
    given = asked["arguments"]
    size, ranks = given["batch_size"], []
    for rank in range(given["world_size"]):
        workers = [stream_of(asked, rank, worker) for worker in range(max(1, given["num_workers"]))]
        batches = [[stream[i : i + size] for i in range(0, len(stream), size)] for stream in workers]
        turns = itertools.zip_longest(*batches)
        ranks.append([(rank, batch) for turn in turns for batch in turn if batch is not None])
    steps = [each for step in itertools.zip_longest(*ranks) for each in step if each is not None]
    return [i for _, batch in steps for i in batch] + [rank for rank, batch in steps for _ in batch]


asked = json.loads(Path(sys.argv[1]).read_text())
Path(sys.argv[2]).write_text(json.dumps([ids_of(each) for each in asked]))
