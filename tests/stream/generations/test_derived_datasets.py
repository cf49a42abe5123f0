"""Datasets made of others, by join() and windows(): their partners belong to the shards, and growth needs new ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.stream.generations.arriving import Arriving, joined

import shoal
from shoal.errors import UsageError
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.fixture
def arriving(tmp_path: Path) -> Arriving:
    arriving = Arriving(tmp_path / "data")
    arriving.arrive(["b.jsonl", "d.jsonl"], 10)
    return arriving


@pytest.fixture
def other(tmp_path: Path) -> Arriving:
    other = Arriving(tmp_path / "other")
    other.arrive(["x.jsonl"], 40)
    return other


def partners(right: Arriving) -> Dataset:
    return shoal.open(right.directory, index_columns=["id"]).rename(other="text")


def together(left: Arriving, right: Arriving, **how: Any) -> Dataset:
    opened = shoal.open(left.directory, index_columns=["id"], **how)
    return opened.join(partners(right), on="id", how="left")


def shuffled(ds: Dataset) -> Dataset:
    return ds.shuffle(seed=1, window="64KiB").batch(4)


def test_a_followed_side_of_a_join_is_refused(arriving: Arriving, other: Arriving) -> None:
    with pytest.raises(UsageError, match=r"join\(\) .* open\(follow=True\)"):
        together(arriving, other, follow=True)
    followed = shoal.open(other.directory, index_columns=["id"], follow=True)
    with pytest.raises(UsageError, match=r"join\(\) .* open\(follow=True\)"):
        shoal.open(arriving.directory, index_columns=["id"]).join(followed, on="id")


def test_a_followed_dataset_of_rows_is_refused(arriving: Arriving) -> None:
    with pytest.raises(UsageError, match=r"windows\(\) .* open\(follow=True\)"):
        shoal.open(arriving.directory, follow=True).windows(2, by=None)


@pytest.mark.parametrize("source", ["nothing", "directory", "not joined"])
def test_a_joined_dataset_is_extended_by_a_joined_dataset_alone(
    arriving: Arriving, other: Arriving, source: str
) -> None:
    ds = shuffled(together(arriving, other))
    first = [next(iter(ds))["id"].tolist()]
    arriving.arrive(["a.jsonl"], 10)
    shards = [arriving.directory / name for name in arriving.arrivals]
    wrong: Any = {"nothing": None, "directory": arriving.directory, "not joined": shoal.open(shards)}[source]
    with pytest.raises(UsageError, match=r"extended\(\).*join\(\)"):
        ds.extended(wrong)
    larger = shoal.open([str(path) for path in shards], index_columns=["id"]).join(partners(other), on="id", how="left")
    extended = ds.extended(larger)
    assert sorted(joined(first) + joined([b["id"].tolist() for b in extended])) == list(range(20))
    assert sorted(joined([b["id"].tolist() for b in extended])) == list(range(30))


def test_windows_are_extended_by_windows_alone(arriving: Arriving) -> None:
    ds = shuffled(shoal.open(arriving.directory).windows(2, by=None))
    number = sum(len(batch["id"]) for batch in ds)
    arriving.arrive(["e.jsonl"], 10)
    for wrong in (arriving.directory, shoal.open(arriving.directory)):
        with pytest.raises(UsageError, match=r"extended\(\)"):
            ds.extended(wrong)
    larger = shoal.open(arriving.directory).windows(2, by=None)
    assert number == 18
    assert sum(len(batch["id"]) for batch in ds.extended(larger)) == 27
