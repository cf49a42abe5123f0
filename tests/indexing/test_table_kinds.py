"""Tables by name, suffix and log: a kind of table that tests make, with a log of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import IndexFileError, SourceError
from shoal.formats import Format, JsonLines, Records, Span
from shoal.formats.shard_format import ROW
from shoal.index.shard_scan import Buffer
from shoal.indexing.tables import table_kinds
from shoal.indexing.tables.snapshot_protocol import Snapshot, TableRequest
from shoal.storage.sources.source import Source

VERSIONS: list[dict[str, Any]] = [{"files": ["a", "b"], "deleted": {}}, {"files": ["b", "c"], "deleted": {"c": [0, 3]}}]


class NotedRecords:
    """Samples with the note of their file in the log."""

    def __init__(self, records: Records, note: str) -> None:
        self._records, self._note = records, note
        self.layout_crcs = records.layout_crcs

    def __len__(self) -> int:
        return len(self._records)

    def sample(self, number: int) -> dict[str, Any]:
        return {**self._records.sample(number), "note": self._note}


class Noted(JsonLines):
    def parse(self, buffer: Buffer, span: Span) -> Any:
        return NotedRecords(super().parse(buffer, span), span.head[ROW]["note"])


class Logged:
    name = "logged"
    format: Format = Noted()

    def snapshot(self, request: TableRequest) -> Snapshot:
        version = request.wanted.version
        if isinstance(version, Mapping):
            version = version["logged"]
        number = len(VERSIONS) - 1 if version is None else int(version)
        if number >= len(VERSIONS):
            msg = f"{request.root}: there is no version {number}"
            raise SourceError(msg, hint=f"the last is {len(VERSIONS) - 1}")
        log = VERSIONS[number]
        names = [f"{name}.jsonl" for name in log["files"]]
        paths = tuple(str(Path(request.root, name)) for name in names)
        return Snapshot(
            Source("list", f"logged {request.root}", request.root, tuple(names), paths),
            self.format,
            {"logged": number},
            rows={name: {"note": name[0].upper()} for name in names},
            deleted={f"{name}.jsonl": np.array(rows) for name, rows in log["deleted"].items()},
        )


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in ("a", "b", "c"):
        lines = [json.dumps({"text": f"{name}{number}"}) for number in range(4)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    for door in (table_kinds._KINDS, table_kinds._BY_SUFFIX):
        monkeypatch.setitem(vars(door), "own", {"logged": Logged, ".logged": Logged, "delta": Logged})
        monkeypatch.setattr(door, "_core", {"logged": Logged, ".logged": Logged, "delta": Logged})
    return str(tmp_path)


def texts(ds: shoal.Dataset) -> list[str]:
    return [sample["text"] for sample in ds]


def test_the_version_says_which_files_and_rows_are_read(table: str) -> None:
    new = shoal.open(f"logged://{table}")
    assert texts(new) == ["b0", "b1", "b2", "b3", "c1", "c2"]
    assert [sample["note"] for sample in new] == ["B"] * 4 + ["C"] * 2
    assert sorted(texts(new.shuffle(seed=1))) == sorted(texts(new))
    assert texts(shoal.open(f"logged://{table}", version=0)) == [
        f"{name}{number}" for name in "ab" for number in range(4)
    ]
    with pytest.raises(SourceError, match="no version 7"):
        shoal.open(f"logged://{table}", version=7)


def test_a_log_in_a_directory_makes_it_a_table(table: str) -> None:
    Path(table, "_delta_log").mkdir()
    Path(table, "_delta_log", "0.json").write_text(json.dumps({}))
    assert len(texts(shoal.open(table))) == 6


def test_a_suffix_makes_a_directory_a_table(table: str, tmp_path: Path) -> None:
    (tmp_path / "t.logged").mkdir()
    for file in tmp_path.glob("*.jsonl"):
        file.rename(tmp_path / "t.logged" / file.name)
    assert len(texts(shoal.open(tmp_path / "t.logged"))) == 6


def test_an_index_belongs_to_its_version(table: str, tmp_path: Path) -> None:
    opened = shoal.open(f"logged://{table}").stream.spec.opened.one("this test")
    assert opened.index.metadata["snapshot"] == {"logged": 1}
    assert opened.index_path is not None
    assert len(texts(shoal.open(f"logged://{table}", index=opened.index_path))) == 6
    with pytest.raises(IndexFileError, match="logged"):
        shoal.open(f"logged://{table}", version=0, index=opened.index_path)


def test_plain_shards_have_no_versions(table: str) -> None:
    with pytest.raises(SourceError, match="version="):
        shoal.open(f"{table}/a.jsonl", version=1)
