"""Tables of Iceberg: each snapshot has the rows that pyiceberg itself reads."""

from __future__ import annotations

import logging
import sys
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shoal
from shoal.errors import SourceError, UsageError
from tests.tables.compared_rows import assert_same_rows, plain, texts_of
from tests.tables.handmade_iceberg import (
    catalog_in,
    commit_deletes,
    deletion_vectors,
    equality_deletes,
    position_deletes,
)

pytest.importorskip("pyiceberg")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning")

# pyiceberg 0.12 turns a missing map into an empty map where columns have changed.
MAPS = ("map",)


def rows(first: int, stop: int) -> pa.Table:
    numbers = range(first, stop)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "n": pa.array(numbers, pa.int32()),
            "text": pa.array([f"text {number}" if number % 3 else None for number in numbers], pa.string()),
            "score": pa.array([number / 3 for number in numbers], pa.float32()),
            "price": pa.array([Decimal(number) / 4 for number in numbers], pa.decimal128(9, 2)),
            "when": pa.array([datetime(2026, 1, 1, 1, 2, 3, number, UTC) for number in numbers], pa.timestamp("us", "UTC")),
            "at": pa.array([time(1, 2, 3, number // 10) for number in numbers], pa.time64("us")),
            "fixed": pa.array([bytes([number % 256] * 4) for number in numbers], pa.binary(4)),
            "list": pa.array([[number, None] if number % 2 else None for number in numbers], pa.list_(pa.int32())),
            "nested": pa.array(
                [{"x": number, "y": [{"z": str(number)}]} if number % 5 else None for number in numbers],
                pa.struct([("x", pa.int32()), ("y", pa.list_(pa.struct([("z", pa.string())])))]),
            ),
            "map": pa.array([[(str(number), {"v": number})] if number % 4 else [] for number in numbers],
                            pa.map_(pa.string(), pa.struct([("v", pa.int32())]))),
            "day": pa.array([date(2026, 1, 1 + number // 10) for number in numbers]),
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A table with a snapshot for each operation: other partitions, and other columns in structs, lists and maps."""
    from pyiceberg.types import DoubleType, LongType, StringType

    table = catalog_in(tmp_path_factory.mktemp("iceberg")).create_table("ns.t", schema=rows(0, 1).schema)
    table.append(rows(0, 20))
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "first").commit()
    with table.update_spec() as spec:
        spec.add_identity("day")
        spec.add_identity("at")
    table.append(rows(20, 30))
    table.delete("id = 3 or id = 25")
    with table.update_schema() as schema:
        schema.rename_column("id", "number")
        schema.add_column(("nested", "new"), StringType())
        schema.add_column(("map", "value", "w"), LongType())
        schema.rename_column(("nested", "x"), "renamed")
        schema.update_column("n", LongType())
        schema.update_column("score", DoubleType())
        schema.delete_column("text")
        schema.add_column("text", LongType())
        schema.move_first("price")
    named = {"id": "number"}
    later = rows(30, 40).rename_columns([named.get(name, name) for name in rows(0, 1).column_names])
    table.append(later.drop_columns(["text", "nested", "n", "score", "map"]))
    with table.update_spec() as spec:
        spec.remove_field("day")
    table.append(later.drop_columns(["text", "nested", "n", "score", "map"]))
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    table.overwrite(later.slice(0, 2).select(["number", "day", "at"]), overwrite_filter="number > 35")
    return table


def test_each_snapshot_has_the_rows_that_the_library_reads(history: Any) -> None:
    assert len(history.snapshots()) >= 6
    for snapshot in history.snapshots():
        expected = history.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
        assert_same_rows(shoal.open(history.location(), version=snapshot.snapshot_id), expected, maps=MAPS)
    for source in (history.location(), history.metadata_location, f"iceberg://{history.location()}"):
        assert_same_rows(shoal.open(source).shuffle(seed=1), history.scan().to_arrow(), maps=MAPS)
    for name in ("first", "audit", "main"):
        assert_same_rows(
            shoal.open(history.location(), version=name), history.scan().use_ref(name).to_arrow(), maps=MAPS
        )
    at = datetime.fromtimestamp(history.snapshots()[1].timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    assert shoal.open(history.location(), timestamp=at).num_samples == 30


def test_columns_are_read_alone(history: Any) -> None:
    ds = shoal.open(history.location()).columns("nested", "text", "number")
    expected = (
        history.scan(selected_fields=("number", "nested", "text")).to_arrow().select(["nested", "text", "number"])
    )
    assert texts_of(ds) == texts_of(expected.to_pylist())


def test_a_snapshot_that_is_not_there_is_refused(history: Any) -> None:
    for arguments, match in (
        ({"version": 7}, "no version 7; branches and tags: audit, first, main"),
        ({"version": "nowhere"}, "no version 'nowhere'"),
        ({"timestamp": "2001-01-01"}, "no snapshot at 2001-01-01"),
    ):
        with pytest.raises(SourceError, match=match):
            shoal.open(history.location(), **arguments)  # type: ignore[arg-type]


def test_a_catalog_knows_the_current_snapshot(tmp_path: Path) -> None:
    table = catalog_in(tmp_path).create_table("ns.t", schema=rows(0, 1).schema)
    options = {"catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "secret": "very-secret"}}
    with pytest.raises(SourceError, match="has no files"):
        shoal.open("iceberg://local/ns.t", storage_options=options)
    table.append(rows(0, 5))
    assert shoal.open("iceberg://local/ns.t", storage_options=options).num_samples == 5
    with pytest.raises(SourceError, match=r"cannot load this table: NoSuchTableError.*ns\.u") as caught:
        shoal.open("iceberg://local/ns.u", storage_options=options)
    assert "very-secret" not in str(caught.value)
    with pytest.raises(UsageError, match="catalog is a dict"):
        shoal.open("iceberg://local/ns.t", storage_options={"catalog": "sqlite"})


def test_the_newest_metadata_file_of_a_directory_must_be_clear(tmp_path: Path) -> None:
    table = catalog_in(tmp_path).create_table("ns.t", schema=rows(0, 1).schema)
    table.append(rows(0, 5))
    folder, newest = Path(table.location().removeprefix("file://"), "metadata"), Path(table.metadata_location[7:])
    other = newest.with_name(f"{newest.name[:5]}-{uuid.uuid4()}.metadata.json")
    other.write_bytes(newest.read_bytes())
    with pytest.raises(SourceError, match="2 metadata files have the highest number"):
        shoal.open(folder.parent)
    (folder / "version-hint.text").write_text(newest.name)
    assert shoal.open(folder.parent).num_samples == 5
    with pytest.raises(SourceError, match="no such metadata file"):
        shoal.open(folder / "9.metadata.json")


def test_rows_that_other_files_delete_are_gaps_of_the_dataset(tmp_path: Path) -> None:
    table = catalog_in(tmp_path).create_table("ns.t", schema=rows(0, 1).schema)
    table.append(rows(0, 20))
    (task,) = table.scan().plan_files()
    commit_deletes(table, position_deletes(table, {task.file.file_path: [1, 5, 7], "file:///another": [2]}))
    table.append(rows(20, 30))
    commit_deletes(table, deletion_vectors(table, {task.file.file_path: [1, 5, 7, 19], "file:///another": [2]}))
    for snapshot, left in zip(table.snapshots(), (20, 17, 27, 26), strict=True):
        ds = shoal.open(table.location(), version=snapshot.snapshot_id)
        assert assert_same_rows(ds, table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()) == ds.num_samples == left
    commit_deletes(table, equality_deletes(table))
    with pytest.raises(SourceError, match="delete rows by their values") as caught:
        shoal.open(table.location())
    assert "rewrite_data_files" in caught.value.hint


def test_a_predicate_leaves_out_files(history: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shoal")
    location = history.location()
    ds = shoal.open(location, predicate=[("day", ">=", "2026-01-03"), ("number", "<", 30)])
    expected = history.scan(row_filter="day >= '2026-01-03' and number < 30").to_arrow()
    assert {sample["number"] for sample in ds} >= set(expected.column("number").to_pylist())
    assert "leaves out" in caplog.text
    assert ds.num_samples < shoal.open(location).num_samples
    either = [[("number", "in", [1])], [("number", "not in", [1, 2]), ("number", "==", 2)]]
    assert 1 in {sample["number"] for sample in shoal.open(location, predicate=either)}
    first = shoal.open(location, version="first", predicate=[("id", "<", 5), ("text", "=", "dropped since")])
    assert first.num_samples == 20
    with pytest.raises(UsageError, match="nothing"):
        shoal.open(location, predicate=[("nothing", "=", 1)])


def test_files_without_ids_have_the_names_of_the_mapping(tmp_path: Path) -> None:
    data = rows(0, 10)
    table = catalog_in(tmp_path).create_table("ns.t", schema=data.schema)
    pq.write_table(data, tmp_path / "old.parquet")
    table.add_files([f"file://{tmp_path}/old.parquet"])
    with table.update_schema() as schema:
        schema.rename_column("text", "words")
        schema.rename_column(("nested", "x"), "y2")
    assert_same_rows(shoal.open(table.location()), table.scan().to_arrow())
    assert plain(shoal.open(table.location())[1])["words"] == "text 1"


def test_partition_values_fill_columns_that_files_lack(tmp_path: Path) -> None:
    data = rows(0, 4)
    table = catalog_in(tmp_path).create_table("ns.t", schema=data.schema)
    with table.update_spec() as spec:
        spec.add_identity("day")
    table.append(data)
    (task,) = table.scan().plan_files()
    path = Path(task.file.file_path.removeprefix("file://"))
    stored = pq.read_table(path)
    pq.write_table(stored.drop_columns(["day"]), path)
    assert_same_rows(shoal.open(table.location()), table.scan().to_arrow())
    assert shoal.open(table.location())[0]["day"] == date(2026, 1, 1)


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg", None)
    with pytest.raises(UsageError, match="pyiceberg, which is not installed") as caught:
        shoal.open(f"iceberg://{tmp_path}")
    assert "shoal[iceberg]" in caught.value.hint
