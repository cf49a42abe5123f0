"""Tables of Delta Lake: each version has the rows that deltalake itself reads."""

from __future__ import annotations

import logging
import struct
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.tables.compared_rows import assert_same_rows, plain, texts_of
from tests.tables.handmade_delta import HandmadeDelta, field, struct_of

import shoal
from shoal.errors import SourceError, StorageError, UsageError

deltalake = pytest.importorskip("deltalake")

LOCAL = datetime(2026, 1, 1, 1, 2, 3, tzinfo=UTC).replace(tzinfo=None)


def rows(first: int, stop: int) -> pa.Table:
    numbers = range(first, stop)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "small": pa.array([number % 100 for number in numbers], pa.int8()),
            "text": pa.array([f"text {number}" if number % 3 else None for number in numbers]).dictionary_encode(),
            "score": pa.array([number / 3 for number in numbers], pa.float32()),
            "price": pa.array([Decimal(number) / 4 for number in numbers], pa.decimal128(12, 2)),
            "when": pa.array(
                [datetime(2026, 1, 1, 1, 2, 3, number, UTC) for number in numbers], pa.timestamp("us", "UTC")
            ),
            "local": pa.array([LOCAL.replace(microsecond=number) for number in numbers], pa.timestamp("us")),
            "blob": pa.array([bytes([number % 256, 255]) for number in numbers]),
            "list": pa.array([[number, None] if number % 2 else None for number in numbers], pa.list_(pa.int64())),
            "nested": pa.array(
                [{"x": number, "y": [{"z": str(number)}]} if number % 5 else None for number in numbers]
            ),
            "map": pa.array(
                [[(str(number), number)] if number % 4 else None for number in numbers],
                pa.map_(pa.string(), pa.int64()),
            ),
            "day": pa.array([date(2026, 1, 1 + number // 10) if number % 7 else None for number in numbers]),
        }
    )


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table with a version for each operation of the library."""
    root = str(tmp_path_factory.mktemp("delta") / "table with a blank")
    deltalake.write_deltalake(root, rows(0, 40), partition_by=["day"])
    deltalake.write_deltalake(root, rows(40, 60), mode="append")
    table = deltalake.DeltaTable(root)
    table.update(predicate="id > 50", updates={"text": "'updated'"})
    table.delete("id % 4 = 1")
    source = pa.table({"id": pa.array([3, 1000], pa.int64()), "text": ["merged", "inserted"]})
    merger = table.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
    merger.when_matched_update({"text": "s.text"}).when_not_matched_insert({"id": "s.id", "text": "s.text"}).execute()
    added = rows(60, 65).drop_columns(["text"]).append_column("added", pa.array(range(5), pa.int32()))
    deltalake.write_deltalake(root, added, mode="append", schema_mode="merge")
    table = deltalake.DeltaTable(root)
    table.optimize.compact()
    table.optimize.z_order(["id"])
    table.create_checkpoint()
    deltalake.write_deltalake(root, rows(65, 66), mode="append", schema_mode="merge")
    return root


def test_each_version_has_the_rows_that_the_library_reads(history: str) -> None:
    newest = deltalake.DeltaTable(history)
    assert newest.version() == 8
    for version in range(newest.version() + 1):
        expected = deltalake.DeltaTable(history, version=version).to_pyarrow_table()
        num_rows = assert_same_rows(shoal.open(history, version=version), expected)
        assert num_rows == shoal.open(f"delta://{history}", version=str(version)).num_samples
    assert_same_rows(shoal.open(history).shuffle(seed=1), newest.to_pyarrow_table())
    first = shoal.open(history, version=0)
    written = newest.history()[-1]["timestamp"]
    at_first = datetime.fromtimestamp(written / 1000, UTC).isoformat()
    assert texts_of(shoal.open(history, timestamp=at_first)) == texts_of(first)


def test_columns_are_read_alone(history: str) -> None:
    ds = shoal.open(history, version=1)
    expected = deltalake.DeltaTable(history, version=1).to_pyarrow_table(columns=["score", "day"])
    assert texts_of(ds.columns("score", "day")) == texts_of(expected.to_pylist())


def test_a_version_or_a_time_without_a_table_is_refused(history: str, tmp_path: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"version": 99}, "cannot read this version"),
        ({"version": "main"}, "versions of Delta Lake are numbers"),
        ({"timestamp": "2001-01-01"}, "no version at 2001-01-01"),
        ({"split": "train"}, "no splits"),
        ({"format": "parquet"}, "format= was given"),
    ]
    for arguments, match in refused:
        with pytest.raises(SourceError, match=match):
            shoal.open(history, **arguments)
    malformed: list[tuple[dict[str, Any], str]] = [
        ({"timestamp": "yesterday"}, "ISO 8601"),
        ({"timestamp": "2026-01-01", "version": 1}, "both given"),
        ({"predicate": [("nothing", "=", 1)]}, "nothing"),
        ({"predicate": [("id", "~", 1)]}, "operator '~'"),
        ({"predicate": [("id", "=", None)]}, "compares 'id' with None"),
        ({"predicate": "id = 1"}, "predicate= is"),
    ]
    for arguments, match in malformed:
        with pytest.raises(UsageError, match=match):
            shoal.open(history, **arguments)
    with pytest.raises(SourceError, match="nowhere"):
        shoal.open(f"delta://{tmp_path}/nowhere")


def test_a_predicate_leaves_out_files_and_filters_no_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = str(tmp_path / "t")
    for first in range(0, 40, 10):
        deltalake.write_deltalake(root, rows(first, first + 10).drop_columns(["map"]), mode="append")
    caplog.set_level(logging.INFO, "shoal")
    assert [sample["id"] for sample in shoal.open(root, predicate=[("id", ">=", 25)])] == list(range(20, 40))
    assert "leaves out 2 of 4 files" in caplog.text
    either = [[("id", "<", 5)], [("id", ">", 30), ("text", "!=", "a")]]
    assert shoal.open(root, predicate=either).num_samples == 20
    assert shoal.open(root, predicate=[["id", "in", [1, 39]]]).num_samples == 20
    with pytest.raises(SourceError, match="has no files"):
        shoal.open(root, predicate=[("id", ">", 100)])


def test_partition_values_are_of_the_log_and_have_types(tmp_path: Path) -> None:
    table = HandmadeDelta(tmp_path / "t", "timestampNtz", partition_columns=["day", "n"])
    data = pa.table({"id": pa.array([1, 2], pa.int64())})
    table.root.joinpath("day=1999-01-01").mkdir()
    name = "day=1999-01-01/a.parquet"
    first = table.file(name, data, partition={"day": "2026-01-02", "n": "7"})
    last = table.file("b.parquet", data, partition={"day": None, "n": None})
    table.commit(table.schema(field("id", "long"), field("day", "date"), field("n", "integer")), first, last)
    expected = [{"id": 1, "day": None, "n": None}, {"id": 1, "day": date(2026, 1, 2), "n": 7}]
    assert [plain(sample) for sample in shoal.open(table.root)][::2] == expected
    assert [plain(sample) for sample in shoal.open(table.root).columns("n", "day")][3] == {
        "day": date(2026, 1, 2), "n": 7,
    }  # fmt: skip


def mapped(root: Path, mode: str) -> HandmadeDelta:
    """A table whose columns were renamed, added and dropped, in structs too."""
    table = HandmadeDelta(root, "columnMapping", "deletionVectors", partition_columns=["day"], mode=mode)
    # Files have ids only with mode "id"; names of the first schema are names of files.
    numbered = {"id": b"1", "s": b"2", "x": b"3", "y": b"4", "old": b"5", "l": b"8", "e": b"9"}

    def typed(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(f"c-{name}", kind, metadata={"PARQUET:field_id": numbered[name]} if mode == "id" else None)

    inner = pa.struct([typed("x", pa.int32()), typed("y", pa.string())])
    listed = pa.list_(pa.struct([typed("e", pa.int32())]))
    schema = pa.schema([typed("id", pa.int64()), typed("s", inner), typed("old", pa.float64()), typed("l", listed)])
    columns = {
        "c-id": range(20),
        "c-s": [{"c-x": number, "c-y": str(number)} if number % 4 else None for number in range(20)],
        "c-old": [0.5] * 20,
        "c-l": [[{"c-e": number}, None] if number % 3 else None for number in range(20)],
    }
    data = pa.table({name: pa.array(list(values), schema.field(name).type) for name, values in columns.items()}, schema)

    def fields(*, is_first: bool) -> list[dict[str, Any]]:
        new = [] if is_first else [field("new", "boolean", "c-new", 7)]
        inside = struct_of(
            field("y2" if not is_first else "y", "string", "c-y", 4), field("x", "integer", "c-x", 3), *new
        )
        element = {"type": "array", "elementType": struct_of(field("e", "integer", "c-e", 9)), "containsNull": True}
        old = [field("old", "double", "c-old", 5)] if is_first else [field("late", "string", "c-late", 6)]
        return [
            field("id" if is_first else "number", "long", "c-id", 1), field("s", inside, "c-s", 2), *old,
            field("l", element, "c-l", 8), field("day", "date", "c-day", 10),
        ]  # fmt: skip

    added = table.file("a.parquet", data, partition={"c-day": "2026-01-01"}, row_group_size=6)
    table.commit(table.schema(*fields(is_first=True)), added)
    table.commit(table.schema(*fields(is_first=False)))
    return table


@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_are_renamed_added_and_dropped_by_the_mapping(mode: str, tmp_path: Path) -> None:
    table = mapped(tmp_path / "t", mode)
    for version in (0, 1):
        expected = pa.table(deltalake.DeltaTable(table.root, version=version).scan())
        assert_same_rows(shoal.open(table.root, version=version), expected)
    old, new = (shoal.open(table.root, version=version) for version in (0, 1))
    assert old[5]["old"] == 0.5
    assert plain(new[5]) == {
        "number": 5, "s": {"y2": "5", "x": 5, "new": None}, "late": None, "l": [{"e": 5}, None],
        "day": date(2026, 1, 1),
    }  # fmt: skip
    assert plain(new.columns("late", "number")[6]) == {"number": 6, "late": None}


def test_deletion_vectors_are_gaps_of_the_dataset(tmp_path: Path) -> None:
    table = mapped(tmp_path / "t", "name")
    partition = {"c-day": "2026-01-01"}
    first, second = table.inline_vector([0, 7, 19]), table.vector_in_file([0, 7, *range(12, 20)])
    table.commit(table.remove("a.parquet"), table.add("a.parquet", 20, partition=partition, vector=first))
    table.commit(table.remove("a.parquet", first), table.add("a.parquet", 20, partition=partition, vector=second))
    for version, left in ((1, 20), (2, 17), (3, 10)):
        expected = pa.table(deltalake.DeltaTable(table.root, version=version).scan())
        assert expected.num_rows == shoal.open(table.root, version=version).num_samples == left
        assert_same_rows(shoal.open(table.root, version=version).shuffle(seed=3), expected)
    with pytest.raises(SourceError, match="no files"):
        shoal.open(table.root, predicate=[("day", ">", "2027-01-01")])
    assert shoal.open(table.root, predicate=[("day", "=", "2026-01-01")]).num_samples == 10


@pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
@pytest.mark.parametrize("shape", [{"length": 3}, {"length": 3, "pad": "edge"}, {"offsets": {"number": [-1, 1]}}])
def test_no_window_has_a_deleted_row(shape: dict[str, Any], tmp_path: Path) -> None:
    table = mapped(tmp_path / "t", "name")
    vector = table.inline_vector([0, 7, 8, 19])
    table.commit(table.remove("a.parquet"))
    table.commit(table.add("a.parquet", 20, partition={"c-day": "2026-01-01"}, vector=vector))
    windows = shoal.open(table.root).windows(**shape, by=None)
    whole = shoal.open(table.root, version=1).windows(**shape, by=None)
    expected = [w["number"].tolist() for w in whole if not {0, 7, 8, 19} & {*map(int, w["number"])}]
    if "offsets" in shape:  # the anchor row, too
        expected = [numbers for numbers in expected if numbers[0] + 1 not in (0, 7, 8, 19)]
    assert len(expected) == windows.num_samples > 0
    assert [window["number"].tolist() for window in windows] == expected
    assert sorted(window["number"].tolist() for window in windows.shuffle(seed=1)) == expected


def test_timestamps_of_old_writers_keep_all_their_years(tmp_path: Path) -> None:
    table = HandmadeDelta(tmp_path / "t", "timestampNtz")
    times = [datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC), None]
    data = pa.table({"when": pa.array(times, pa.timestamp("us", "UTC"))})
    added = table.file("a.parquet", data, use_deprecated_int96_timestamps=True)
    table.commit(table.schema(field("when", "timestamp")), added)
    assert [sample["when"] for sample in shoal.open(table.root)] == times


def test_a_value_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    table = HandmadeDelta(tmp_path / "t", "timestampNtz")
    added = table.file("a.parquet", pa.table({"n": pa.array([1, 2**40], pa.int64())}))
    table.commit(table.schema(field("n", "integer")), added)
    with pytest.raises(shoal.errors.ShardError, match="column 'n' does not fit"):
        list(shoal.open(table.root))


def test_a_file_that_a_vacuum_removed_is_named_with_its_version(tmp_path: Path) -> None:
    root = str(tmp_path / "t")
    deltalake.write_deltalake(root, pa.table({"id": range(8)}))
    old = shoal.open(root).shuffle(seed=0)
    deltalake.DeltaTable(root).delete("id = 3")
    deltalake.DeltaTable(root).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(StorageError, match=r"part-.*parquet: this file of the table's version delta 0 does not exist"):
        list(old)
    with pytest.raises(StorageError, match="delta 0 does not exist"):
        shoal.open(root, version=0)
    assert shoal.open(root).num_samples == 7


def test_a_feature_that_is_not_known_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.tables import delta_lake

    table = HandmadeDelta(tmp_path / "t", "timestampNtz")
    table.commit(table.schema(field("n", "long")), table.file("a.parquet", pa.table({"n": [1]})))
    monkeypatch.setattr(delta_lake, "_FEATURES", frozenset())
    with pytest.raises(SourceError, match="must know timestampNtz"):
        shoal.open(table.root)


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020}.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(UsageError, match="deltalake, which is not installed") as caught:
        shoal.open(tmp_path)
    assert "shoal[delta]" in caught.value.hint


def test_a_store_that_the_library_cannot_read_is_refused() -> None:
    with pytest.raises(SourceError, match="cannot read it from memory://"):
        shoal.open("delta://memory://bucket/table")


def test_rows_without_a_column_of_a_file_take_no_bytes_of_it(tmp_path: Path) -> None:
    root = str(tmp_path / "t")
    wide = pa.table({"id": range(1000), "blob": [struct.pack("<q", number) * 100 for number in range(1000)]})
    deltalake.write_deltalake(root, wide)
    (file,) = deltalake.DeltaTable(root).file_uris()
    ds = shoal.open(root).columns("id")
    assert len(list(ds)) == 1000
    assert ds.stats()["read_bytes"] < pq.read_metadata(file).row_group(0).total_byte_size / 5
