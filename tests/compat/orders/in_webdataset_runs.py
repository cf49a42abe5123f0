"""Runs in an environment with WebDataset and torch: real runs of a pipeline in torch's loader, over tars."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import webdataset as wds

warnings.simplefilter("ignore")


def pipeline_of(asked: dict[str, Any]) -> Any:
    """The pipeline of a rank; the one that runs is told by the environment."""
    seed, urls = asked["seed"], [str(path) for path in sorted(Path(asked["directory"]).glob("*.tar"))]
    if asked["name"] == "wds-resampled":
        source = wds.ResampledShards(urls, deterministic=True, seed=seed)
        stages = [wds.tarfile_to_samples(), wds.shuffle(asked["bufsize"], seed=seed)]
        made = wds.DataPipeline(source, *stages, wds.to_tuple("__key__"), wds.batched(asked["batch"]))
        return made.with_epoch(asked["samples_per_worker"] // asked["batch"])
    is_det = asked["name"] == "wds-detshuffle"
    named = {"shardshuffle": 100, "detshuffle": is_det, "nodesplitter": wds.split_by_node, "empty_check": False}
    made = wds.WebDataset(urls, seed=seed, **named)
    stage = wds.detshuffle if is_det else wds.shuffle
    return made.compose(stage(asked["bufsize"], seed=seed)).decode().to_tuple("__key__").batched(asked["batch"])


def ids_of(asked: dict[str, Any]) -> Any:
    """The batches of each rank in the epoch that is asked for; for a single one they are joined."""
    found = []
    for rank in range(asked["ranks"]):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(asked["ranks"]))
        loader = wds.WebLoader(
            pipeline_of(asked),
            batch_size=None,
            num_workers=asked["workers"],
            persistent_workers=asked["persistent"],
        )
        for _ in range(asked["epoch"] + 1):
            batches = [[int(key) for key in keys] for (keys,) in loader]
        found.append(batches if asked["ranks"] > 1 else [[i for batch in batches for i in batch]])
    return found


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps([ids_of(each) for each in asked]))
