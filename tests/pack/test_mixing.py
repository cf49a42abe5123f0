"""One shuffle, by any road: read in order, through buckets, by one process or several."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.pack.mixing import MOST_BUCKETS, Mix, mix

SEEDS = st.integers(0, 2**64 - 1)


@given(num_samples=st.integers(1, 3000), seed=SEEDS, cuts=st.lists(st.integers(0, 3000), max_size=4))
def test_every_sample_once_and_any_part_alone(num_samples: int, seed: int, cuts: list[int]) -> None:
    plan = Mix(num_samples, seed)
    whole = plan.samples(0, num_samples)
    assert np.array_equal(np.sort(whole), np.arange(num_samples))
    assert np.array_equal(plan.positions(whole), np.arange(num_samples))
    borders = [0, *sorted(min(cut, num_samples) for cut in cuts), num_samples]
    parts = [plan.samples(start, stop) for start, stop in pairwise(borders)]
    assert np.array_equal(np.concatenate(parts), whole)


@given(num_samples=st.integers(1, 2000), seed=SEEDS, num_buckets=st.integers(1, 40), processes=st.sampled_from([1, 4]))
def test_buckets_give_the_same_order(num_samples: int, seed: int, num_buckets: int, processes: int) -> None:
    plan = Mix(num_samples, seed, num_buckets=min(num_buckets, num_samples))
    assert np.array_equal(through_buckets(plan, processes), Mix(num_samples, seed).samples(0, num_samples))


def through_buckets(plan: Mix, processes: int) -> NDArray[np.int64]:
    """The shuffle made by streams: each process deals out a part of the inputs, then buckets are sorted one by one."""
    files: list[list[int]] = [[] for _ in range(plan.num_buckets)]
    for part in np.array_split(np.arange(plan.num_samples), processes):
        for sample, bucket in zip(part.tolist(), plan.buckets(part).tolist(), strict=True):
            files[bucket].append(sample)
    result = []
    for bucket, samples in enumerate(files):
        start, stop = plan.bucket_positions(bucket)
        places = plan.positions(np.array(samples, dtype=np.int64))
        assert np.array_equal(np.sort(places), np.arange(start, stop))
        result.append(np.array(samples, dtype=np.int64)[np.argsort(places)])
    return np.concatenate(result)


def test_seeds_give_other_orders() -> None:
    orders = {tuple(Mix(20, seed).samples(0, 20).tolist()) for seed in range(50)}
    assert len(orders) == 50


@given(num_samples=st.integers(0, 10**9), num_bytes=st.integers(0, 1 << 44), memory_bytes=st.integers(1 << 20, 1 << 40))
def test_an_average_bucket_fits_twice(num_samples: int, num_bytes: int, memory_bytes: int) -> None:
    if min(num_samples, -(-2 * num_bytes // memory_bytes)) > MOST_BUCKETS:
        with pytest.raises(UsageError, match="temporary files") as refused:
            mix(num_samples, num_bytes=num_bytes, memory_bytes=memory_bytes)
        memory_bytes = int(refused.value.hint.split()[1]) << 20
    plan = mix(num_samples, num_bytes=num_bytes, memory_bytes=memory_bytes)
    assert 1 <= plan.num_buckets <= MOST_BUCKETS
    if num_samples > plan.num_buckets:
        assert 2 * num_bytes <= plan.num_buckets * memory_bytes


def test_memory_does_not_change_the_order() -> None:
    small = mix(1000, num_bytes=10**7, memory_bytes=10**5, seed=4)
    large = mix(1000, num_bytes=10**7, memory_bytes=10**9, seed=4)
    assert (small.num_buckets, large.num_buckets) == (200, 1)
    assert np.array_equal(small.samples(0, 1000), large.samples(0, 1000))


def test_nothing_to_shuffle() -> None:
    plan = mix(0, num_bytes=0, memory_bytes=1 << 20)
    assert plan.samples(0, 0).tolist() == []
    assert plan.bucket_positions(0) == (0, 0)


def test_out_of_range() -> None:
    plan = Mix(10, 0, 2)
    with pytest.raises(UsageError, match=r"\[5, 11\)"):
        plan.samples(5, 11)
    with pytest.raises(UsageError, match="no bucket 2"):
        plan.bucket_positions(2)
    with pytest.raises(UsageError, match="cannot shuffle"):
        mix(1, num_bytes=1, memory_bytes=0)
    with pytest.raises(UsageError, match="seed"):
        mix(1, num_bytes=1, memory_bytes=1, seed=-1)
