"""Lance tables without Lance: a small module that answers as pylance does; tests/compat/lance has the real one."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import shoal
from shoal.errors import ShardError, SourceError, StorageError, UsageError
from shoal.tables.lance.lance_library import lance_errors

ROWS = 40
DELETED = {1: [], 2: [3, 4, 5, 17]}
STRIDE = 20  # rows of a fragment


class FakeFragment:
    def __init__(self, table: FakeTable, number: int) -> None:
        self._table, self.number = table, number
        file = SimpleNamespace(path=f"{number}.lance", file_size_bytes=5000, base_id=None)
        self.metadata = SimpleNamespace(id=number, files=[file], physical_rows=STRIDE)
        self.physical_rows = STRIDE
        self.first = number * STRIDE
        self._left = [row for row in range(STRIDE) if self.first + row not in DELETED[table.version]]
        self.num_deletions = STRIDE - len(self._left)

    def scanner(self, *, columns: list[str], **how: Any) -> Any:
        if how.get("with_row_address"):
            addresses = [(self.number << 32) + row for row in self._left]
            table = pa.table({"_rowaddr": pa.array(addresses, pa.uint64())})
        else:
            table = self._table.rows.select(columns).slice(self.first + how["offset"], how["limit"])
        return SimpleNamespace(to_table=lambda: table)

    def open_session(self, columns: list[str]) -> Any:
        return SimpleNamespace(take=lambda rows: self._take(rows, columns))

    def _take(self, rows: list[int], columns: list[str]) -> pa.Table:
        self._table.module.calls.append(len(rows))
        if self._table.module.failures:
            raise self._table.module.failures.pop()
        assert rows == sorted(set(rows))
        return self._table.rows.select(columns).take([self.first + self._left[row] for row in rows])


class FakeTable:
    def __init__(self, module: Any, version: int) -> None:
        self.module, self.version, self.uri = module, version, module.uri
        self.rows = pa.table({"id": list(range(ROWS)), "text": [f"row {row}" for row in range(ROWS)]})
        self.schema = self.rows.schema
        self.tags = SimpleNamespace(list=lambda: {"good": {"version": 1, "branch": None}})
        self.branches = SimpleNamespace(list=dict)

    def versions(self) -> list[dict[str, Any]]:
        return [{"version": version, "timestamp": datetime(2026, 1, version, tzinfo=UTC)} for version in DELETED]

    def get_fragments(self) -> list[FakeFragment]:
        return [self.get_fragment(0), self.get_fragment(1)]

    def get_fragment(self, number: int) -> FakeFragment:
        return FakeFragment(self, number)

    def take(self, rows: list[int], columns: list[str]) -> pa.Table:
        self.module.calls.append(len(rows))
        left = [row for row in range(ROWS) if row not in DELETED[self.version]]
        return self.rows.select(columns).take([left[row] for row in rows])

    def base_paths(self) -> dict[int, Any]:
        return {}


@pytest.fixture
def lance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    root = tmp_path / "t.lance"
    (root / "data").mkdir(parents=True)
    for number in range(2):
        (root / "data" / f"{number}.lance").write_bytes(bytes(5000))
    module: Any = ModuleType("lance")
    module.uri, module.calls, module.failures = str(root), [], []

    def dataset(uri: str, version: int | None = None, **_: Any) -> FakeTable:
        if uri != module.uri:
            raise ValueError(f"Dataset at path {uri} was not found: Not found")
        return FakeTable(module, version or max(DELETED))

    module.dataset = dataset
    monkeypatch.setitem(sys.modules, "lance", module)
    return module


def ids(ds: shoal.Dataset) -> list[int]:
    return [sample["id"] for sample in ds]


def test_a_version_has_its_rows(lance: Any) -> None:
    left = [row for row in range(ROWS) if row not in DELETED[2]]
    assert ids(shoal.open(lance.uri)) == ids(shoal.open(f"lance://{lance.uri}", version=2)) == left
    assert ids(shoal.open(lance.uri, version="good")) == list(range(ROWS))
    assert ids(shoal.open(lance.uri, timestamp="2026-01-01T12:00:00Z")) == list(range(ROWS))
    assert sorted(ids(shoal.open(lance.uri).shuffle("full", seed=1))) == left
    batches = [batch["id"].tolist() for batch in shoal.open(lance.uri).batch(10)]
    assert sum(batches, []) == left  # noqa: RUF017  # four lists
    assert shoal.open(lance.uri)[4]["id"] == 4  # deleted, and still in the file
    opened = shoal.open(lance.uri).stream.spec.opened.one("a test")
    assert opened.index.metadata["snapshot"] == {"lance": 2}


def test_rows_read_one_by_one_share_calls(lance: Any) -> None:
    ds = shoal.open(lance.uri, version=1).shuffle("full", seed=1)
    lance.calls.clear()
    assert sorted(ids(ds)) == list(range(ROWS))
    assert len(lance.calls) < ROWS // 4
    assert sum(lance.calls) == ROWS


def test_a_state_goes_on_with_its_version(lance: Any) -> None:
    old = shoal.open(lance.uri, version=1).shuffle(seed=3)
    iterator = iter(old)
    begun = [next(iterator)["id"] for _ in range(7)]
    newest = shoal.open(lance.uri).shuffle(seed=3)
    newest.load_state_dict(old.state_dict())
    assert sorted([*begun, *ids(newest)]) == list(range(ROWS))


def test_what_is_not_there_is_named(lance: Any, tmp_path: Path) -> None:
    for how, message in (
        ({"version": 7}, "has no version 7"),
        ({"version": "god"}, r"no tag and no branch 'god'(.|\n)*did you mean 'good'"),
        ({"predicate": [("id", "<", 3)]}, "predicate="),
        ({"timestamp": "2001-01-01"}, "no version at 2001"),
    ):
        with pytest.raises(SourceError, match=message):
            shoal.open(lance.uri, **how)
    with pytest.raises(SourceError, match="no Lance table"):
        shoal.open(tmp_path / "other.lance")
    lance.failures[:] = [OSError("data/0.lance: Not found")] * 9
    with pytest.raises(StorageError, match=r"version 2 of the Lance table .*a file is missing"):
        list(shoal.open(lance.uri))


@pytest.mark.skipif(importlib.util.find_spec("lance") is not None, reason="pylance is installed")
def test_without_the_library_the_error_names_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pip install pylance"):
        shoal.open(tmp_path / "t.lance")


def test_a_corrupt_file_is_damage_of_its_shard() -> None:
    def raised(text: str) -> None:
        with lance_errors("version 2 of a table", is_remote=True, shard="data/a.lance"):
            raise OSError(text)

    with pytest.raises(ShardError, match=r"data/a\.lance.*version 2"):
        raised("Encountered corrupt file miniblock_metadata: non-final chunk 0 of 4")
    with pytest.raises(StorageError) as failed:
        raised("connection reset")
    assert failed.value.transient
