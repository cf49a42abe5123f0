"""Runs in Streaming's environment: the ids of configurations."""

import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from streaming.base.partition import get_partitions
from streaming.base.shuffle import get_shuffle

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)


def ids_of(asked: dict[str, Any]) -> Any:
    shards = np.array(asked["shards"])
    nodes, ranks, batch = asked["physical_nodes"], asked["ranks_per_node"], asked["batch_size"]
    try:
        numbers = get_partitions(
            asked["partition"],
            int(shards.sum()),
            asked["num_canonical_nodes"],
            nodes,
            ranks,
            asked["workers"],
            batch,
            asked["drop_first"],
            asked["initial_physical_nodes"],
        )
    except ValueError as error:
        return type(error).__name__
    ids = get_shuffle(
        asked["algorithm"],
        shards,
        asked["num_canonical_nodes"],
        asked["seed"],
        asked["epoch"],
        asked["shuffle_block_size"],
    )
    found = np.where(numbers < 0, -1, ids[numbers])  # nodes, ranks, workers, batches of a worker, samples
    if asked["kind"] == "order":
        of_ranks = found.transpose(3, 2, 4, 1, 0).reshape(-1)  # a rank's samples in turn: steps, then nodes last
        start = asked["drop_first"] - asked["drop_first"] % nodes
        return of_ranks[of_ranks >= 0][: max(0, int(shards.sum()) - start)].tolist()
    steps = found.transpose(3, 2, 0, 1, 4).reshape(-1, nodes * ranks, batch)
    if asked["kind"] == "batches":
        return [batch for step in steps if (batch := sorted(step[step >= 0].tolist()))]
    return [
        [some for step in steps if (some := [each for each in step[rank].tolist() if each >= 0])]
        for rank in range(nodes * ranks)
    ]


asked = json.loads(Path(sys.argv[1]).read_text())
Path(sys.argv[2]).write_text(json.dumps([ids_of(each) for each in asked]))
