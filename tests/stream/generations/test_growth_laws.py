"""Random growth at random positions, stops and resumes at other world sizes: each epoch reads its own shards, once.

A dataset of exactly the shards of an epoch, which never grew, has the order that is due. Each leg of a run is on
another machine, which sees all shards that have arrived, and has no index from before.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.stream.generations.arriving import Arriving, order_of

import shoal
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

_NAMES = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Leg:
    """A part of a run: a world size and steps; shards may arrive after a step, and the run may take them or not."""

    world_size: int
    steps: int
    arrives_after: int | None
    is_taken: bool


LEGS = st.builds(
    Leg,
    st.sampled_from([1, 2, 3, 5]),
    st.integers(1, 9),
    st.none() | st.integers(0, 8),
    st.booleans(),
)


@dataclass
class Run:
    """A run whose dataset grows: the shards of the running epoch and of the next, and the positions done."""

    arriving: Arriving
    names: Iterator[str]
    shards: list[str]
    of_windows: bool = False
    following: list[str] = field(default_factory=list)
    epoch: int = 0
    done: int = 0
    state: dict[str, Any] | None = None
    num_taken: int = 0
    orders: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def _rows(self, source: Any) -> Dataset:
        return shoal.open(source).windows(2, by=None) if self.of_windows else shoal.open(source)

    def _dataset(self, source: Any) -> Dataset:
        return self._rows(source).shuffle(seed=5, window="24KiB")

    def _order(self) -> list[int]:
        """The ids by position of the running epoch; of windows, the ids of their first rows."""
        if not self.of_windows:
            return order_of(self.arriving, self.shards, self.epoch)
        windows = self._dataset(self.shards)
        rows = windows.index_column("anchor_row")[windows.ids(self.epoch)]
        return np.array(self.arriving.ids_in(self.shards))[rows].tolist()

    def leg(self, leg: Leg) -> None:
        ranks = [
            self._dataset(self.arriving.directory).batch(2).partition(rank=rank, world_size=leg.world_size)
            for rank in range(leg.world_size)
        ]
        if self.state is None:
            self.shards = [str(self.arriving.directory / name) for name in sorted(self.arriving.arrivals)]
        for rank in ranks:
            if self.state is not None:
                rank.load_state_dict(json.loads(json.dumps(self.state)))
        iterators = [iter(rank) for rank in ranks]
        for step in range(leg.steps):
            iterators = self._step(ranks, iterators)
            if step == leg.arrives_after:
                ranks, iterators = self._arrive(leg, ranks, iterators)
        self.state = ranks[0].state_dict()
        assert all(rank.state_dict() == self.state for rank in ranks)
        assert len(json.dumps(self.state)) < 1000
        for iterator in iterators:
            iterator.close()

    def _step(self, ranks: list[Dataset], iterators: list[Any]) -> list[Any]:
        """Take a batch of each rank, and compare all of them with the positions that are next."""
        key = (self.epoch, len(self.shards))
        if key not in self.orders:
            self.orders[key] = self._order()
        due = self.orders[key]
        batches = [next(iterator) for iterator in iterators]
        ids = [
            i
            for batch in batches
            for i, again in zip(first_ids(batch), batch.get("__pad__", [False] * len(batch["id"])), strict=True)
            if not again
        ]
        self.num_taken += len(ids)
        global_batch = 2 * len(ranks)
        assert sorted(ids) == sorted(due[self.done : self.done + global_batch])
        self.done += global_batch
        if self.done < len(due):
            return iterators
        self.epoch, self.done = self.epoch + 1, 0
        self.shards, self.following = self.following or self.shards, []
        return [iter(rank) for rank in ranks]

    def _arrive(self, leg: Leg, ranks: list[Dataset], iterators: list[Any]) -> tuple[list[Dataset], list[Any]]:
        new = self.arriving.arrive(sorted({next(self.names), next(self.names)}), 5)
        if not leg.is_taken:
            return ranks, iterators
        known = self.following or self.shards
        missing = [str(self.arriving.directory / name) for name in sorted(self.arriving.arrivals)]
        missing = [path for path in missing if path not in known]
        assert set(new) <= set(missing)
        grown = self._rows([*known, *missing])
        for iterator in iterators:
            iterator.close()
        ranks = [rank.extended(grown) for rank in ranks]
        if self.done:
            self.following = [*known, *missing]
        else:
            self.shards = [*known, *missing]
        return ranks, [iter(rank) for rank in ranks]


def first_ids(batch: dict[str, Any]) -> list[int]:
    """The ids of the samples of a batch; of windows, the ids of their first rows."""
    ids = batch["id"] if batch["id"].ndim == 1 else batch["id"][:, 0]
    return ids.tolist()


def check(legs: list[Leg], letters: list[str], first: int, *, of_windows: bool = False) -> None:
    with tempfile.TemporaryDirectory() as home:
        names = iter([f"{letter}.jsonl" for letter in letters])
        arriving = Arriving(Path(home, "data"))
        arriving.arrive(sorted(next(names) for _ in range(first)), 6)
        run = Run(arriving, names, [], of_windows)
        for number, leg in enumerate(legs):
            os.environ["SHOAL_CACHE_DIR"] = str(Path(home, f"cache-{number}"))
            run.leg(leg)


_ARGUMENTS: dict[str, Any] = {
    "legs": st.lists(LEGS, min_size=2, max_size=5),
    "letters": st.permutations(_NAMES),
    "first": st.integers(1, 4),
}
_CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@settings(max_examples=6, deadline=None, suppress_health_check=_CHECKS)
@given(**_ARGUMENTS)
def test_each_epoch_reads_its_own_shards_once(
    legs: list[Leg], letters: list[str], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", os.environ["SHOAL_CACHE_DIR"])
    check(legs, letters, first)


@settings(max_examples=3, deadline=None, suppress_health_check=_CHECKS)
@given(**_ARGUMENTS)
def test_each_epoch_has_the_windows_of_its_own_shards_once(
    legs: list[Leg], letters: list[str], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", os.environ["SHOAL_CACHE_DIR"])
    check(legs, letters, first, of_windows=True)


@pytest.mark.drill
@pytest.mark.parametrize("of_windows", [False, True], ids=["samples", "windows"])
@pytest.mark.timeout(1200)
@settings(max_examples=150, deadline=None, suppress_health_check=_CHECKS)
@given(**_ARGUMENTS)
def test_each_epoch_reads_its_own_shards_once_in_many_runs(
    legs: list[Leg], letters: list[str], first: int, of_windows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", os.environ["SHOAL_CACHE_DIR"])
    check(legs, letters, first, of_windows=of_windows)
