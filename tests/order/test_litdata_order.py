"""LitData's shuffle: laws, and digests of what the library itself gave (tests/compat/orders compares thousands)."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import StateError, UsageError
from shoal.order.partition import Partition
from shoal.orders import LitData

CHUNKS = st.lists(st.integers(0, 30), min_size=1, max_size=6)
RUNS = st.builds(
    LitData,
    world_size=st.integers(1, 3),
    num_workers=st.integers(0, 3),
    batch_size=st.integers(1, 5),
    drop_last=st.sampled_from((None, True, False)),
    item_shuffle_window=st.sampled_from((0, 1, 4, 256)),
)


@given(RUNS, CHUNKS, st.integers(0, 2**32 - 1), st.integers(0, 3), st.data())
def test_seek_equals_scan_and_positions_invert(
    order: LitData, chunks: list[int], seed: int, epoch: int, data: st.DataObject
) -> None:
    bound, total = order.bind(chunks, seed=seed, epoch=epoch), sum(chunks)
    scan = bound.ids(0, bound.num_samples)
    assert bound.num_samples == order.num_positions(np.array(chunks))
    assert len(np.unique(scan)) == len(scan) <= total
    assert order.drop_last or len(scan) == total
    first = data.draw(st.integers(0, len(scan)))
    stop = data.draw(st.integers(first, len(scan)))
    assert np.array_equal(bound.ids(first, stop), scan[first:stop])
    expected = np.full(total, -1)
    expected[scan] = np.arange(len(scan))
    assert np.array_equal(bound.positions(np.arange(total)), expected)


def test_every_rank_gets_its_own_stream_and_other_sizes_the_same_batches() -> None:
    order = LitData(world_size=2, num_workers=2, batch_size=4)
    bound = order.bind([50, 40, 70], seed=42)
    steps = bound.num_samples // 8
    ids = bound.ids(0, 8 * steps).reshape(steps, 2, 4)
    for rank in range(2):
        share = Partition(8, world_size=2).share(bound, rank, 0, steps)
        assert np.array_equal(share.ids.reshape(steps, 4), ids[:, rank])
    shares = [Partition(8, world_size=4).share(bound, rank, 0, steps).ids.reshape(steps, 2) for rank in range(4)]
    assert np.array_equal(np.sort(np.concatenate(shares, axis=1)), np.sort(ids.reshape(steps, 8)))


@pytest.mark.golden
@pytest.mark.parametrize(
    ("order", "digest"),
    [
        (LitData(batch_size=16), "fb2abbb7d0472a81"),
        (LitData(world_size=3, num_workers=2, batch_size=5), "959e95b941f9feb3"),
        (
            LitData(world_size=2, num_workers=3, batch_size=7, drop_last=False, item_shuffle_window=0),
            "667e4b7ccad9230e",
        ),
    ],
)
def test_ids_are_those_of_litdata(order: LitData, digest: str) -> None:
    bound = [order.bind([700, 300, 1, 900, 513], seed=42, epoch=epoch) for epoch in range(3)]
    ids = np.concatenate([each.ids(0, each.num_samples) for each in bound])
    assert hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()[:16] == digest


def test_a_checkpoint_of_litdata_goes_on() -> None:
    told = {"seed": 42, "world_size": 2, "num_workers": 2, "batch_size": 4, "drop_last": True, "shuffle": True}
    checkpoint = {"dataset": {**told, "num_samples_yielded": 12, "item_shuffle_window": 256}, "current_epoch": 2}
    found = LitData().adopted(checkpoint, np.array([50, 40, 70]), 42)
    assert found is not None
    assert (found.order, found.epoch, found.position) == (LitData(world_size=2, num_workers=2, batch_size=4), 1, 24)
    assert LitData().adopted({"epoch": 1}, np.array([50]), 42) is None
    with pytest.raises(StateError, match=r"seed=42.*this stream has seed=43"):
        LitData().adopted(checkpoint, np.array([50]), 43)


def test_what_litdata_does_not_take() -> None:
    with pytest.raises(UsageError, match="batch_size must be at least 1"):
        LitData(batch_size=0)
    with pytest.raises(UsageError, match="seeds and epochs go up to"):
        LitData().bind([4], seed=2**32)
