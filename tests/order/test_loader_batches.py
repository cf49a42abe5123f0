"""Streams of workers and ranks that take turns, against a loader that really takes turns."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import UsageError
from shoal.peers.loader_batches import LoaderBatches
from shoal.peers.round_robin import RoundRobin

Batch = tuple[int, int, list[int]]
"""Rank, worker and numbers in the worker's stream."""


@given(st.lists(st.integers(0, 9), max_size=7))
def test_lists_take_turns_until_they_end(lengths: list[int]) -> None:
    longest = max(lengths, default=0)
    expected = [(number, item) for item in range(longest) for number, length in enumerate(lengths) if item < length]
    turns = RoundRobin(lengths)
    lists, items = turns.locate(np.arange(len(turns)))
    assert list(zip(lists.tolist(), items.tolist(), strict=True)) == expected
    assert turns.positions(lists, items).tolist() == list(range(len(expected)))


def loaded(samples: list[list[int]], size: int) -> list[Batch]:
    """Batches in the order of a run: of each rank in turn, and of each of its workers."""
    runs: list[list[Batch]] = []
    for rank, workers in enumerate(samples):
        queues = [
            [(rank, worker, list(range(first, min(first + size, count)))) for first in range(0, count, size)]
            for worker, count in enumerate(workers)
        ]
        rounds = itertools.zip_longest(*queues)
        runs.append([batch for turn in rounds for batch in turn if batch is not None])
    return [batch for step in itertools.zip_longest(*runs) for batch in step if batch is not None]


@given(
    st.integers(1, 4).flatmap(
        lambda workers: st.lists(
            st.lists(st.integers(0, 20), min_size=workers, max_size=workers), min_size=1, max_size=4
        )
    ),
    st.integers(1, 6),
)
def test_positions_are_those_of_the_loader(samples: list[list[int]], size: int) -> None:
    expected = [(rank, worker, number) for rank, worker, batch in loaded(samples, size) for number in batch]
    batches = LoaderBatches(samples, size)
    assert batches.num_samples == len(expected)
    found = batches.locate(np.arange(len(expected)))
    assert list(zip(*(each.tolist() for each in found), strict=True)) == expected
    assert batches.positions(*found).tolist() == list(range(len(expected)))
    for start in {0, len(expected) // 3, len(expected)}:
        pieces = zip(*(each.tolist() for each in batches.pieces(start, len(expected))), strict=True)
        told = [
            (*divmod(stream, batches.num_workers), number + at - begin)
            for begin, end, stream, number in pieces
            for at in range(begin, end)
        ]
        assert told == expected[start:]


@pytest.mark.parametrize(("samples", "size"), [([3, 4], 2), ([[3], [4]], 0)])
def test_what_is_no_run(samples: list[list[int]], size: int) -> None:
    with pytest.raises(UsageError, match="a run needs"):
        LoaderBatches(samples, size)
