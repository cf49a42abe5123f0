from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.examples import few_examples
from tests.order.datasets import chunk_of, datasets, orders, scan

from shoal.errors import UsageError
from shoal.order.arrays.index_ranges import Runs
from shoal.order.partition import Partition
from shoal.order.position_subsets import ChosenPositions, OverStored
from shoal.orders import Order, Window


@few_examples(25)
@given(samples=datasets(max_samples=5000), order=orders(), seed=st.integers(0, 1000), data=st.data())
def test_chosen_positions_are_a_slice_of_the_order(
    samples: NDArray[np.int64], order: Order, seed: int, data: st.DataObject
) -> None:
    bound = order.bind(samples, seed=seed)
    total = bound.num_samples
    skip, take = data.draw(st.integers(0, total)), data.draw(st.integers(0, total))
    every = data.draw(st.integers(1, 9))
    kept = np.arange(total)[skip : skip + take][::every]
    chosen = ChosenPositions(bound, Runs.of(kept, total))
    whole = scan(order.bind(samples, seed=seed))[kept]
    assert chosen.num_samples == len(kept)
    start = data.draw(st.integers(0, len(kept)))
    stop = data.draw(st.integers(start, len(kept)))
    ids, chunks = chosen.locate(start, stop)
    assert np.array_equal(ids, whole[start:stop])
    assert np.array_equal(ids, chosen.ids(start, stop))
    assert np.array_equal(chunks, chunk_of(samples, ids))
    numbers = np.full(total, -1)
    numbers[whole] = np.arange(len(kept))
    assert np.array_equal(chosen.positions(np.arange(total)), numbers)


def test_choices_far_apart_in_a_large_order() -> None:
    samples = np.full(5000, 100)
    bound = Window(chunks=64).bind(samples, seed=1)
    kept = np.array([0, 1, 2, 131_072, 262_143, 262_144, 499_999])
    chosen = ChosenPositions(bound, Runs.of(kept, 500_000))
    assert np.array_equal(chosen.ids(0, 7), scan(bound)[kept])
    assert np.array_equal(chosen.ids(2, 5), scan(bound)[kept[2:5]])


@few_examples(25)
@given(world_size=st.integers(1, 9), extra=st.integers(0, 30), order=orders())
def test_chosen_positions_are_dealt_like_others(world_size: int, extra: int, order: Order) -> None:
    chosen = ChosenPositions(order.bind(np.full(30, 20), seed=1), Runs.of(np.arange(0, 600, 3), 600))
    part = Partition(world_size + extra, world_size)
    shares = [part.share(chosen, rank, 0, part.num_batches(200)) for rank in range(world_size)]
    dealt = np.concatenate([share.ids[~share.repeated] for share in shares])
    assert sorted(dealt.tolist()) == sorted(scan(chosen).tolist())


def test_positions_outside_of_the_choice() -> None:
    chosen = ChosenPositions(Window(chunks=2).bind([5, 5, 5]), Runs.span(0, 7))
    with pytest.raises(UsageError, match=r"an epoch has positions \[0, 7\)"):
        chosen.ids(0, 8)


@few_examples(25)
@given(order=orders(), seed=st.integers(0, 99), data=st.data())
def test_an_order_over_stored_samples_gives_their_ids_and_deals_them_as_their_numbers(
    order: Order, seed: int, data: st.DataObject
) -> None:
    chunk = np.repeat(np.arange(40), 15)
    stored = data.draw(st.lists(st.integers(0, 599), min_size=1, max_size=600, unique=True))
    runs = Runs.of(stored, 600)
    bound = order.bind(np.bincount(chunk[stored], minlength=40), seed=seed)
    over = OverStored(bound, runs)
    ids = over.ids(0, len(stored))
    assert sorted(ids.tolist()) == sorted(stored)
    assert np.array_equal(over.locate(0, len(stored))[1], chunk[ids])
    positions = np.full(600, -1)
    positions[ids] = np.arange(len(ids))
    assert np.array_equal(over.positions(np.arange(600)), positions)
    part = Partition(14, 7)
    for rank in range(7):
        by_number, by_id = (part.share(each, rank, 0, part.num_batches(len(ids))) for each in (bound, over))
        assert np.array_equal(runs.members(by_number.ids), by_id.ids)
