"""Fixed digests of the growing order, as in tests/order/test_golden.py."""

from __future__ import annotations

import numpy as np
import pytest
from tests.order.growing.segmented import NOTHING, in_turn
from tests.order.test_golden import UNEVEN, digest

from shoal.order.growing_segments import cut_segments, permuted_shards, segment_seed
from shoal.order.partition import Partition
from shoal.orders import Window

pytestmark = pytest.mark.golden

SEGMENTS = [UNEVEN[:40], UNEVEN[40:120], NOTHING, UNEVEN[120:280], UNEVEN[280:]]


def test_shards() -> None:
    arrays = [permuted_shards(size, seed=seed) for size in (1, 7, 5000) for seed in (0, 2**64 - 1)]
    seeds = [segment_seed(seed, number) for seed in (0, 1) for number in (0, 1, 1000)]
    assert digest([*arrays, np.array(seeds, dtype=np.uint64)]) == "90a226824d5f22aa"


def test_segments() -> None:
    num_bytes = UNEVEN * 2**20
    found = [cut_segments(num_bytes, window_bytes=size) for size in (1, 2**24, 2**29, 2**40)]
    assert digest(np.array(each) for each in found) == "6df909e36053e227"


@pytest.mark.parametrize(
    ("order", "seed", "expected"),
    [
        (Window(chunks=64), 0, "436fc851a6fc7000"),
        (Window(chunks=64), 2**64 - 1, "f386eab33d5e8a9a"),
        (Window(chunks=300, num_canonical_nodes=7), 3, "5085c9e2a0ce07c2"),
    ],
)
def test_orders(order: Window, seed: int, expected: str) -> None:
    bound = in_turn(SEGMENTS, order, seed=seed)
    assert digest(bound.locate(0, bound.num_samples)) == expected


def test_dealing() -> None:
    bound = in_turn(SEGMENTS, Window(chunks=64), seed=1)
    arrays = []
    for world_size, remainder in ((3, "keep"), (7, "pad"), (16, "drop")):
        part = Partition(640 * world_size, world_size, remainder)
        share = part.share(bound, 2, 0, part.num_batches(bound.num_samples, 1000), 1000)
        arrays += [share.ids, share.positions, share.chunks, share.repeated, share.batch_first]
    assert digest(arrays) == "609af839f511816d"
