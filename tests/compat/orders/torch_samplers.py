"""Compares the orders of torch's samplers with torch's own, id for id, in random configurations.

``python -m tests.compat.orders.torch_samplers [--num 4000] [--digests]`` runs samplers, loaders, torchdata's
``StatefulDataLoader`` and states of the latter, and prints how many configurations there were and how many differ; exit
code 1 if any does. One of them is the smallest permutation that torch makes in its second way, of 215 million items;
``--no-large`` leaves it out. ``--digests`` prints what tests/order/test_torch_orders.py has stored.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
import warnings
from collections import Counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tests.compat.peers.environments import in_own_cache
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader import sampler as stateful_samplers

from shoal.orders import TorchDistributed, TorchRandom
from shoal.peers.torch_samplers.torch_numbers import PAIRED_PERMUTATION

Wanted = dict[str, Any]
_MOST_SHOWN = 5


def size_of(draw: random.Random) -> int:
    """A number of samples: small, or near a border of the tiles in which permutations are made."""
    return 65_536 + draw.randint(-1, 1) if draw.random() < 0.05 else draw.randint(1, draw.choice((12, 3000)))


def for_distributed(draw: random.Random) -> Wanted:
    """One rank of a `DistributedSampler`."""
    ranks = draw.choice((1, 2, 3, 8, draw.randint(1, 300)))
    about = {"kind": "distributed", "size": size_of(draw), "seed": draw.choice((0, draw.randrange(2**62)))}
    chosen = {"shuffle": draw.random() < 0.85, "drop_last": draw.random() < 0.5}
    return about | chosen | {"ranks": ranks, "rank": draw.randrange(ranks), "epoch": draw.randrange(2**20)}


def for_random(draw: random.Random, *, workers: bool = False) -> Wanted:
    """Epochs of a loader over a `RandomSampler`."""
    kind, is_stateful = draw.choice(("sampler", "loader", "global", "epoch")), draw.random() < 0.4
    replacement = draw.random() < 0.25
    if is_stateful and (kind == "global" or (kind == "loader" and replacement)):
        kind = "sampler"
    size = draw.randint(1, 40) if workers else size_of(draw)
    return {
        "kind": "random",
        "size": size,
        "seed": draw.choice((0, 1, draw.randrange(2**63))),
        "generator": kind,
        "replacement": replacement,
        "num_samples": draw.choice((None, None, draw.randint(1, min(3 * size, 5000)))),
        "stateful": is_stateful,
        "workers": draw.choice((1, 2)) if workers else 0,
        "persistent": workers and draw.random() < 0.5,
        "epochs": draw.randint(1, 3),
        "batch": draw.choice((1, 7, 64)) if size < 100 else 512,
        "stop": draw.random(),
    }


def order_of(wanted: Wanted) -> TorchRandom:
    """The order of such a loader."""
    return TorchRandom(
        wanted["generator"],
        replacement=wanted["replacement"],
        num_samples=wanted["num_samples"],
        stateful=wanted["stateful"],
        workers=wanted["stateful"] and wanted["workers"] > 0,
        persistent_workers=wanted["persistent"],
    )


def loader_of(wanted: Wanted) -> tuple[Any, torch.Generator]:
    """The loader itself, over numbers from 0, and the generator that was seeded for it."""
    generator = torch.Generator().manual_seed(wanted["seed"])
    torch.manual_seed(wanted["seed"])
    made = stateful_samplers.RandomSampler if wanted["stateful"] else RandomSampler
    data = range(wanted["size"])
    its_own = None if wanted["generator"] == "global" else generator
    sampler = made(data, wanted["replacement"], wanted["num_samples"], its_own)
    loader: Any = (StatefulDataLoader if wanted["stateful"] else DataLoader)(
        data,  # type: ignore[arg-type]
        batch_size=wanted["batch"],
        sampler=sampler,
        num_workers=wanted["workers"],
        persistent_workers=wanted["persistent"],
        generator=generator if wanted["generator"] == "loader" else None,
    )
    return loader, generator


def is_equal(wanted: Wanted) -> bool:
    """Whether shoal's ids are those of torch."""
    size, seed = wanted["size"], wanted["seed"]
    if wanted["kind"] == "distributed":
        order = TorchDistributed(wanted["ranks"], shuffle=wanted["shuffle"], drop_last=wanted["drop_last"])
        bound = order.bind([size], seed=seed, epoch=wanted["epoch"])
        named = {"shuffle": wanted["shuffle"], "drop_last": wanted["drop_last"], "seed": seed}
        sampler = DistributedSampler(range(size), wanted["ranks"], wanted["rank"], **named)  # type: ignore[var-annotated, arg-type]
        sampler.set_epoch(wanted["epoch"])
        positions = np.arange(bound.num_samples)
        mine = bound.axis(positions, positions, positions) == wanted["rank"]
        return list(sampler) == bound.ids(0, bound.num_samples)[mine].tolist()
    loader, generator = loader_of(wanted)
    order_of_epochs = order_of(wanted)
    for epoch in range(wanted["epochs"]):
        if wanted["generator"] == "epoch":
            generator.manual_seed(seed + epoch)
        bound = order_of_epochs.bind([size], seed=seed, epoch=epoch)
        expected, state, delivered = [], None, 0
        for batch in loader:
            expected += batch.tolist()
            if wanted["stateful"] and state is None and len(expected) >= wanted["stop"] * bound.num_samples:
                state, delivered = loader.state_dict(), len(expected)
        if bound.ids(0, bound.num_samples).tolist() != expected:
            return False
        if state is not None and not goes_on(wanted, state, epoch, expected[delivered:]):
            return False
    return True


def goes_on(wanted: Wanted, state: Any, epoch: int, expected: list[int]) -> bool:
    """Whether an order that knows nothing but the kind of loader goes on where its state is."""
    samples = np.array([wanted["size"]])
    plain = TorchRandom(
        wanted["generator"],
        replacement=wanted["replacement"],
        num_samples=wanted["num_samples"],
        persistent_workers=wanted["persistent"],
    )
    found = plain.adopted(state, samples, wanted["seed"])
    if found is None or found.order != order_of(wanted):
        return False
    bound = found.order.bind(samples, seed=found.seed, epoch=found.epoch)
    tells_epoch = wanted["size"] > 1 or wanted["replacement"]  # a permutation of one item takes no numbers
    if not expected:
        return found.position == 0 and (found.epoch == epoch + 1 or not tells_epoch)
    return (found.epoch == epoch or not tells_epoch) and bound.ids(
        found.position, bound.num_samples
    ).tolist() == expected


def is_large_equal() -> bool:
    """Whether the smallest permutation of torch's second way is the same; 4 GB."""
    theirs = torch.randperm(PAIRED_PERMUTATION, generator=torch.Generator().manual_seed(9)).numpy()
    bound = TorchRandom("epoch").bind([PAIRED_PERMUTATION], seed=9)
    step = 1 << 22
    starts = range(0, PAIRED_PERMUTATION, step)
    return all(
        np.array_equal(bound.ids(start, min(start + step, PAIRED_PERMUTATION)), theirs[start : start + step])
        for start in starts
    )


def digests() -> None:
    """Print digests of what torch gives."""
    draw = random.Random(1)
    for number in range(24):
        wanted = for_random(draw, workers=number % 4 == 0)
        loader, generator = loader_of(wanted)
        ids: list[int] = []
        for epoch in range(wanted["epochs"]):
            if wanted["generator"] == "epoch":
                generator.manual_seed(wanted["seed"] + epoch)
            ids = [i for batch in loader for i in batch.tolist()]
        told = f"{wanted['size']}, {wanted['seed']}, {wanted['epochs'] - 1}"
        print(f'    ({order_of(wanted)!r}, {told}, "{digest(np.array(ids))}"),')
    for epoch, ranks in enumerate((1, 3, 8, 64)):
        ids = [0] * (-(-1000 // ranks) * ranks)
        for rank in range(ranks):
            sampler: Any = DistributedSampler(range(1000), ranks, rank, seed=7)  # type: ignore[arg-type]
            sampler.set_epoch(epoch)
            ids[rank::ranks] = list(sampler)
        print(f'    (TorchDistributed({ranks}), 1000, 7, {epoch}, "{digest(np.array(ids))}"),')


def digest(ids: NDArray[np.int64]) -> str:
    """As in tests/order/test_torch_orders.py."""
    return hashlib.blake2b(ids.astype("<u8").tobytes(), digest_size=8).hexdigest()


def main() -> int:
    """Compare them, and return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--num", type=int, default=4000)
    parser.add_argument("--no-large", action="store_true")
    parser.add_argument("--digests", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.digests:
        digests()
        return 0
    draw, began = random.Random(20), time.perf_counter()
    wanted = [for_distributed(draw) if number % 2 else for_random(draw) for number in range(asked.num)]
    wanted += [for_random(draw, workers=True) for _ in range(asked.num // 40)]
    different = [each for each in wanted if not is_equal(each)]
    counts = Counter("with workers" if each.get("workers") else each["kind"] for each in wanted)
    if not asked.no_large:
        counts["of 215 million"] = 1
        different += [] if is_large_equal() else [{"size": PAIRED_PERMUTATION}]
    told = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    title = f"torch {torch.__version__}"
    print(f"{title:<24} {sum(counts.values()):,} configurations ({told}), {len(different):,} differ", end="; ")
    print(f"{time.perf_counter() - began:.0f} s")
    for each in different[:_MOST_SHOWN]:
        print(f"    {each}")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(in_own_cache(main))
