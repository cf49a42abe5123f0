"""One shuffle, whichever part of it is asked for, by one process or several."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.pack.shards.shard_plan import Mix

SEEDS = st.integers(0, 2**64 - 1)


@given(num_samples=st.integers(0, 3000), seed=SEEDS, cuts=st.lists(st.integers(0, 3000), max_size=4))
def test_every_sample_once_and_any_part_alone(num_samples: int, seed: int, cuts: list[int]) -> None:
    mix = Mix(num_samples, seed)
    whole = mix.samples(0, num_samples)
    assert np.array_equal(np.sort(whole), np.arange(num_samples))
    borders = [0, *sorted(min(cut, num_samples) for cut in cuts), num_samples]
    parts = [mix.samples(start, stop) for start, stop in pairwise(borders)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_seeds_give_other_orders() -> None:
    orders = {tuple(Mix(20, seed).samples(0, 20).tolist()) for seed in range(50)}
    assert len(orders) == 50


def test_out_of_range() -> None:
    with pytest.raises(UsageError, match=r"\[5, 11\)"):
        Mix(10, 0).samples(5, 11)
    with pytest.raises(UsageError, match="seed"):
        Mix(1, -1)
