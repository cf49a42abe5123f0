"""A new user's first minutes: all the ways of naming shards, and what is said where that does not work."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.samples import write_tar
from tests.stream.made import ids_of, write_lines, write_tars

import shoal
from shoal.errors import ShoalError, SourceError, StorageError, UsageError
from shoal.indexing.index_files import save_index
from shoal.storage.files.local_store import LocalStore


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_tars(tmp_path / "data", [5, 6, 7])
    write_lines(tmp_path / "lines", [4, 3])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "num_samples"),
    [
        ("data/s-{000..002}.tar", 18),
        ("data/s-{000,002}.tar", 12),
        ("data/*.tar", 18),
        ("data/s-00[01].tar", 11),
        ("data", 18),
        ("data/", 18),
        ("./data/s-001.tar", 6),
        ("lines", 7),
        ("lines/*.jsonl", 7),
        (Path("data"), 18),
        (Path("data/s-002.tar"), 7),
        (["data/s-000.tar", "data/s-002.tar"], 12),
        ([Path("data/s-000.tar"), "data/s-00{1,2}.tar"], 18),
    ],
)
def test_every_way_of_naming_shards(source: Any, num_samples: int, here: Path) -> None:
    ds = shoal.open(source)
    assert ds.num_samples == len(ds) == num_samples
    assert len(list(ds.shuffle(seed=1))) == num_samples
    assert len(list(ds.shuffle("full").batch(4))) == -(-num_samples // 4)


def test_an_index_file_is_a_source_and_an_argument(here: Path) -> None:
    index = shoal.open("data").stream.opened.index
    state = shoal.open("data").shuffle("full", seed=3).state_dict()
    kept = save_index(index, here / "kept.index", store=LocalStore())
    beside = save_index(index, here / "data", store=LocalStore())
    for ds in (shoal.open("data", index=kept), shoal.open(beside), shoal.open(Path(beside)), shoal.open("data")):
        assert ids_of(ds) == list(range(18))
        ds.shuffle("full", seed=3).load_state_dict(state)
    assert ids_of(shoal.open("data/s-001.tar", index=kept)) == list(range(5, 11))


def test_a_format_can_be_told(here: Path) -> None:
    Path("data/s-000.tar").rename("plain")
    with pytest.raises(SourceError, match=r"(?s)plain.*format"):
        shoal.open("plain")
    assert ids_of(shoal.open("plain", format="tar")) == [0, 1, 2, 3, 4]


def make_empty(here: Path) -> None:
    (here / "none").mkdir()
    write_tar(here / "empty.tar", [])
    (here / "empty.jsonl").write_text("\n\n")
    (here / "zero.tar").touch()
    (here / "x.parquet").write_bytes(b"PAR1")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("data/*.jsonl", r"data/\*\.jsonl"),
        ("nowhere/*.tar", "nowhere"),
        ("nowhere.tar", "nowhere.tar"),
        ("data/s-{000..005}.tar", r"s-003\.tar"),
        ("none", "none"),
        ("empty.tar", "without a single sample"),
        ("empty.jsonl", "without a single sample"),
        ("zero.tar", "zero.tar.*empty"),
        ("x.parquet", "x.parquet"),
        (["data/s-000.tar", "lines/s-000.jsonl"], "two formats"),
        (["data/s-000.tar", "data/s-000.tar"], "s-000.tar"),
        ([], "no|empty"),
        ("", "no|empty|''"),
        (3, "not int"),
        (None, "not NoneType"),
        ("s3://bucket/train-{000..001}.tar", "s3"),
    ],
)
def test_what_cannot_be_opened_is_said_with_a_remedy(source: Any, message: str, here: Path) -> None:
    make_empty(here)
    with pytest.raises(ShoalError, match=re.compile(message, re.DOTALL)) as caught:
        shoal.open(source)
    assert caught.value.hint


def test_an_unknown_format_lists_the_known_ones(here: Path) -> None:
    with pytest.raises(UsageError, match=r"(?s)'nosuch'.*tar.*jsonl|jsonl.*tar"):
        shoal.open("data", format="nosuch")


@pytest.mark.skipif(os.geteuid() == 0, reason="everything is allowed to root")
def test_a_shard_that_may_not_be_read(here: Path) -> None:
    Path("data/s-001.tar").chmod(0)
    with pytest.raises(StorageError, match=r"s-001\.tar"):
        shoal.open("data")


@pytest.mark.parametrize(
    "use",
    [
        lambda ds: ds.shuffle(seed=1),
        lambda ds: ds.batch(3),
        lambda ds: ds.shuffle("full").decode().map(dict).filter(bool).with_ids().batch(2, remainder="pad"),
    ],
)
def test_one_sample_is_a_dataset(use: Callable, tmp_path: Path) -> None:
    ds = use(shoal.open(write_tars(tmp_path / "one", [1])))
    assert len(list(ds)) == 1
    assert ds.state_dict()["epoch"] == 1
    ranks = [use(shoal.open(tmp_path / "one")).partition(rank=rank, world_size=3) for rank in range(3)]
    assert sum(len(list(rank)) for rank in ranks) in (1, 3)
