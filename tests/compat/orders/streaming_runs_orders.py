"""Real runs with MosaicML Streaming's loader, of which shoal does the first part, takes the checkpoint and goes on."""

from __future__ import annotations

import random
from typing import Any

from tests.environments import ROOT

import shoal
from shoal.peers.streaming.streaming_shuffles import ALGORITHMS

ENVIRONMENT = "streaming"


def configurations() -> list[dict[str, Any]]:
    """A few tens of runs over 200 documents in four shards; epochs of them, and a checkpoint in the last one."""
    rng = random.Random(9176)
    return [_configuration(rng, algorithm) for _ in range(8) for algorithm in ALGORITHMS]


def _configuration(rng: random.Random, algorithm: str) -> dict[str, Any]:
    batch = rng.choice((1, 7, 16))
    return {
        "directory": "tests/guides/mds",
        "shuffle_algo": algorithm,
        "shuffle_seed": rng.choice((9176, rng.randint(0, 2**31))),
        "shuffle_block_size": rng.choice((None, 30, 100)),
        "num_canonical_nodes": rng.choice((None, 1, 2, 3)),
        "batch_size": batch,
        "workers": rng.choice((0, 0, 0, 2)),
        "epoch": rng.randint(0, 2),
        "seen": rng.randint(1, 199 // batch),
    }


def rest_of(asked: dict[str, Any], checkpoint: dict[str, Any]) -> Any:
    """The rest of the epoch, by Streaming's own checkpoint; what came before it is compared, too."""
    given = {name: asked[name] for name in ("shuffle_block_size", "num_canonical_nodes") if asked[name] is not None}
    before, after = (
        shoal.open(ROOT / asked["directory"])
        .shuffle(asked["shuffle_algo"], seed=seed, parity=True, **given)
        .batch(asked["batch_size"])
        for seed in (asked["shuffle_seed"], None)  # the second has the seed from the checkpoint
    )
    before.set_epoch(asked["epoch"])
    first = [batch["id"].tolist() for batch, _ in zip(before, range(asked["seen"]), strict=False)]
    if first != checkpoint["before"]:
        return first
    after.load_state_dict(checkpoint["state"])
    return [batch["id"].tolist() for batch in after]
