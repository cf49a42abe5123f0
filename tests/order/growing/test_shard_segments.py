from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.examples import few_examples
from tests.order.audit import worst_look

from shoal.errors import UsageError
from shoal.order.growing_segments import FIRST_BYTES, cut_segments, permuted_shards, segment_seed

MIB = 2**20

sizes = st.lists(st.one_of(st.integers(0, 2 * MIB), st.integers(0, 400 * MIB)), max_size=200)
windows = st.one_of(st.integers(1, 10 * MIB), st.integers(1, 2**40))


@few_examples(25)
@given(num_shards=st.integers(0, 3000), seed=st.integers(0, 2**64 - 1))
def test_every_shard_has_one_place(num_shards: int, seed: int) -> None:
    found = permuted_shards(num_shards, seed=seed)
    assert found.dtype == np.int64
    assert np.array_equal(np.sort(found), np.arange(num_shards))


def test_shards_are_in_random_order() -> None:
    score, look = worst_look(permuted_shards(20_000, seed=5))
    assert score < 5, look
    orders = {tuple(permuted_shards(50, seed=seed).tolist()) for seed in range(200)}
    assert len(orders) == 200


def test_segments_have_seeds_of_their_own() -> None:
    assert len({segment_seed(seed, number) for seed in range(30) for number in range(30)}) == 900


@few_examples(25)
@given(sizes=sizes, window_bytes=windows)
@example(sizes=[FIRST_BYTES, FIRST_BYTES], window_bytes=2**40)
@example(sizes=[FIRST_BYTES, FIRST_BYTES - 1], window_bytes=2**40)
def test_segments_end_at_their_limits(sizes: list[int], window_bytes: int) -> None:
    firsts = cut_segments(sizes, window_bytes=window_bytes)
    assert firsts == cut_segments(np.array(sizes, dtype=np.int64), window_bytes=window_bytes)
    assert (firsts[0], firsts[-1]) == (0, len(sizes))
    assert all(first < stop for first, stop in itertools.pairwise(firsts)), "each segment has a shard"
    limits = [min(FIRST_BYTES * 2**number, 2 * window_bytes) for number in range(len(firsts))]
    for number, (first, stop) in enumerate(itertools.pairwise(firsts[:-1])):
        assert sum(sizes[first : stop - 1]) < limits[number] <= sum(sizes[first:stop])
    if len(firsts) == 1:
        return
    number, last = len(firsts) - 2, sizes[firsts[-2] :]
    if number:
        assert 2 * sum(last) >= limits[number], "no last segment is too small to mix"
    end = next((end for end in range(1, len(last) + 1) if sum(last[:end]) >= limits[number]), len(last))
    assert 2 * sum(last[end:]) < limits[number + 1], "what is joined to the last segment is too small for one"


@few_examples(25)
@given(sizes=st.lists(st.integers(0, 200 * MIB), min_size=1), more=sizes, window_bytes=windows)
def test_only_the_last_segment_depends_on_what_follows(sizes: list[int], more: list[int], window_bytes: int) -> None:
    before, after = (cut_segments(all_of, window_bytes=window_bytes) for all_of in (sizes, sizes + more))
    assert after[: len(before) - 1] == before[:-1]


def test_many_shards_of_any_size() -> None:
    firsts = cut_segments(np.full(10**5, MIB), window_bytes=512 * MIB)
    assert firsts[:5] == [0, 64, 192, 448, 960]
    assert set(np.diff(firsts[4:-1])) == {1024}
    assert cut_segments(np.full(10**5, 10**10), window_bytes=512 * MIB) == list(range(10**5 + 1))


def test_a_small_window_has_small_segments() -> None:
    assert cut_segments([MIB] * 20, window_bytes=2 * MIB) == [0, 4, 8, 12, 16, 20]


@pytest.mark.parametrize(
    ("sizes", "window_bytes", "complaint"),
    [
        ([1, 2], 0, "window_bytes must be at least 1; got 0"),
        ([3, -2], 5, "shards cannot have a negative size; shard 1 has -2"),
    ],
)
def test_what_cannot_be_cut(sizes: list[int], window_bytes: int, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        cut_segments(sizes, window_bytes=window_bytes)
