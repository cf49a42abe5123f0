"""What ranks do that wait for one in vain: they share its units, and wait for it once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.indexing.jobs import shared_indexing
from shoal.indexing.jobs.shared_indexing import Sharing
from shoal.processes.job_rank import JobRank


class _Units:
    """Units of one shard each, which only note that they have been run."""

    num_units = 24

    def __init__(self) -> None:
        self.done: set[int] = set()
        self.parts = SimpleNamespace(is_open=lambda: True, missing=self._missing)

    def _missing(self, numbers: range) -> list[int]:
        return [number for number in numbers if number not in self.done]

    def task(self, number: int) -> Any:
        return SimpleNamespace(shards=[None])

    def run_side_by_side(self, numbers: Sequence[int], **_: object) -> Iterator[None]:
        for number in numbers:
            self.done.add(number)
            yield


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_indexing, "_LEAST_WAIT_SECONDS", 0.01)


def _sharing(units: Any, rank: int, absent: set[int], numbers: range = range(12)) -> Sharing:
    return Sharing(units, JobRank(rank, 3, 3), None, numbers, num_processors=1, absent=absent)


def _new(units: _Units, step: Any) -> list[int]:
    """The units that a step has run."""
    before = set(units.done)
    step()
    return sorted(units.done - before)


def test_ranks_that_are_left_share_the_units_of_one_that_is_absent() -> None:
    units, absent = _Units(), [set[int](), set[int]()]
    zero, one = (_sharing(units, rank, absent[rank]) for rank in range(2))
    assert _new(units, zero.run_own_share) == [0, 3, 6, 9]
    assert _new(units, one.run_own_share) == [1, 4, 7, 10]
    assert _new(units, zero.wait_or_take_over) == [2, 8]
    assert not zero.is_complete()
    assert _new(units, one.wait_or_take_over) == [5, 11]
    assert absent == [{2}, {2}]
    assert not zero.is_alone
    following = range(12, 24)
    assert _new(units, _sharing(units, 0, absent[0], following).run_own_share) == [12, 14, 15, 18, 20, 21]
    assert _new(units, _sharing(units, 1, absent[1], following).run_own_share) == [13, 16, 17, 19, 22, 23]


def test_a_rank_that_comes_late_gets_its_share_back() -> None:
    units, absent = _Units(), {2}
    units.done.add(8)
    assert _new(units, _sharing(units, 0, absent).run_own_share) == [0, 3, 6, 9]
    assert absent == set()


def test_the_units_of_all_that_are_absent_come_to_the_one_that_is_left() -> None:
    units, absent = _Units(), set[int]()
    sharing = _sharing(units, 1, absent)
    sharing.run_own_share()
    sharing.wait_or_take_over()
    assert sharing.is_complete()
    assert sharing.is_alone
    assert absent == {0, 2}


def test_one_that_took_over_units_and_did_not_run_them_is_absent_too() -> None:
    units, absent = _Units(), set[int]()
    sharing = _sharing(units, 0, absent)
    sharing.run_own_share()
    units.done |= {1, 4, 7, 10}
    assert _new(units, sharing.wait_or_take_over) == [2, 8]
    assert _new(units, sharing.wait_or_take_over) == [5, 11]
    assert absent == {1, 2}
