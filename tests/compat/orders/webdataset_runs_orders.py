"""Real runs with WebDataset over tars, in torch's loader; shoal gives their first part and goes on with them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.compat.peers.environments import HOME
from tests.samples import write_tar

import shoal

ENVIRONMENT = "webdataset-torch"
_ALIKE = 24  # shards of 12 samples, for ranks with equal batches


def configurations(count: int = 60) -> list[dict[str, Any]]:
    """Runs of some ranks and workers; shards of one rank have any sizes, those of several have equal ones."""
    rng = random.Random(20)
    return [_configuration(rng, number) for number in range(count)]


def _configuration(rng: random.Random, number: int) -> dict[str, Any]:
    name = ("wds-shuffle", "wds-detshuffle", "wds-resampled")[number % 3]
    ranks, workers = rng.choice(((1, 0), (1, 0), (1, 2), (2, 0), (2, 2), (3, 2)))
    sizes = [12] * _ALIKE if ranks > 1 else [rng.randint(0, 30) for _ in range(rng.randint(1, 15))] + [5]
    batch = rng.choice((1, 3, 4)) if ranks > 1 else rng.choice((1, 7, 10))
    return {
        "directory": str(_written(sizes)),
        "name": name,
        "seed": rng.choice((0, rng.randrange(2**40))),
        "bufsize": rng.choice((2, 20, 300)),
        "samples_per_worker": 12 * batch,
        "batch": batch,
        "ranks": ranks,
        "workers": workers,
        "persistent": workers > 0 and rng.random() < 0.7,
        "epoch": rng.randint(0, 2),
        "steps": rng.randint(0, 12),
    }


def _written(sizes: list[int]) -> Path:
    """A folder of tars with so many samples each, whose keys are the ids; written once."""
    directory = HOME.parent / "webdataset-runs" / "-".join(map(str, sizes))[:200]
    directory.mkdir(parents=True, exist_ok=True)
    first = 0
    for shard, size in enumerate(sizes):
        samples = [{"__key__": f"{i:06d}".encode(), "txt": b"text"} for i in range(first, first + size)]
        write_tar(directory / f"train-{shard:06d}.tar", samples)
        first += size
    return directory


def ids_of(asked: dict[str, Any]) -> Any:
    """The batches of each rank, of which another stream has those from a step on.

    Of a single rank they are joined: behind a worker's last, short batch WebDataset's stay short, and ours are whole.
    """
    arguments = {"bufsize": asked["bufsize"], "batch_size": asked["batch"], "world_size": asked["ranks"]}
    arguments |= {"num_workers": asked["workers"], "persistent_workers": asked["persistent"]}
    if asked["name"] == "wds-resampled":
        arguments["samples_per_worker"] = asked["samples_per_worker"]
    ds = shoal.open(f"{asked['directory']}/*.tar").shuffle(asked["name"], seed=asked["seed"], **arguments)
    ds = ds.to_tuple("__key__").batch(asked["batch"])
    found = []
    for rank in range(asked["ranks"]):
        before, after = (ds.partition(rank=rank, world_size=asked["ranks"]) for _ in range(2))
        before.set_epoch(asked["epoch"])
        of_step = asked["batch"] * asked["ranks"]
        steps = min(asked["steps"], (ds.num_samples - 1) // of_step)
        after.load_state_dict(after.state_at(steps * of_step, epoch=asked["epoch"]))
        batches = [_numbers(batch) for batch, _ in zip(before, range(steps), strict=False)]
        batches += [_numbers(batch) for batch in after]
        found.append(batches if asked["ranks"] > 1 else [[i for batch in batches for i in batch]])
    return found


def _numbers(batch: Any) -> list[int]:
    return [int(key) for key in batch[0]]
