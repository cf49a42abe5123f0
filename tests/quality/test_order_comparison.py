"""Orders beside a window that holds as much, and what an order holds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.orders import Block, Buffer, Sequential
from shoal.tools.auditing.order_comparison import compare_with_window, held_samples


@given(st.data(), st.lists(st.integers(0, 6), min_size=1, max_size=5), st.booleans())
def test_held_samples_are_those_read_and_not_delivered(data: st.DataObject, sizes: list[int], whole: bool) -> None:
    total = sum(sizes)
    ids = data.draw(st.lists(st.integers(0, max(0, total - 1)), max_size=12 if total else 0))
    chunk_of = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.cumsum([0, *sizes])
    read: set[int] = set()
    gone: set[int] = set()
    expected = []
    for each in ids:
        chunk = int(chunk_of[each])
        read |= set(range(int(starts[chunk]), int(starts[chunk + 1]) if whole else each + 1))
        expected.append(len(read - gone))
        gone.add(each)
    result = held_samples(np.array(ids, dtype=np.int64), np.array(sizes), whole=whole)
    assert result.tolist() == expected


def test_the_window_holds_no_more_and_mixes_better() -> None:
    shards = np.full(100, 1000)
    buffer, window = compare_with_window([Buffer(samples=5_000)], shard_samples=shards, batch=64)
    assert buffer.most_held == 5_000
    assert window.most_held <= 5_000
    assert window.audit.vr[64] < 1.2 < buffer.audit.vr[64]


def test_storage_order_holds_one_sample() -> None:
    plain, window = compare_with_window([Sequential()], shard_samples=[50] * 8, batch=8, chunk_samples=5)
    assert plain.most_held == 1
    assert window.chunk_samples.tolist() == [5] * 80


def test_the_budget_is_that_of_the_order_that_holds_most() -> None:
    result = compare_with_window([Buffer(samples=20), Block(chunks=3)], shard_samples=[100] * 30, batch=16)
    assert result[0].most_held == 20
    assert 290 < result[1].most_held <= 300
    assert 150 < result[2].most_held <= 300


@pytest.mark.parametrize("shards", [[], [10], [1 << 27, 1]])
def test_too_few_or_too_many(shards: list[int]) -> None:
    with pytest.raises(UsageError, match="counting them all"):
        compare_with_window([Sequential()], shard_samples=shards, batch=64)
