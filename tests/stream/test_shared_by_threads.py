"""What iterators of one dataset share stays whole where several threads use it at once."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from shoal.order.window.order import Window
from shoal.stream.dataset import Dataset
from shoal.stream.states.iterator_position import Cursor

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

NUM_THREADS = 6


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(function: Callable[[int], None]) -> None:
    """Call it in several threads, which begin together; the first error of any is raised."""
    gate = threading.Barrier(NUM_THREADS)

    def begin(number: int) -> None:
        gate.wait(10)
        function(number)

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        list(pool.map(begin, range(NUM_THREADS)))


def test_epochs_that_are_bound_at_once(tars: Dataset) -> None:
    ds = tars.shuffle(seed=3)
    expected = [ds.ids(epoch).tolist() for epoch in range(5)]

    def ask(number: int) -> None:
        for turn in range(40):
            epoch = (number + turn) % 5
            assert ds.ids(epoch).tolist() == expected[epoch]

    at_once(ask)
    assert len(ds.resolved._epochs) <= 2 + NUM_THREADS
    ds.ids(7)
    ds.ids(8)
    assert sorted(ds.resolved._epochs) == [7, 8]


class Emptied(OrderedDict[tuple[int, range], Any]):
    """A cache that another thread empties as soon as somebody looks at what is in it."""

    def __len__(self) -> int:
        found = super().__len__()
        self.clear()
        return found

    def __iter__(self) -> Iterator[tuple[int, range]]:
        found = list(super().__iter__())
        self.clear()
        return iter(found)


def test_spans_of_an_order_that_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    order = Window(2, 1).bind(np.full(400, 3), seed=0, epoch=0)
    monkeypatch.setattr(order, "_make", lambda begin, *_: (begin,))
    monkeypatch.setattr(order, "_cache", Emptied({(-3, range(1)): (), (-2, range(1)): (), (-1, range(1)): ()}))
    assert [order._span(begin, begin + 1, range(1))[0] for begin in range(5)] == [0, 1, 2, 3, 4]


def test_iterators_that_begin_at_once(tars: Dataset) -> None:
    ds = tars.shuffle(seed=3).with_ids().batch(50)
    cursor: Cursor = ds.stream.cursor
    position = ds.stream.iterator_spec().position()
    position.num_yielded = 1

    def begin(_: int) -> None:
        for _ in range(300):
            cursor.follow(position)
            cursor.deliveries.parts()

    at_once(begin)
