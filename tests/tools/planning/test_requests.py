"""What reads become when they are asked for from a remote store, known beforehand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.reading.schedule.read_requests import request_sizes
from shoal.reading.schedule.units import UnitRead
from shoal.tools.planning.request_model import count_requests, likely_requests_for_each_read

MIB = 1 << 20


def reads_of(units: list[int], chunk_bytes: int, chunks_of_a_shard: int = 1 << 30) -> list[UnitRead]:
    """Chunks of one length, one behind the other in each shard."""
    places = [divmod(unit, chunks_of_a_shard) for unit in units]
    return [
        UnitRead(unit, shard, place * chunk_bytes, (place + 1) * chunk_bytes, unit, 1)
        for unit, (shard, place) in zip(units, places, strict=True)
    ]


@given(
    st.permutations(range(40)),
    st.sampled_from([1 << 12, 1 << 15, 100_000, 1 << 20, 9 << 20]),
    st.lists(st.integers(0, 40), max_size=3),
)
def test_no_read_is_forgotten_whatever_the_spans(units: list[int], chunk_bytes: int, cuts: list[int]) -> None:
    """Chunks that cannot share are one request each, or three where they are large; others are as many or fewer."""
    reads, borders = reads_of(units, chunk_bytes), [0, *sorted(cuts), len(units)]
    spans = [reads[begin:end] for begin, end in itertools.pairwise(borders)]
    result = count_requests(spans, request_sizes(8 * MIB))
    if chunk_bytes == 9 * MIB:
        assert result == 3 * len(units)
    elif chunk_bytes == MIB:
        assert result == len(units)
    else:
        assert 1 <= result <= len(units)
    alone = reads_of(units, chunk_bytes, chunks_of_a_shard=1)  # none has a neighbour
    assert count_requests([alone], request_sizes(8 * MIB)) == (3 if chunk_bytes == 9 * MIB else 1) * len(units)


def test_neighbours_in_a_group_share_a_request() -> None:
    sizes = request_sizes(8 * MIB)
    assert sizes.most_bytes == sizes.group_bytes == 256 << 10
    chunk_bytes = 32 << 10  # eight to a group
    assert count_requests([reads_of(list(range(64)), chunk_bytes)], sizes) == 8
    assert count_requests([reads_of(list(range(63, -1, -1)), chunk_bytes)], sizes) == 8
    far_apart = [8 * (unit % 8) + unit // 8 for unit in range(64)]
    assert count_requests([reads_of(far_apart, chunk_bytes)], sizes) == 64


@pytest.mark.parametrize(("num_chunks", "chunk_bytes"), [(1000, 8 << 10), (1000, 16 << 10), (200, 64 << 10)])
def test_as_many_as_are_likely_come_about(num_chunks: int, chunk_bytes: int) -> None:
    sizes, random = request_sizes(32 * MIB), np.random.default_rng(0)
    units = [random.permutation(num_chunks).tolist() for _ in range(10)]
    result = [count_requests([reads_of(order, chunk_bytes)], sizes) / num_chunks for order in units]
    likely = likely_requests_for_each_read(np.full(num_chunks, chunk_bytes), num_chunks, sizes)
    assert float(np.mean(result)) == pytest.approx(likely, abs=0.02)
