"""Grain's shuffles: random configurations, and their ids by shoal."""

from __future__ import annotations

import random
from typing import Any

from shoal.orders import GrainShuffle, GrainWindowShuffle


def configurations(count: int = 2000) -> list[dict[str, Any]]:
    """Sizes near powers of two among them, where blocks of the cipher change."""
    draw = random.Random(20)
    found: list[dict[str, Any]] = []
    for number in range(count):
        kind = draw.choice(("shuffle", "map", "iter"))
        near = 2 ** draw.randint(1, 11) + draw.randint(-1, 2)
        samples = max(1, draw.choice((near, draw.randint(1, 3000))))
        if number < 12:
            samples = 2 ** draw.choice((16, 17, 18)) + draw.randint(-1, 2)
        epoch = draw.choice((0, 0, 1, 2, 5))
        seed = draw.choice((0, 1, draw.randrange(2**31), 2**32 - 1 if kind == "shuffle" else 7))
        if kind != "shuffle":
            samples = min(samples, 150)
        window = draw.choice((1, draw.randint(16, 200), draw.randint(100, 200), samples))
        first = draw.randrange(samples)
        stop = min(samples, first + draw.randint(1, 200))
        found.append({"kind": kind, "samples": samples, "epoch": epoch, "seed": seed, "window": window,
                      "first": first, "stop": stop})  # fmt: skip
    return found


def ids_of(asked: dict[str, Any]) -> list[int]:
    """Ids at positions ``[first, stop)`` of an epoch."""
    if asked["kind"] == "shuffle":
        order: Any = GrainShuffle(parity=True)
    else:
        order = GrainWindowShuffle(asked["window"], asked["kind"], parity=True)
    bound = order.bind([asked["samples"]], seed=asked["seed"], epoch=asked["epoch"])
    ids: list[int] = bound.ids(asked["first"], asked["stop"]).tolist()
    return ids
