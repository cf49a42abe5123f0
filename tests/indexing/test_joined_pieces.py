"""Shards joined from parts of many objects: a made table whose columns are files of numbers."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import ShardError, StorageError
from shoal.index.shard_scan import Buffer
from shoal.indexing.tables import table_kinds
from shoal.indexing.tables.joined_pieces import JoinedPieces, JoinedRows, JoinedStore, Part, Pieces
from shoal.indexing.tables.snapshot_protocol import Snapshot, TableRequest
from shoal.storage.files.local_store import LocalStore
from shoal.storage.sources.source import Source
from shoal.storage.store_protocol import Store
from shoal.testing import check_format

NUM_ROWS, ROWS_EACH, ROWS_A_SHARD = 50, 4, 20


class Numbers(JoinedPieces):
    """Two fields: ``a`` in files of 4 numbers, ``b`` in one file, of which each piece has a part; missing are zeros."""

    name, fields, row_bytes = "numbers", ("a", "b"), 8

    def num_parts(self, row: int, end_row: int) -> int:
        if row % ROWS_EACH or end_row != min(row + ROWS_EACH, NUM_ROWS):
            raise ValueError(f"no file has the rows [{row}, {end_row})")
        return 2

    def decoded(self, pieces: Pieces, names: Sequence[str]) -> Mapping[str, Any]:
        columns: dict[str, list[Any]] = {name: [] for name in self.fields}
        for row, end_row, parts in pieces:
            for name, part in zip(self.fields, parts, strict=True):
                columns[name].append(values_of(part, end_row - row))
        return {name: np.concatenate(columns[name]) for name in names}


def values_of(part: Buffer, count: int) -> Any:
    if not len(part):
        return np.zeros(count, np.int32)
    values = np.frombuffer(bytes(part), "<i4")
    if len(values) != count:
        raise ValueError(f"{len(values)} numbers, not {count}")
    return values


class PiecesIn:
    def __init__(self, root: str, store: Store) -> None:
        self.root, self.store = root, store

    def __call__(self, path: str) -> list[JoinedRows]:
        first, pieces = int(path.rpartition("-")[2]), []
        for row in range(first, min(first + ROWS_A_SHARD, NUM_ROWS), ROWS_EACH):
            end_row = min(row + ROWS_EACH, NUM_ROWS)
            stored = self.store.find(f"{self.root}/a-{row}")
            part = Part() if stored is None else Part(stored, 0, stored.num_bytes)
            beside = Part(self.store.stat(f"{self.root}/b"), 4 * row, 4 * (end_row - row))
            pieces.append(JoinedRows(row, end_row, [part, beside]))
        return pieces


class NumbersTable:
    name = "numbers"

    def snapshot(self, request: TableRequest) -> Snapshot:
        names = tuple(f"rows-{row}" for row in range(0, NUM_ROWS, ROWS_A_SHARD))
        paths = tuple(f"{request.root}/{name}" for name in names)
        store = JoinedStore(request.store, PiecesIn(request.root, request.store))
        return Snapshot(
            Source("list", request.root, request.root, names, paths), Numbers(), {"numbers": 1}, store=store
        )


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "table.numbers"
    root.mkdir()
    for row in range(0, NUM_ROWS, ROWS_EACH):
        if row != 8:
            values = np.arange(row, min(row + ROWS_EACH, NUM_ROWS), dtype="<i4")
            (root / f"a-{row}").write_bytes(values.tobytes())
    (root / "b").write_bytes(np.arange(NUM_ROWS, dtype="<i4")[::-1].tobytes())
    for door in (table_kinds._KINDS, table_kinds._BY_SUFFIX):
        monkeypatch.setitem(vars(door), "own", {".numbers": NumbersTable})
        monkeypatch.setattr(door, "_core", {".numbers": NumbersTable})
    return root


def expected() -> list[dict[str, Any]]:
    a = [0 if 8 <= row < 12 else row for row in range(NUM_ROWS)]
    return [{"a": np.int32(a[row]), "b": np.int32(NUM_ROWS - 1 - row)} for row in range(NUM_ROWS)]


def test_samples_come_from_all_objects(table: Path) -> None:
    ds = shoal.open(table)
    assert list(ds) == expected()
    assert ds[9] == {"a": 0, "b": 40}
    key = lambda sample: int(sample["b"])  # noqa: E731
    assert sorted(ds.shuffle(seed=1), key=key) == sorted(expected(), key=key)
    batches = list(ds.columns("b").batch(16))
    assert np.concatenate([batch["b"] for batch in batches]).tolist() == list(range(NUM_ROWS - 1, -1, -1))
    assert set(batches[0]) == {"b"}
    opened = ds.stream.spec.opened.one("this test")
    assert opened.index.num_shards == 3
    assert opened.index.metadata["snapshot"] == {"numbers": 1}
    assert list(pickle.loads(pickle.dumps(opened.store))._pieces_of(opened.paths[2])[-1])[:2] == [48, 50]


def test_a_joined_shard_has_the_version_of_its_objects(table: Path) -> None:
    store = JoinedStore(LocalStore(), PiecesIn(str(table), LocalStore()))
    path = f"{table}/rows-20"
    before = store.stat(path)
    whole = store.read_range(path, 0, before.num_bytes)
    for first, end in [(0, 0), (0, 1), (15, 60), (33, before.num_bytes), (before.num_bytes, before.num_bytes)]:
        assert store.read_range(path, first, end) == whole[first:end]
    with pytest.raises(StorageError, match=f"ends at byte {before.num_bytes}"):
        store.read_range(path, 0, before.num_bytes + 1)
    (table / "a-24").write_bytes(np.arange(4, dtype="<i4").tobytes() * 2)
    store.close()
    after = store.stat(path)
    assert after.num_bytes == before.num_bytes + 16
    assert after.version != before.version


def test_an_object_that_changed_since_it_was_listed_is_an_error(table: Path) -> None:
    listed = PiecesIn(str(table), LocalStore())(f"{table}/rows-20")
    (table / "a-24").write_bytes(bytes(20))
    store = JoinedStore(LocalStore(), lambda _: listed)
    with pytest.raises(StorageError, match="a-24: this object has changed"):
        store.stat(f"{table}/rows-20")


def test_the_format_keeps_its_promises(table: Path) -> None:
    store = JoinedStore(LocalStore(), PiecesIn(str(table), LocalStore()))
    shards = {}
    for first in range(0, NUM_ROWS, ROWS_A_SHARD):
        name = f"rows-{first}"
        shards[name] = (bytes(store.map(f"{table}/{name}")), expected()[first : first + ROWS_A_SHARD])
    report = check_format(Numbers(), shards, num_damaged=60)
    assert report.num_samples == NUM_ROWS
    assert report.damage.num_refused > 0


def test_a_damaged_object_is_named_by_its_rows(table: Path) -> None:
    ds = shoal.open(table)
    assert ds[0]["a"] == 0
    (table / "a-24").write_bytes(bytes(3))
    with pytest.raises(ShardError, match=r"rows \[20, 40\) cannot be decoded: buffer size") as caught:
        list(shoal.open(table))
    assert caught.value.shard == "rows-20"
