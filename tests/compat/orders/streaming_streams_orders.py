"""Random epochs of several streams of MosaicML Streaming, and shoal's ids of them.

The ids are those of each rank's batches (``"ranks"``), or of all positions (``"order"``), from sample ``drop_first``.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.partition import Partition
from shoal.orders import Streaming
from shoal.peers.streaming.stream_batches import BATCHINGS
from shoal.peers.streaming.streaming_shuffles import ALGORITHMS

ENVIRONMENT = "streaming"
PER_BATCHING = 1000


def configurations() -> list[dict[str, Any]]:
    """Configurations for every way of batching; the same ones in every process and version."""
    rng = random.Random(9176)
    return [_configuration(rng, batching) for _ in range(PER_BATCHING) for batching in BATCHINGS]


def _configuration(rng: random.Random, batching: str) -> dict[str, Any]:
    most = rng.choice((5, 20, 60))
    shards = [[rng.randint(1, most) for _ in range(rng.randint(1, 6))] for _ in range(rng.randint(1, 4))]
    total, kind = sum(map(sum, shards)), rng.choice(("none", "proportion", "counts"))
    streams: list[dict[str, Any]] = [{"shards": len(each)} for each in shards]
    for stream in streams:
        if kind == "proportion":
            stream["proportion"] = rng.choice((1, 2, rng.uniform(0.1, 1)))
        elif kind == "counts" and rng.random() < 0.8:
            name = rng.choice(("repeat", "choose"))
            stream[name] = rng.uniform(0.3, 3) if name == "repeat" else rng.randint(1, 2 * total)
    nodes = rng.choice((1, 1, 2, 3))
    canonical = nodes * rng.choice((1, 1, 2, 4))
    ranks, batch = rng.randint(1, 3), rng.randint(1, 4)
    whole = nodes * ranks * batch
    is_resumed = batching != "random" or total >= 8 * canonical * ranks
    return {
        "algorithm": rng.choice(ALGORITHMS),
        "shards": shards,
        "streams": streams,
        "epoch_size": None if kind == "counts" else rng.choice((None, None, rng.randint(1, 2 * total), "0.1k")),
        "sampling_method": rng.choice(("balanced", "fixed")),
        "sampling_granularity": rng.choice((1, 1, 3, 10)),
        "batching_method": batching,
        "num_canonical_nodes": canonical,
        "shuffle_block_size": rng.choice((20, 50, 400, 2**18)),
        "physical_nodes": nodes,
        "ranks_per_node": ranks,
        "workers": rng.randint(1, 3),
        "batch_size": batch,
        "drop_first": whole * rng.choice((0, rng.randint(0, total // (8 * whole)))) if is_resumed else 0,
        "seed": rng.choice((9176, rng.randint(0, 2**31))),
        "epoch": rng.randint(0, 20),
        # A node of device_per_stream may end before another; there are no such holes in a global order.
        "kind": "order" if batching == "device_per_stream" and nodes > 1 else rng.choice(("order", "ranks")),
    }


def ids_of(asked: dict[str, Any]) -> Any:
    """The ids that shoal gives, in the form of the configuration's kind."""
    others = ("num_canonical_nodes", "shuffle_block_size", "physical_nodes", "ranks_per_node", "batch_size", "streams")
    sampling = ("epoch_size", "sampling_method", "sampling_granularity", "batching_method")
    own = {name: asked[name] for name in (*others, *sampling)}
    # Every third time the streams are numbered from the last, as if their paths were in another order.
    is_turned = asked["epoch"] % 3 == 0
    shards = np.concatenate(asked["shards"][::-1] if is_turned else asked["shards"])
    if is_turned:
        after = len(shards) - np.cumsum([stream["shards"] for stream in asked["streams"]])
        own["streams"] = [
            stream | {"first_shard": int(first)} for stream, first in zip(asked["streams"], after, strict=True)
        ]
    try:
        order = Streaming(asked["algorithm"], **own, shuffle_seed=asked["seed"], parity=True)
        if _is_refused_there(asked, order, shards):
            return "ValueError"
        bound = order.bind(shards, epoch=asked["epoch"])
        bound.ids(0, 0)
    except UsageError:
        return "ValueError"
    start = asked["drop_first"]
    sizes = np.array([sum(each) for each in asked["shards"]])
    begins = np.cumsum(sizes) - sizes
    moved = np.repeat(sizes.sum() - np.cumsum(sizes) - begins, sizes)  # by how much each id of theirs differs
    renumbered = np.argsort(np.arange(sizes.sum()) + moved).__getitem__ if is_turned else np.asarray
    if asked["kind"] == "order":
        return renumbered(bound.ids(min(start, bound.num_samples), bound.num_samples)).tolist()
    num_ranks = asked["physical_nodes"] * asked["ranks_per_node"]
    partition = Partition(num_ranks * asked["batch_size"], num_ranks)
    if asked["batching_method"] == "device_per_stream":  # where only some ranks have a last batch
        partition = Partition(num_ranks * asked["batch_size"], num_ranks, "drop")
    count = max(0, partition.num_batches(bound.num_samples, start))
    shares = [partition.share(bound, rank, 0, count, start) for rank in range(num_ranks)]
    fresh = [np.where(share.repeated, -1, renumbered(share.ids)) for share in shares]
    batches = [np.split(ids, share.batch_first[1:-1]) for ids, share in zip(fresh, shares, strict=True)]
    return [[some for batch in of_rank if (some := batch[batch >= 0].tolist())] for of_rank in batches]


def _is_refused_there(asked: dict[str, Any], order: Streaming, shards: NDArray[np.int64]) -> bool:
    """Whether Streaming refuses what shoal takes: empty canonical nodes, unused blocks, resumes after the end."""
    choose, proportions = order.stream_epochs(shards).amounts
    is_random = asked["batching_method"] == "random"
    world = asked["physical_nodes"] * asked["ranks_per_node"]
    total = int(choose.sum())
    return (
        (asked["algorithm"] == "py1e" and (total if is_random else choose.min()) < asked["num_canonical_nodes"])
        or (asked["batching_method"] == "device_per_stream" and int(order.block_size * proportions.min()) == 0)
        or (is_random and asked["drop_first"] > total + world - total % world)
    )
