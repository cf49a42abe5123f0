"""Copy-on-write tables of Hudi, written by hand after its specification: Hudi itself needs Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shoal
from shoal.errors import SourceError, UsageError
from tests.tables.compared_rows import texts_of

hudi = pytest.importorskip("hudi")

FIELDS = [
    {"name": "n", "type": ["null", "long"], "default": None},
    {"name": "part", "type": ["null", "string"], "default": None},
]
META = ("commit_time", "commit_seqno", "record_key", "partition_path", "file_name")
FIRST, SECOND = "20260101000000000", "20260102000000000"


class HandmadeHudi:
    def __init__(self, root: Path, **properties: str) -> None:
        self.root = root
        (root / ".hoodie").mkdir(parents=True)
        named = {
            "hoodie.table.name": "t", "hoodie.table.type": "COPY_ON_WRITE", "hoodie.table.version": "6",
            "hoodie.timeline.layout.version": "1", "hoodie.table.partition.fields": "part",
            "hoodie.table.recordkey.fields": "n", "hoodie.datasource.write.hive_style_partitioning": "true",
            "hoodie.table.keygenerator.class": "org.apache.hudi.keygen.SimpleKeyGenerator",
            "hoodie.table.checksum": "1", "hoodie.table.timeline.timezone": "UTC", "hoodie.database.name": "default",
        } | properties  # fmt: skip
        text = "".join(f"{name}={value}\n" for name, value in named.items())
        (root / ".hoodie" / "hoodie.properties").write_text(text)

    def commit(self, instant: str, **files: list[int]) -> None:
        """Write a base file for each partition, and the commit."""
        stats = {}
        for part, numbers in files.items():
            folder = self.root / f"part={part}"
            folder.mkdir(exist_ok=True)
            (folder / ".hoodie_partition_metadata").write_text("partitionDepth=1\n")
            name = f"file-{part}-0_0-1-2_{instant}.parquet"
            meta = {f"_hoodie_{name}": pa.array(["x"] * len(numbers)) for name in META}
            data = {"n": pa.array(numbers, pa.int64()), "part": pa.array([part] * len(numbers))}
            pq.write_table(pa.table({**meta, **data}), folder / name)
            about = {"fileId": f"file-{part}-0", "path": f"part={part}/{name}", "partitionPath": f"part={part}"}
            stats[f"part={part}"] = [about]
        schema = json.dumps({"type": "record", "name": "t", "fields": FIELDS})
        content = {"partitionToWriteStats": stats, "compacted": False, "extraMetadata": {"schema": schema}}
        (self.root / ".hoodie" / f"{instant}.commit").write_text(json.dumps({**content, "operationType": "UPSERT"}))


@pytest.fixture
def table(tmp_path: Path) -> HandmadeHudi:
    made = HandmadeHudi(tmp_path / "t")
    made.commit(FIRST, a=[1, 2], b=[3])
    made.commit(SECOND, a=[1, 20, 30])
    return made


def numbers(ds: shoal.Dataset) -> list[int]:
    return [sample["n"] for sample in ds]


def test_each_instant_has_the_rows_that_the_library_reads(table: HandmadeHudi) -> None:
    theirs = hudi.HudiTableBuilder.from_base_uri(str(table.root)).build()
    for instant in (FIRST, SECOND):
        options = hudi.HudiReadOptions().with_as_of_timestamp(instant)
        expected = pa.Table.from_batches(theirs.read(options)).select(["n", "part"])
        assert texts_of(shoal.open(table.root, version=instant)) == texts_of(expected.to_pylist())
    assert numbers(shoal.open(f"hudi://{table.root}")) == [3, 1, 20, 30]
    assert numbers(shoal.open(table.root, timestamp="2026-01-01T12:00:00Z")) == [1, 2, 3]
    ds = shoal.open(table.root).shuffle(seed=1).batch(2)
    next(iter(ds))
    assert SECOND in ds.state_dict()["snapshot"]


def test_a_predicate_leaves_out_files(table: HandmadeHudi) -> None:
    assert numbers(shoal.open(table.root, predicate=[("part", "=", "b")])) == [3]
    assert len(numbers(shoal.open(table.root, predicate=[[("part", "=", "b")], [("part", "in", ["a"])]]))) == 4


def test_what_cannot_be_read_is_refused_by_name(
    table: HandmadeHudi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SourceError, match="no instant '7'"):
        shoal.open(table.root, version="7")
    with pytest.raises(SourceError, match="no commit at 2001"):
        shoal.open(table.root, timestamp="2001-01-01")
    dropped = HandmadeHudi(tmp_path / "d", **{"hoodie.datasource.write.drop.partition.columns": "true"})
    dropped.commit(FIRST, a=[1])
    with pytest.raises(SourceError, match="drop.partition.columns"):
        shoal.open(dropped.root)
    merged = HandmadeHudi(tmp_path / "m", **{"hoodie.table.type": "MERGE_ON_READ"})
    merged.commit(FIRST, a=[1])
    (merged.root / ".hoodie" / f"{FIRST}.commit").rename(merged.root / ".hoodie" / f"{FIRST}.deltacommit")
    assert numbers(shoal.open(merged.root)) == [1]
    log = f".file-a-0_{FIRST}.log.1_0-1-2"
    (merged.root / "part=a" / log).write_bytes(b"#HUDI#")
    about = {"fileId": "file-a-0", "path": f"part=a/{log}", "partitionPath": "part=a"}
    content = json.loads((merged.root / ".hoodie" / f"{FIRST}.deltacommit").read_text())
    content["partitionToWriteStats"] = {"part=a": [about]}
    (merged.root / ".hoodie" / f"{SECOND}.deltacommit").write_text(json.dumps(content))
    with pytest.raises(SourceError, match="log files of this Hudi table are not merged") as caught:
        shoal.open(merged.root)
    assert "run_compaction" in caught.value.hint
    monkeypatch.setitem(sys.modules, "hudi", None)
    with pytest.raises(UsageError, match="hudi, which is not installed"):
        shoal.open(table.root)
