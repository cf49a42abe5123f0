"""WebDataset's shuffles: random configurations, and their ids and ranks by shoal, asked for in pieces out of order."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from shoal.order.registry import named_order


def configurations(count: int = 5000) -> list[dict[str, Any]]:
    """Shards, seeds, buffers, ranks, workers and epochs; some have buffers larger than a tile of the arithmetic."""
    draw = random.Random(20)
    return [one(draw, is_large=number % 250 == 0) for number in range(count)]


def one(draw: random.Random, *, is_large: bool) -> dict[str, Any]:
    """One of them."""
    name = draw.choice(("wds-shuffle", "wds-detshuffle", "wds-resampled"))
    num_shards = draw.choice((1, 2, draw.randint(1, 12), draw.randint(1, 150)))
    most = draw.choice((1, 5, 60)) if num_shards < 20 else 12
    samples = [draw.choice((most, draw.randint(0, most))) for _ in range(num_shards)]
    if is_large:
        samples = [draw.randint(3000, 6000) for _ in range(draw.randint(3, 9))]
    bufsizes = (0, 1, 2, 3, draw.randint(1, 40), draw.randint(1, 800), *((20_000, 17_001) if is_large else ()))
    seed = draw.choice((0, 1, draw.randrange(2**31), draw.randrange(2**64)))
    arguments: dict[str, Any] = {
        "bufsize": draw.choice(bufsizes),
        "initial": draw.choice((100, 0, 1, 2, draw.randint(0, 60), draw.randint(0, 900))),
        "batch_size": draw.choice((1, 2, 7, draw.randint(1, 40))),
        "world_size": draw.choice((1, 1, 2, 3, 8)),
        "num_workers": draw.choice((0, 1, 2, 5)),
        "persistent_workers": draw.random() < 0.7,
        "shard_initial": draw.choice((100, 0, draw.randint(0, 30))),
        "shardshuffle": draw.choice((0, 1, 2, 100, draw.randint(1, 30))),
    }
    if draw.random() < 0.3:
        arguments["shard_seed"] = draw.randrange(2**40)
    if draw.random() < 0.3:
        arguments["sample_seed"] = draw.randrange(2**40)
    if name == "wds-resampled":
        arguments["samples_per_worker"] = draw.randint(1, 20_000 if is_large else 300)
        arguments |= {"split": draw.random() < 0.4, "detshuffle": draw.random() < 0.4}
    else:
        arguments |= {"detshuffle": draw.random() < 0.5, "shuffled_before_split": draw.random() < 0.3}
        if draw.random() < 0.2:
            arguments["list_seed"] = draw.choice((3, "a text", draw.randrange(2**40)))
        if name == "wds-shuffle" and draw.random() < 0.1:
            arguments["sample_seed"] = "a text"
        if not arguments["detshuffle"] and draw.random() < 0.1:
            arguments["shard_seed"] = "17"  # as WDS_SEED gives it
    if not sum(samples):
        samples[0] = 1
    return {"name": name, "samples": samples, "seed": seed, "epoch": draw.choice((0, 0, 1, 2)), "arguments": arguments}


def ids_of(asked: dict[str, Any]) -> list[int]:
    """The ids of an epoch, and then the rank of each."""
    order = named_order(asked["name"], asked["arguments"])
    bound: Any = order.bind(asked["samples"], seed=asked["seed"], epoch=asked["epoch"])
    total = bound.num_samples
    cuts = np.unique(np.random.default_rng(total).integers(0, total + 1, 4)).tolist()
    parts = list(zip([0, *cuts], [*cuts, total], strict=True))
    found = {start: bound.ids(start, stop).tolist() for start, stop in reversed(parts) if start < stop}
    positions = np.arange(total)
    ranks = bound.axis(positions, positions, positions).tolist()
    return [each for start in sorted(found) for each in found[start]] + ranks
