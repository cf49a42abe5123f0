"""Random configurations of MosaicML Streaming, and shoal's ids of them.

The ids are those of each rank's batches (``"ranks"``), of each global batch, sorted (``"batches"``), or of the global
order (``"order"``), from sample ``drop_first`` of the epoch.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.order.partition import Partition
from shoal.orders import Streaming
from shoal.peers.streaming.streaming_shuffles import ALGORITHMS

PER_ALGORITHM = 2000
_NODES = (1, 1, 1, 2, 2, 3, 4, 6, 8, 12, 16, 64)


def configurations() -> list[dict[str, Any]]:
    """Configurations for every algorithm; the same ones in every process and version."""
    rng = random.Random(9176)
    return [_configuration(rng, algorithm) for _ in range(PER_ALGORITHM) for algorithm in ALGORITHMS]


def _configuration(rng: random.Random, algorithm: str) -> dict[str, Any]:
    most = rng.choice((2, 5, 20, 100))
    shards = [rng.randint(1, most) for _ in range(rng.randint(1, rng.choice((3, 10, 40))))]
    canonical, ranks, workers, batch = (
        min(rng.choice(_NODES), sum(shards)),
        rng.randint(1, 6),
        rng.randint(1, 4),
        rng.randint(1, 6),
    )
    fitting = [nodes for nodes in range(1, 17) if canonical % nodes == 0 or nodes % canonical == 0]
    nodes = initial = rng.choice(fitting)
    kind = rng.choice(("ranks", "ranks", "ranks", "order", "batches"))
    others = [other for other in range(1, 17) if other not in fitting]
    if kind == "batches" and others:
        nodes = rng.choice(others)
        batch *= initial
    whole = nodes * ranks * batch
    drop = whole * rng.randint(0, sum(shards) // (2 * whole)) if sum(shards) >= 4 * nodes * ranks else 0
    return {
        "algorithm": algorithm,
        "shards": shards,
        "num_canonical_nodes": canonical,
        "shuffle_block_size": rng.choice((2, 3, 10, 50, 400, 2**18)),
        "partition": "relaxed" if nodes != initial else rng.choice(("orig", "relaxed")),
        "physical_nodes": nodes,
        "initial_physical_nodes": initial if nodes != initial else rng.choice((None, initial)),
        "ranks_per_node": ranks,
        "workers": workers,
        "batch_size": batch,
        "drop_first": rng.randint(0, sum(shards)) if kind == "order" else drop,
        "seed": rng.choice((9176, rng.randint(0, 2**31))),
        "epoch": rng.randint(0, 20),
        "kind": kind,
    }


def ids_of(asked: dict[str, Any]) -> Any:
    """The ids that shoal gives, in the form of the configuration's kind."""
    names = ("num_canonical_nodes", "shuffle_block_size", "partition", "physical_nodes", "ranks_per_node")
    own = {name: asked[name] for name in (*names, "initial_physical_nodes")}
    order = Streaming(asked["algorithm"], **own, parity=True)
    shards = np.array(asked["shards"])
    try:
        bound = order.bind(shards, seed=asked["seed"], epoch=asked["epoch"])
    except UsageError:
        return "ValueError"  # neither has repeats for so few samples
    checkpoint = {
        "epoch": asked["epoch"],
        "sample_in_epoch": asked["drop_first"],
        "num_canonical_nodes": asked["num_canonical_nodes"],
        "shuffle_seed": asked["seed"],
        "initial_physical_nodes": asked["initial_physical_nodes"],
    }
    adopted = order.adopted(checkpoint, shards, asked["seed"])
    assert adopted is not None
    assert adopted.order.parameters == order.parameters
    start = adopted.position
    if asked["kind"] == "order":
        return bound.ids(start, max(start, sum(asked["shards"]))).tolist()
    num_ranks = asked["physical_nodes"] * asked["ranks_per_node"]
    partition = Partition(num_ranks * asked["batch_size"], num_ranks)
    count = partition.num_batches(bound.num_samples, start)
    shares = [partition.share(bound, rank, 0, count, start) for rank in range(num_ranks)]
    # Without those with which shoal fills up a last batch of fewer samples than ranks.
    fresh = [np.where(share.repeated, -1, share.ids) for share in shares]
    batches = [
        [batch[batch >= 0] for batch in np.split(ids, share.batch_first[1:-1])]
        for ids, share in zip(fresh, shares, strict=True)
    ]
    if asked["kind"] == "batches":
        return [sorted(np.concatenate(of_ranks).tolist()) for of_ranks in zip(*batches, strict=True)]
    return [[batch.tolist() for batch in of_rank if len(batch)] for of_rank in batches]
