from __future__ import annotations

import numpy as np
from tests.order.datasets import scan

from shoal.order.arrays.permutation import permute
from shoal.order.seeds import key
from shoal.orders import Full, Sequential

SAMPLES = [3, 0, 4, 5]


def test_none_is_storage_order_in_every_epoch() -> None:
    for seed, epoch in ((0, 0), (7, 3)):
        bound = Sequential().bind(SAMPLES, seed=seed, epoch=epoch)
        assert scan(bound).tolist() == list(range(12))
        assert bound.locate(2, 8)[1].tolist() == [0, 2, 2, 2, 2, 3]
        assert bound.positions([11, 0]).tolist() == [11, 0]


def test_full_is_one_permutation_whatever_the_chunks() -> None:
    expected = permute(np.arange(12), 12, key(5, 2, "full"))
    for samples in (SAMPLES, [12], [1] * 12):
        assert np.array_equal(scan(Full().bind(samples, seed=5, epoch=2)), expected)


def test_full_needs_no_memory_for_the_dataset() -> None:
    bound = Full().bind(np.full(1000, 10**13), seed=1)
    ids = bound.ids(5 * 10**15, 5 * 10**15 + 100)
    assert len(np.unique(bound.locate(0, 200)[1])) > 150
    assert np.array_equal(bound.positions(ids), np.arange(5 * 10**15, 5 * 10**15 + 100))
