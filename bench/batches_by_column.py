"""Time, memory and reads of batches by column, within limits, and balanced by a column.

``python bench/batches_by_column.py --samples 1e7`` runs each order in a process of its own, for its own peak, and then
counts the ranks that read a chunk, the batches of P classes, and the work of the ranks.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.order.groups.cost_batches import CostBatches
from shoal.order.groups.group_batches import GroupBatches
from shoal.order.groups.grouped_order import GroupedOrder
from shoal.order.partition import Partition
from shoal.order.sequences.packed_order import PackedOrder
from shoal.order.weighed_order import WeighedOrder
from shoal.orders import BoundOrder, Window

CHUNK_SAMPLES = 100
BUCKETS = 20
LIMITS = (8192, 64)


def window(num_samples: int, nodes: int = 16) -> BoundOrder:
    chunks = Window(chunks=1024, num_canonical_nodes=nodes)
    return chunks.bind(np.full(num_samples // CHUNK_SAMPLES, CHUNK_SAMPLES), seed=0, epoch=0)


def groups_of(num_samples: int, num_groups: int) -> NDArray[np.int32]:
    """Groups of unequal sizes: the most frequent has about three times the samples of the mean."""
    shares = 1 / np.sqrt(np.arange(1, num_groups + 1))
    numbers: NDArray[np.int32] = (
        np.random.default_rng(0).choice(num_groups, num_samples, p=shares / shares.sum()).astype(np.int32)
    )
    return numbers


def costs_of(num_samples: int) -> NDArray[np.int64]:
    generator = np.random.default_rng(0)
    tokens = np.minimum(generator.lognormal(6, 1, num_samples) + 1, LIMITS[0])
    return np.stack([tokens, generator.integers(0, 13, num_samples)], axis=1).astype(np.int64)


def grouped(num_samples: int, num_groups: int, grouping: GroupBatches, nodes: int = 16) -> GroupedOrder:
    return GroupedOrder(window(num_samples, nodes), groups_of(num_samples, num_groups), grouping, seed=0, epoch=0)


def within_limits(num_samples: int) -> PackedOrder:
    limits = CostBatches({"tokens": LIMITS[0], "tiles": LIMITS[1]}, scaled=LIMITS)
    return PackedOrder(window(num_samples), costs_of(num_samples), limits, seed=0, epoch=0)  # type: ignore[arg-type]


ORDERS: dict[str, Any] = {
    "samples without groups": window,
    "20 buckets of 64": lambda n: grouped(n, BUCKETS, GroupBatches("kind", (64,))),
    "20 buckets of 64, alike=8": lambda n: grouped(n, BUCKETS, GroupBatches("kind", (64,), alike=8)),
    "100,000 groups of 64": lambda n: grouped(n, 100_000, GroupBatches("kind", (64,))),
    "16 of 1,000 classes, 4 each": lambda n: grouped(n, 1_000, GroupBatches("kind", (4,), classes=16)),
    "16 of 1,000 classes, 4 each, alike=8": lambda n: grouped(
        n, 1_000, GroupBatches("kind", (4,), classes=16, alike=8)
    ),
    "within two limits": within_limits,
}


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(name: str, num_samples: int) -> None:
    groups_of(num_samples, BUCKETS)
    before = peak_bytes()
    start = time.process_time()
    order = ORDERS[name](num_samples)
    made = time.process_time() - start
    start = time.process_time()
    num_batches = order.num_samples
    counted = time.process_time() - start
    start = time.process_time()
    step = max(1, order.span)
    for begin in range(0, num_batches, step):
        ids = order.ids(begin, min(begin + step, num_batches))
        if not name.startswith("samples"):
            order.pieces(ids)
    read = time.process_time() - start
    left_out = getattr(order, "num_left_out", 0) / num_samples
    each = 1e9 / num_samples
    print(
        f"{name:38} {num_batches:>10,} {made:6.2f} {counted * each:8.0f} {read * each:8.0f} "
        f"{(peak_bytes() - before) / num_samples:8.1f} {left_out:8.2%}",
        flush=True,
    )


def ranks_of_chunk(num_samples: int, world_size: int, alike: int | None) -> float:
    """The ranks that read a chunk, on average; ``alike`` is None for batches without groups."""
    documents = window(num_samples, nodes=64)
    if alike is None:
        partition = Partition(64 * world_size, world_size)
        chunks, ranks = partition.dealt(documents, 0, num_samples // (64 * world_size))
    else:
        order = grouped(num_samples, BUCKETS, GroupBatches("kind", (64,), alike=alike), nodes=64)
        numbers = order.num_samples // world_size
        _, of_batch = Partition(world_size, world_size).dealt(order, 0, numbers)
        pieces = order.pieces(np.arange(numbers * world_size))
        chunks, ranks = pieces.chunks, np.repeat(of_batch, np.diff(pieces.first))
    return len(np.unique(chunks * world_size + ranks)) / len(np.unique(chunks))


def most_by_mean(num_samples: int, world_size: int, neighbours: int) -> float:
    """The costliest rank at a step, relative to the mean of all ranks."""
    costs = np.random.default_rng(0).lognormal(6, 1, num_samples).astype(np.int64)
    order = WeighedOrder(window(num_samples), costs)
    size = 32 * world_size
    partition = Partition(size, world_size, balance=neighbours)
    num_steps = min(200, num_samples // size)
    _, ranks = partition.dealt(order, 0, num_steps)
    of_steps = costs[order.ids(0, num_steps * size)].reshape(num_steps, size)
    sums = np.stack(
        [
            np.bincount(each, weights, world_size)
            for each, weights in zip(ranks.reshape(num_steps, size), of_steps, strict=True)
        ]
    )
    return float((sums.max(1) / sums.mean(1)).mean())


def fills(num_samples: int) -> tuple[float, float]:
    """The share of the fuller limit that batches use, and the batches above the least possible number."""
    order, costs = within_limits(num_samples), costs_of(num_samples)
    pieces = order.pieces(np.arange(order.num_samples))
    sums = np.add.reduceat(costs[pieces.ids], pieces.first[:-1], axis=0) / LIMITS
    return float(sums.max(axis=1).mean()), order.num_samples / float(np.ceil((costs.sum(axis=0) / LIMITS).max()))


def share_of_most(num_samples: int) -> dict[str, float]:
    """The batches of 16 classes with 4 samples, relative to an upper bound, by the frequencies of classes."""
    found = {}
    for name, weights in (
        ("16 equal classes", np.ones(16)),
        ("1,000 equal classes", np.ones(1000)),
        ("1,000 classes, 1/rank", 1 / np.arange(1, 1001)),
    ):
        groups = np.random.default_rng(0).choice(len(weights), num_samples, p=weights / weights.sum())
        order = GroupedOrder(window(num_samples), groups, GroupBatches("kind", (4,), classes=16), seed=0, epoch=0)
        sets = np.bincount(groups) // 4
        low, high = 0, num_samples
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if np.minimum(sets, middle).sum() >= 16 * middle else (low, middle - 1)
        found[name] = order.num_samples / low
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=float, default=1e7)
    parser.add_argument("--order", choices=[*ORDERS])
    arguments = parser.parse_args()
    num_samples = int(arguments.samples)
    if arguments.order:
        measure(arguments.order, num_samples)
        return
    print(
        f"{'order':38} {'batches':>10} {'make s':>6} {'count ns':>8} {'read ns':>8} {'B/sample':>8} {'left out':>8}",
        flush=True,
    )
    for name in ORDERS:
        fewer = num_samples // 10 if name == "within two limits" else num_samples
        subprocess.run([sys.executable, __file__, "--samples", str(fewer), "--order", name], check=True)
    fewer = min(num_samples, 1_000_000)
    for world_size in (8, 64):
        found = (f"{alike}: {ranks_of_chunk(fewer, world_size, alike):.2f}" for alike in (None, 1, 8, 64))
        print(f"ranks that read a chunk, of {world_size}, by alike=:", ", ".join(found))
    for world_size, neighbours in ((8, 0), (8, 8), (64, 0), (64, 8), (64, 64)):
        share = most_by_mean(fewer, world_size, neighbours)
        print(f"most by mean, 32 samples a rank, {world_size} ranks, {neighbours=}: {share:.3f}")
    fill, more = fills(200_000)
    print(f"two limits: fill of the fuller limit {fill:.4f}, batches {more:.4f} of the least possible")
    for name, share in share_of_most(fewer).items():
        print(f"batches of 16 classes with 4 samples, {name}: {share:.4f} of an upper bound")


if __name__ == "__main__":
    main()
