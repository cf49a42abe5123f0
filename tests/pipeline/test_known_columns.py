"""Columns of another index: values of known shards are copied in any order of the shards, other shards are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.indexing.opened_dataset import Opened
from shoal.pipeline.sample_columns import added_columns, column_scan
from shoal.pipeline.sample_columns.appended_columns import columns_as_in

NAMES = "dbfac"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for number, name in enumerate(NAMES):
        rows = [{"n": 10 * number + row, "word": f"{name}{row % 3}"} for row in range(4 + number)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def opened(home: Path, names: str, **how: Any) -> Opened:
    paths = [home / f"{name}.jsonl" for name in names]
    return shoal.open(paths, **how).stream.opened.one("the test")


@pytest.mark.parametrize(
    ("before", "names", "read"),
    [("db", "abcdf", "acf"), ("fac", "cfa", ""), ("dbfac", "bf", ""), ("d", "bac", "bac"), ("ca", "afcd", "fd")],
)
def test_only_other_shards_are_read(
    home: Path, before: str, names: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = opened(home, before, index_columns=["word", "n"]).index
    wanted = opened(home, names, index_columns=["word", "n"]).index
    scanned: list[str] = []
    scan = column_scan.scan_columns

    def recorded(rows: Opened, *arguments: Any, **how: Any) -> Any:
        scanned.extend(rows.index.shard_names)
        return scan(rows, *arguments, **how)

    monkeypatch.setattr(added_columns, "scan_columns", recorded)
    index = columns_as_in(opened(home, names), known)
    assert "".join(name[0] for name in scanned) == read
    assert index.fingerprint == wanted.fingerprint
    assert index.columns["n"].tolist() == wanted.columns["n"].tolist()
    words = [[each.metadata["texts"]["word"][number] for number in each.columns["word"]] for each in (index, wanted)]
    assert words[0] == words[1]
    assert index.metadata["texts"]["word"] == sorted(index.metadata["texts"]["word"])


def test_a_shard_of_the_same_name_with_other_samples_is_read(home: Path) -> None:
    known = opened(home, "db", index_columns=["n"]).index
    path = home / "d.jsonl"
    path.write_text(path.read_text().replace('"n": 3', '"n": 7'))
    index = columns_as_in(opened(home, "bd"), known)
    assert index.columns["n"].tolist() == [10, 11, 12, 13, 14, 0, 1, 2, 7]
