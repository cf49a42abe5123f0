"""Grain's shuffles: laws, and digests of what the library itself gave (tests/compat/orders compares thousands)."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.order.partition import Partition
from shoal.orders import GrainShuffle, GrainWindowShuffle

ORDERS = st.one_of(
    st.builds(GrainShuffle, world_size=st.integers(1, 4), parity=st.booleans()),
    st.builds(
        GrainWindowShuffle,
        window_size=st.integers(1, 40).map(lambda size: 5 * size),
        dataset=st.sampled_from(("map", "iter")),
        world_size=st.integers(1, 4),
        parity=st.booleans(),
    ),
)


@given(ORDERS, st.integers(1, 150), st.integers(0, 2**32 - 1), st.integers(0, 3), st.data())
def test_seek_equals_scan_and_positions_invert(
    order: GrainShuffle | GrainWindowShuffle, samples: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    bound = order.bind([samples], seed=seed, epoch=epoch)
    scan = bound.ids(0, samples)
    first = data.draw(st.integers(0, samples))
    stop = data.draw(st.integers(first, samples))
    assert np.array_equal(bound.ids(first, stop), scan[first:stop])
    if not order.parity or isinstance(order, GrainShuffle):
        assert np.array_equal(np.sort(scan), np.arange(samples))
        assert np.array_equal(bound.positions(scan), np.arange(samples))
    else:
        found = bound.positions(np.arange(samples))
        assert np.array_equal(scan[found[found >= 0]], np.arange(samples)[found >= 0])


def test_ranks_get_every_fourth_sample_as_in_grain() -> None:
    order = GrainShuffle(world_size=4).bind([100], seed=7)
    ids = order.ids(0, 100)
    for rank in range(4):
        share = Partition(20, world_size=4).share(order, rank, 0, 5)
        assert np.array_equal(share.ids, ids[rank::4])


def test_the_collision_is_grains_alone() -> None:
    num_samples = 2**16 + 1
    theirs = GrainShuffle(parity=True).bind([num_samples], seed=3)
    ours = GrainShuffle().bind([num_samples], seed=3)
    assert len(np.unique(theirs.ids(0, num_samples))) == num_samples - 1
    assert len(np.unique(ours.ids(0, num_samples))) == num_samples
    missing = np.setdiff1d(np.arange(num_samples), theirs.ids(0, num_samples))
    assert theirs.positions(missing).tolist() == [-1]


@pytest.mark.golden
@pytest.mark.parametrize(
    ("order", "samples", "digest"),
    [
        (GrainShuffle(parity=True), 65_537, "c32ab39131a63cdc"),
        (GrainShuffle(parity=True), 100_000, "1ea55101d9000f6f"),
        (GrainWindowShuffle(70, "map", parity=True), 1000, "4dc9dc1f80ea02e7"),
        (GrainWindowShuffle(70, "iter", parity=True), 1000, "56f743a382cd7b31"),
    ],
)
def test_ids_are_those_of_grain(order: GrainShuffle | GrainWindowShuffle, samples: int, digest: str) -> None:
    ids = np.concatenate([order.bind([samples], seed=11, epoch=epoch).ids(0, samples) for epoch in (0, 1, 2)])
    assert hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()[:16] == digest


def test_what_grain_does_not_take() -> None:
    with pytest.raises(UsageError, match="seeds go up to 4294967295"):
        GrainShuffle().bind([4], seed=2**32)
    with pytest.raises(UsageError, match="'map' or 'iter'"):
        GrainWindowShuffle(4, "list")
    with pytest.raises(UsageError, match="window_size must be at least 1"):
        GrainWindowShuffle(0)
