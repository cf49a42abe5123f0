"""Windows of the rows of a table, while the table moves on: states of windows name the version of the table."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import shoal
from shoal.errors import StateError
from shoal.indexing.opened_dataset import Opened
from shoal.pipeline.sample_columns import added_columns, column_scan

deltalake = pytest.importorskip("deltalake")

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

ROWS, LENGTH = 6, 3


def episodes(first: int, stop: int) -> pa.Table:
    rows = range(first * ROWS, stop * ROWS)
    return pa.table({"n": pa.array(rows, pa.int64()), "episode_index": [n // ROWS for n in rows]})


def firsts(first: int, stop: int) -> list[int]:
    """The first row of each window of some episodes."""
    return [n for n in range(first * ROWS, stop * ROWS) if n % ROWS <= ROWS - LENGTH]


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = str(tmp_path / "t")
    deltalake.write_deltalake(path, episodes(0, 4))
    return path


def windows(root: str, **how: Any) -> shoal.Dataset:
    return shoal.open(root, **how).windows(LENGTH).shuffle(seed=1).batch(4)


def taken(ds: shoal.Dataset) -> list[int]:
    numbers: list[int] = []
    for batch in ds:
        assert (np.diff(batch["n"], axis=1) == 1).all()
        numbers += batch["n"][:, 0].tolist()
    return numbers


def test_a_resumed_run_goes_on_with_windows_of_the_version_of_its_state(root: str, tmp_path: Path) -> None:
    ds = windows(root)
    iterator = iter(ds)
    for _ in range(2):
        next(iterator)
    state = json.loads(json.dumps(iterator.state_dict()))
    assert state["snapshot"] == '{"delta": 0}'
    rest = [n for batch in iterator for n in batch["n"][:, 0].tolist()]
    deltalake.write_deltalake(root, episodes(4, 6), mode="append")
    deltalake.DeltaTable(root).delete("n < 6")
    assert sorted(taken(windows(root))) == firsts(1, 6)
    later = windows(root)
    later.load_state_dict(state)
    assert "version delta 0 of the table, which is delta 2 as opened" in repr(later)
    assert taken(later) == rest
    assert sorted(taken(later)) == firsts(0, 4)  # and the next epoch too


def test_followed_windows_take_the_newest_version(root: str) -> None:
    ds = windows(root, follow=True)
    assert sorted(taken(ds)) == firsts(0, 4)
    deltalake.write_deltalake(root, episodes(4, 6), mode="append")
    assert sorted(taken(ds)) == firsts(0, 6)
    assert ds.state_dict()["snapshot"] == '{"delta": 1}'
    fixed = windows(root, version=0)
    assert sorted(taken(fixed)) == sorted(taken(fixed)) == firsts(0, 4)
    for source in (root, shoal.open(root).windows(LENGTH)):
        assert sorted(taken(fixed.extended(source))) == firsts(0, 6)


def test_only_new_files_are_read_for_the_episodes_of_a_version(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[int] = []
    scan = column_scan.scan_columns

    def recorded(rows: Opened, *arguments: Any, **how: Any) -> Any:
        scanned.append(rows.index.num_samples)
        return scan(rows, *arguments, **how)

    monkeypatch.setattr(added_columns, "scan_columns", recorded)
    deltalake.write_deltalake(root, episodes(4, 7), mode="append")
    ds = windows(root, follow=True)
    for version, new in enumerate((episodes(10, 12), episodes(7, 8))):
        deltalake.write_deltalake(root, new, mode="append")
        assert len(taken(ds)) == len(firsts(0, 7 + 2 + version))
    deltalake.DeltaTable(root).delete("n >= 60")  # the files of two episodes: nothing is read
    assert sorted(taken(ds)) == firsts(0, 8)
    column = ds.stream.opened.index.columns["episode_index"]
    assert column.tolist() == [n // ROWS for n in ds.stream.opened.index.columns["anchor_row"]]
    assert scanned == [7 * ROWS, 2 * ROWS, ROWS]
    deltalake.write_deltalake(root, episodes(20, 21), mode="append")
    assert len(taken(ds.extended(root))) == len(firsts(0, 9))
    assert scanned[3:] == [ROWS]


def test_windows_of_a_lost_version_are_refused_with_both_versions(root: str) -> None:
    ds = windows(root)
    next(iter(ds))
    state = ds.state_dict()
    deltalake.DeltaTable(root).delete("n < 6")
    deltalake.DeltaTable(root).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(StateError, match=r"the version delta 0 of the table, which is delta 3 now.*does not exist"):
        windows(root).load_state_dict(state)
    other = shoal.open(root).windows(LENGTH + 1).shuffle(seed=1).batch(4)
    state = windows(root).state_dict()
    with pytest.raises(StateError, match="tried: windows of 4 rows by episode_index of the version delta 3 of the"):
        other.load_state_dict(state)


def test_a_worker_gets_windows_and_no_connection(root: str) -> None:
    opened = pickle.loads(pickle.dumps(windows(root).stream.spec)).opened.one("this test")
    assert opened.latest.look_again(opened) is opened
    deltalake.write_deltalake(root, episodes(4, 5), mode="append")
    assert opened.latest.look_again(opened).index.num_samples == len(firsts(0, 5))
