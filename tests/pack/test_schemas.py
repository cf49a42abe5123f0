"""Tables made of other shards have all columns from the first row on, or nothing is written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.pack.contents import contents_of

import shoal
from shoal.errors import ShardError, UsageError
from shoal.formats.rows.tar.reader import Tar
from shoal.pack import pack
from shoal.pack.from_shards.repacking import repack
from shoal.pack.writer import Writer

pa = pytest.importorskip("pyarrow")


def lines(url: Path, samples: Iterable[dict[str, Any]]) -> Path:
    with Writer(url, format="jsonl", shard_bytes=3000) as writer:
        for sample in samples:
            writer.write(sample)
    return url


def late_samples() -> list[dict[str, Any]]:
    samples: list[dict[str, Any]] = [
        {"id": number, "score": number, "note": None, "tags": [], "meta": {"a": 1}} for number in range(300)
    ]
    samples[290] |= {"score": 0.5, "note": "late", "tags": ["x"], "meta": {"a": 1, "b": [2]}}
    samples[299]["new"] = {"deep": True}
    return samples


def schemas_of(directory: Path) -> set[str]:
    schemas = set()
    for path in directory.glob("shard-*"):
        if path.suffix == ".parquet":
            schemas.add(str(pa.parquet.read_schema(path)))
        else:
            schemas.add(str(pa.ipc.open_stream(path.read_bytes()).schema))
    return schemas


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_fields_and_types_that_come_late_are_columns_of_all_shards(tmp_path: Path, name: str) -> None:
    import pyarrow.parquet  # noqa: F401  # which pyarrow alone does not bring

    samples = late_samples()
    source = lines(tmp_path / "a", samples)
    options: dict[str, Any] = {"format": name, "shard_bytes": "4KiB", "options": {"group_bytes": 500}}
    made = repack(source, tmp_path / "b", num_workers=1, **options)
    assert made.num_looked_at == 300
    assert len(made.summary.shards) > 3
    assert len(schemas_of(tmp_path / "b")) == 1
    found = list(shoal.open(tmp_path / "b").partition(rank=0, world_size=1))
    for sample, back in zip(samples, found, strict=True):
        expected = {"new": None, **sample, "meta": {"b": None, **sample["meta"]}}
        assert {field: value if field != "tags" else list(value) for field, value in back.items()} == expected
    mixed = repack(source, tmp_path / "mixed", mix=True, memory="16KiB", **options)
    assert schemas_of(tmp_path / "mixed") == schemas_of(tmp_path / "b")
    assert mixed.summary.num_samples == 300


@pytest.mark.drill
@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_processes_find_the_same_columns(tmp_path: Path, name: str) -> None:
    source = lines(tmp_path / "a", late_samples())
    options: dict[str, Any] = {"format": name, "shard_bytes": "4KiB", "options": {"group_bytes": 500}}
    for workers in (1, 2):
        repack(source, tmp_path / str(workers), num_workers=workers, **options)
    assert contents_of(tmp_path / "1") == contents_of(tmp_path / "2")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.drill)])
def test_what_no_column_holds_is_said_before_anything_is_written(tmp_path: Path, workers: int) -> None:
    samples = late_samples()
    samples[297]["score"] = "none"
    source = lines(tmp_path / "a", samples)
    with pytest.raises(UsageError, match=r"'score'"):
        repack(source, tmp_path / "b", format="parquet", shard_bytes="4KiB", num_workers=workers)
    assert not list((tmp_path / "b").glob("shard-*"))
    made = repack(source, tmp_path / "b", format="parquet", shard_bytes="4KiB", num_workers=workers, on_error="skip")
    assert [name for name, _ in made.summary.skipped] == ["sample 297"]
    assert shoal.open(tmp_path / "b")[298]["new"] == {"deep": True}


def test_samples_are_looked_at_once_also_after_a_kill(tmp_path: Path) -> None:
    seen: list[int] = []
    samples = late_samples()
    del samples[250]["id"]
    source = lines(tmp_path / "a", samples)
    options: dict[str, Any] = {"format": "parquet", "shard_bytes": "4KiB", "num_workers": 1, "columns": ["id"]}
    with pytest.raises(UsageError, match="'id' of each sample"):
        repack(source, tmp_path / "b", **options)
    assert list((tmp_path / "b").glob("shard-*"))
    again = repack(
        source, tmp_path / "b", **options, on_error="skip", progress=lambda done, total: seen.append(total - done)
    )
    assert again.num_looked_at == 0
    assert (min(seen), seen[-1]) == (0, 0)
    assert (again.summary.num_samples, len(again.summary.skipped)) == (299, 1)
    repack(source, tmp_path / "calm", **options, on_error="skip")
    assert contents_of(tmp_path / "b") == contents_of(tmp_path / "calm")


def test_what_was_found_out_for_other_arguments_is_not_in_the_way(tmp_path: Path) -> None:
    source = lines(tmp_path / "a", late_samples())
    with pytest.raises(UsageError, match="'nothing' of each sample"):
        repack(source, tmp_path / "b", format="parquet", columns=["nothing"], num_workers=1)
    assert list((tmp_path / "b" / ".shoal-pack").glob("*.note"))
    made = repack(source, tmp_path / "b", format="arrow", num_workers=1)
    assert made.num_looked_at == 300
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["shard-000000.arrow", "shoal.index"]


def test_columns_of_a_manifest_are_known_before_a_file_is_read(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"path": f"{i}.txt", "score": None, "more": i} for i in range(50)]
    rows[49] = {"path": "49.txt", "score": 1.5, "more": 0.5, "new": ["x"]}
    for row in rows:
        (tmp_path / row["path"]).write_text("x" * 100)
    manifest = tmp_path / "rows.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = pack(manifest, tmp_path / "out", format="parquet", shard_bytes=1500, num_workers=1)
    assert len(summary.shards) > 3
    assert len(schemas_of(tmp_path / "out")) == 1
    last = shoal.open(tmp_path / "out")[49]
    assert (last["key"], last["data"], last["score"], last["more"]) == ("49", b"x" * 100, 1.5, 0.5)
    rows[30]["more"] = "text"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UsageError, match="sample 30: the column 'more', which is int64 in the samples before, cannot"):
        pack(manifest, tmp_path / "bad", format="arrow", shard_bytes=1500, num_workers=1)
    assert not list((tmp_path / "bad").glob("shard-*"))
    summary = pack(manifest, tmp_path / "bad", format="arrow", shard_bytes=1500, num_workers=1, on_error="skip")
    assert [name for name, _ in summary.skipped] == ["30"]


def test_files_that_come_late_under_a_name_are_columns(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(40):
        (tmp_path / "in" / f"{number:03d}.txt").write_text("x" * 100)
    (tmp_path / "in" / "039.json").write_text("{}")
    pack(tmp_path / "in", tmp_path / "out", format="parquet", grouped=True, shard_bytes=1500, num_workers=1)
    assert shoal.open(tmp_path / "out")[39] == {"key": "039", "txt": b"x" * 100, "json": b"{}"}
    assert shoal.open(tmp_path / "out")[3]["json"] is None


def test_a_writer_says_how_to_give_the_columns_of_all(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no column 'late'") as refused:
        write_rows(tmp_path / "a", [{"a": 1}, {"a": 2, "late": "x"}])
    assert "options={'schema': schema} with a pyarrow.schema that has 'late' too" in refused.value.hint
    schema = pa.schema([("a", pa.int64()), ("late", pa.string())])
    write_rows(tmp_path / "b", [{"a": 1}, {"a": 2, "late": "x"}], schema=schema)
    assert shoal.open(tmp_path / "b")[1]["late"] == "x"
    with pytest.raises(UsageError, match="text among bytes would become bytes"):
        write_rows(tmp_path / "c", [{"a": b"x"}, {"a": "x"}])


def write_rows(url: Path, rows: list[dict[str, Any]], **options: Any) -> None:
    with Writer(url, format="parquet", options={"group_bytes": 1, **options}) as writer:
        for row in rows:
            writer.write(row)


@pytest.mark.parametrize("codec", ["", ".gz"])
def test_fields_of_tars_are_known_by_their_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    samples: list[dict[str, Any]] = [{"__key__": f"{i:03d}", "bin": b"x" * 100_000} for i in range(40)]
    samples[39] |= {"seg.PNG": b"late", "cls": b"3"}
    with Writer(tmp_path / "a", format=f"tar{codec}", shard_bytes=1 << 20) as writer:
        for sample in samples:
            writer.write(sample)
    shoal.open(tmp_path / "a")
    if not codec:
        monkeypatch.setattr("shoal.pack.from_shards.repack_plan.schema_of_all", None)
    made = repack(tmp_path / "a", tmp_path / "b", format="parquet", num_workers=1)
    assert made.num_looked_at == 40
    last = shoal.open(tmp_path / "b")[39]
    assert list(last) == ["__key__", "bin", "seg.png", "cls"]
    assert (last["seg.png"], last["cls"], shoal.open(tmp_path / "b")[0]["cls"]) == (b"late", b"3", None)


def test_payloads_of_tars_are_not_read_for_their_fields(tmp_path: Path) -> None:
    samples = [{"__key__": f"{i:03d}", "bin": b"x" * 100_000, **({"cls": b"3"} if i == 9 else {})} for i in range(10)]
    with Writer(tmp_path / "a", format="tar") as writer:
        for sample in samples:
            writer.write(sample)
    data = (tmp_path / "a" / "shard-000000.tar").read_bytes()
    num_read = [0]

    def read(first_byte: int, end_byte: int) -> bytes:
        num_read[0] += end_byte - first_byte
        return data[first_byte:end_byte]

    assert Tar().fields(read, len(data), shard="a.tar") == ["bin", "cls"]
    assert num_read[0] < len(data) / 5


def test_fields_of_damaged_tars_are_those_of_the_samples_that_are_left(tmp_path: Path) -> None:
    samples = [{"__key__": f"{i:03d}", "txt": b"x" * 100, **({"cls": b"1"} if i > 30 else {})} for i in range(40)]
    with Writer(tmp_path / "a", format="tar", extent_bytes=1) as writer:
        for sample in samples:
            writer.write(sample)
    path = tmp_path / "a" / "shard-000000.tar"
    data, times = bytearray(path.read_bytes()), path.stat().st_mtime_ns
    data[1024 * 5 + 3] ^= 1  # in the header of a sample
    path.write_bytes(data)
    os.utime(path, ns=(times, times))
    with pytest.raises(ShardError):
        repack(tmp_path / "a", tmp_path / "b", format="parquet", num_workers=1)
    made = repack(tmp_path / "a", tmp_path / "b", format="parquet", num_workers=1, on_error="skip")
    assert [name for name, _ in made.summary.skipped] == ["sample 5"]
    assert shoal.open(tmp_path / "b")[38]["cls"] == b"1"


def test_a_schema_that_was_given_is_believed(tmp_path: Path) -> None:
    source = lines(tmp_path / "a", [{"id": number} for number in range(9)])
    schema = pa.schema([("id", pa.int16()), ("more", pa.string())])
    made = repack(source, tmp_path / "b", format="parquet", options={"schema": schema}, num_workers=1)
    assert made.num_looked_at == 0
    assert shoal.open(tmp_path / "b")[3]["more"] is None
