"""LitData's shuffle: random configurations, and their ids by shoal."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from shoal.orders import LitData


def configurations(count: int = 2500) -> list[dict[str, Any]]:
    """Layouts of chunks and runs; the last thirty by a real loader with workers."""
    draw = random.Random(21)
    found: list[dict[str, Any]] = []
    for number in range(count):
        is_loaded = number >= count - 30
        chunks = [draw.choice((draw.randint(1, 12), draw.randint(1, 600))) for _ in range(draw.randint(1, 12))]
        found.append({
            "chunks": [(each := draw.randint(2, 40))] * draw.randint(0, 5) + [each - 1] if is_loaded else chunks,
            "seed": draw.choice((42, 0, draw.randrange(2**32))),
            "epoch": draw.choice((0, 0, 1, 5)),
            "world_size": 1 if is_loaded else draw.choice((1, 1, 2, 3, 8)),
            "num_workers": draw.choice((0, 2)) if is_loaded else draw.choice((0, 1, 2, 3)),
            "batch_size": draw.choice((1, 2, 5, 16)),
            "drop_last": draw.choice((None, True, False)),
            "item_shuffle_window": draw.choice((256, 256, 0, 1, 7)),
            "is_loaded": is_loaded,
            "stops": is_loaded and number % 2 == 0,
        })  # fmt: skip
    return found


def rest_of(asked: dict[str, Any], checkpoint: dict[str, Any]) -> list[int]:
    """Ids of the rest of the epoch after a checkpoint of LitData's loader."""
    found = LitData().adopted(checkpoint, np.array(asked["chunks"]), asked["seed"])
    assert found is not None
    bound = found.order.bind(asked["chunks"], seed=found.seed, epoch=found.epoch)
    ids: list[int] = bound.ids(found.position, bound.num_samples).tolist()
    return ids


def ids_of(asked: dict[str, Any]) -> list[int]:
    """Ids of an epoch in the order of steps, ranks and workers."""
    names = ("world_size", "num_workers", "batch_size", "drop_last", "item_shuffle_window")
    order = LitData(**{name: asked[name] for name in names})
    bound = order.bind(asked["chunks"], seed=asked["seed"], epoch=asked["epoch"])
    ids: list[int] = bound.ids(0, bound.num_samples).tolist()
    return ids
