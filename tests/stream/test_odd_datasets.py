"""Datasets as people have them: mixed, uneven, with names of any kind; handled, or refused so that one knows why."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.formats.made_shards import made

import shoal
from shoal.errors import ShardError, ShoalError, SourceError
from shoal.formats.format_registry import FORMATS
from shoal.testing.known_shards import same

PLAIN = [name for name in FORMATS if "." not in name]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for library in ("pyarrow", "google_crc32c", "zstandard", "brotli", "cramjam"):
        pytest.importorskip(library)
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def written(directory: Path, name: str, *shards: str, huge: bool = False) -> list[dict[str, Any]]:
    """Write some of the made shards of a format; their samples in the order in which a directory has them."""
    directory.mkdir(parents=True, exist_ok=True)
    found = made(name, huge=huge).shards
    samples: list[dict[str, Any]] = []
    for shard in sorted(shard for shard in found if shard.split(".")[0] in shards and ".stream." not in shard):
        (directory / shard).write_bytes(found[shard][0])
        samples += found[shard][1]
    return samples


@pytest.mark.parametrize("name", [*PLAIN, "jsonl.zst", "tar.gz"])
def test_empty_shards_and_one_huge_sample_in_a_small_window(name: str, tmp_path: Path) -> None:
    directory = tmp_path / "d\u00e9j\u00e0 vu" / "a b"
    expected = written(directory, name, "none", "some", "huge", "many \u00e9", huge=True)
    ds = shoal.open(directory, format=name)
    assert ds.num_samples == len(expected)
    shuffled = ds.shuffle(seed=2, window="6MiB")
    ids = shuffled.ids().tolist()
    assert sorted(ids) == list(range(len(expected)))
    for sample_id, sample in zip(ids, shuffled, strict=True):
        assert same(sample, expected[sample_id])


@pytest.mark.parametrize("name", [*PLAIN, "jsonl.zst", "tar.gz"])
def test_shards_without_a_sample_alone_are_refused(name: str, tmp_path: Path) -> None:
    written(tmp_path / "data", name, "none")
    with pytest.raises(ShoalError, match="without a single sample"):
        shoal.open(tmp_path / "data", format=name)


@pytest.mark.parametrize("other", ["jsonl", "mds", "tar.gz", "arrow"])
def test_directories_of_two_formats_are_refused_and_read_one_by_one(other: str, tmp_path: Path) -> None:
    first = written(tmp_path / "data", "tfrecord", "some")
    second = written(tmp_path / "data", other, "some")
    with pytest.raises(SourceError, match="shards of two formats") as caught:
        shoal.open(tmp_path / "data")
    assert "format=" in caught.value.hint
    assert shoal.open(tmp_path / "data", format="tfrecord").num_samples == len(first)
    assert shoal.open(tmp_path / "data", format=other).num_samples == len(second)


def test_shards_of_other_schemas_keep_them_and_batches_have_none_where_they_lack(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [
        pa.table({"a": [1, 2], "b": ["x", "y"]}),
        pa.table({"a": [3, 4]}),
        pa.table({"a": ["5", "6"], "c": [7, 8]}),
    ]
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"{number}.parquet")
    ds = shoal.open(tmp_path / "*.parquet")
    rows = [row for table in tables for row in table.to_pylist()]
    assert list(ds) == rows
    assert {str(row) for row in ds.shuffle(seed=1)} == {str(row) for row in rows}
    batch = next(iter(ds.batch(6)))
    assert batch == {"a": [1, 2, 3, 4, "5", "6"], "b": ["x", "y", *[None] * 4], "c": [*[None] * 4, 7, 8]}
    one = shoal.open(tmp_path / "*.parquet", format=shoal.formats.Parquet(columns=["a"]))
    assert [row["a"] for row in one] == [1, 2, 3, 4, "5", "6"]
    with pytest.raises(ShoalError, match="there is no column 'b'"):
        list(shoal.open(tmp_path / "*.parquet", format=shoal.formats.Parquet(columns=["b"])))


def test_lines_and_records_of_other_schemas(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("y,z\n3,4\n")
    assert list(shoal.open(tmp_path / "*.csv")) == [{"x": "1", "y": "2"}, {"y": "3", "z": "4"}]
    rows = written(tmp_path / "records", "tfrecord", "some", "records")
    assert [set(sample) for sample in shoal.open(tmp_path / "records")] == [set(row) for row in rows]
    assert {"record"} in [set(row) for row in rows]


def test_a_name_that_is_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / b"caf\xe9.jsonl".decode("utf-8", "surrogateescape")
    try:
        path.write_text('{"x": 1}\n')
    except OSError:
        pytest.skip("this file system takes no such names")
    ds = shoal.open(tmp_path)
    assert list(ds) == [{"x": 1}]
    assert list(shoal.open(tmp_path)) == [{"x": 1}]  # from the cached index


def test_lines_of_json_under_the_name_of_json(tmp_path: Path) -> None:
    lines = b'{"x": 1}\n{"x": 2}\n'
    (tmp_path / "c4-train.00000-of-00002.json.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "c4-train.00001-of-00002.json.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "about.json").write_text('{"not": "a shard"}')
    assert [row["x"] for row in shoal.open(tmp_path)] == [1, 2, 1, 2]
    (tmp_path / "shard.00000.json").write_bytes(lines)
    (tmp_path / "index.json").write_text("{}")
    assert [row["x"] for row in shoal.open(tmp_path / "shard*.json")] == [1, 2]
    (tmp_path / "about.json").unlink()
    assert [row["x"] for row in shoal.open(tmp_path / "*.json")] == [1, 2]


def test_a_directory_of_what_tensorflow_compressed_without_saying_so(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    samples = written(tmp_path / "plain", "tfrecord", "some")
    (path,) = (tmp_path / "plain").iterdir()
    plain = path.read_bytes()
    for number in range(2):
        (tmp_path / f"in/a.tfrecord-0000{number}-of-00002").write_bytes(zlib.compress(plain))
    with pytest.raises(ShardError, match=r'format="tfrecord.zlib" reads it so'):
        shoal.open(tmp_path / "in")
    assert shoal.open(tmp_path / "in", format="tfrecord.zlib").num_samples == 2 * len(samples)
    with pytest.raises(SourceError, match=r"looked for .*\.gz.*, found 1 x"):
        shoal.open(tmp_path / "in", format="jsonl.gz")
