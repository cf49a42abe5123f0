"""Snapshots differ exactly where something in what they were taken of differs."""

from __future__ import annotations

import copy
import operator
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.dataset import Dataset
from shoal.stream.workers.snapshot import Snapshot


class Held:
    """A user's object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def method(self, sample: Any) -> Any:
        return sample, self.value


class Untouchable:
    """One that tells nobody what it is made of."""

    def __reduce_ex__(self, _: Any) -> Any:
        raise TypeError


def function_over(value: Any) -> Callable[[], Any]:
    return lambda: value


def recursive(value: int) -> Callable[[int], int]:
    def function(depth: int) -> int:
        return function(depth - 1) if depth else value

    return function


@pytest.mark.parametrize(
    "make",
    [
        lambda value: [value, {"x": (value,)}],
        lambda value: np.array([value, 1]),
        lambda value: Held(Held({value})),
        lambda value: Held(value).method,
        lambda value: partial(print, end=value),
        lambda value: partial(operator.add, value),
        lambda value: re.compile(f"{value}"),
        lambda value: slice(0, value),
    ],
)
def test_values_are_compared_however_deep(make: Callable[[int], Any]) -> None:
    assert Snapshot(make(7)) == Snapshot(make(7)) == Snapshot(copy.deepcopy(make(7)))
    assert Snapshot(make(7)) != Snapshot(make(8))


def test_functions_are_the_same_with_what_they_close_over() -> None:
    held = {"value": 1}
    for function in (function_over(held), partial(function_over(held)), Held(function_over(held)).method):
        held["value"] = 1
        before = Snapshot(function)
        assert before == Snapshot(function) != Snapshot(function_over(held))
        held["value"] = 2
        assert before != Snapshot(function)
    marked: Any = recursive(3)
    assert Snapshot(marked) == Snapshot(marked) != Snapshot(recursive(3))
    marked.mark = 1
    before = Snapshot(marked)
    marked.mark = 2
    assert before != Snapshot(marked)
    assert Snapshot(np.sum) == Snapshot(np.sum) != Snapshot(np.add)
    assert Snapshot(len) == Snapshot(len) != Snapshot(print)


def test_what_has_no_parts_is_itself_or_another() -> None:
    lock, other = threading.Lock(), Untouchable()
    assert Snapshot([lock, other]) == Snapshot([lock, other])
    assert Snapshot([lock]) != Snapshot([threading.Lock()])
    assert Snapshot([other]) != Snapshot([Untouchable()])
    one, two = Held(1), Held(1)
    assert Snapshot([one], alone=(one, two)) != Snapshot([two], alone=(one, two))
    before = Snapshot([one], alone=(one,))
    one.value = 2
    assert before == Snapshot([one], alone=(one,))


def test_an_address_that_is_used_again_is_not_the_same() -> None:
    before = [Snapshot([threading.Lock()]) for _ in range(50)]
    assert all(snapshot != Snapshot([threading.Lock()]) for snapshot in before)


def test_what_cannot_be_taken_apart_is_equal_to_nothing() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    snapshot = Snapshot(deep)
    assert snapshot != snapshot  # noqa: PLR0124
    assert snapshot != 7


def test_every_part_of_the_work_counts(tars: Dataset) -> None:
    """Not the parts that somebody thought of: each field of everything in it, changed one at a time."""
    work = tars.shuffle(seed=3).take(50).with_ids().batch(7).without(0).stream.iterator_spec().work
    assert isinstance(work.resolved, ResolvedOrder)
    alone = (work.opened, work.opened.index)
    before = Snapshot(work, alone=alone)
    assert before == Snapshot(
        tars.shuffle(seed=3).take(50).with_ids().batch(7).without(0).stream.iterator_spec().work, alone=alone
    )
    for part in (work.resolved, work.pipeline, work.options, work.pipeline.partition, work.resolved.request):
        for name in type(part).__dataclass_fields__:
            kept = getattr(part, name)
            if name.startswith("_"):
                continue
            object.__setattr__(part, name, ("another", kept))
            assert before != Snapshot(work, alone=alone), name
            object.__setattr__(part, name, kept)
    assert before == Snapshot(work, alone=alone)
