"""Rows that engines hand out in partitions: any order of tasks, attempts that are killed or repeated, one commit."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pack.contents import contents_of

import shoal
from shoal.errors import SourceError, UsageError
from shoal.pack import clean
from shoal.pack.output.journal import Journal
from shoal.pack.partitions.partition_writer import PartitionWriter, WrittenPartition

Rows = list[dict[str, Any]]
OPTIONS: dict[str, Any] = {"format": "jsonl", "shard_bytes": 1000, "columns": ["number"]}


def rows_of(count: int, *, first: int = 0) -> Rows:
    return [{"number": number, "text": "row " * (number % 7)} for number in range(first, first + count)]


PARTITIONS = [rows_of(100), rows_of(0), rows_of(3, first=100), rows_of(77, first=103)]
ALL_ROWS = [row for rows in PARTITIONS for row in rows]


def begun(url: Path | str, **options: Any) -> PartitionWriter:
    writer = PartitionWriter(url, **{**OPTIONS, **options})
    writer.begin()
    return writer


def written(writer: PartitionWriter, partitions: list[Rows] = PARTITIONS) -> list[WrittenPartition]:
    return [writer.write(number, rows) for number, rows in enumerate(partitions)]


def rows_in(url: Path | str) -> Rows:
    ds = shoal.open(url)
    return [ds[number] for number in range(ds.num_samples)]


def test_any_order_of_tasks_any_number_of_attempts(tmp_path: Path) -> None:
    """The law: what is committed depends on the partitions and the settings alone."""
    calm = begun(tmp_path / "calm")
    summary = calm.commit(written(calm))
    expected = contents_of(tmp_path / "calm")
    homes = iter(range(1000))

    @settings(max_examples=10, deadline=None)
    @given(data=st.data())
    def law(data: st.DataObject) -> None:
        out = tmp_path / f"out-{next(homes)}"
        writer = begun(out)
        order = data.draw(st.permutations(range(4)))
        again = data.draw(st.lists(st.integers(0, 3), max_size=3))
        done = [pickle.loads(pickle.dumps(writer)).write(number, PARTITIONS[number]) for number in [*order, *again]]
        assert writer.commit(done).fingerprint == summary.fingerprint
        assert contents_of(out) == expected

    law()
    assert rows_in(tmp_path / "calm") == ALL_ROWS
    assert shoal.open(tmp_path / "calm").num_samples == summary.num_samples == 180


@given(sizes=st.lists(st.integers(1, 900), max_size=40), shard_bytes=st.integers(200, 2000))
@settings(max_examples=40, deadline=None)
def test_no_shard_of_a_partition_is_small_or_much_too_large(sizes: list[int], shard_bytes: int) -> None:
    url = f"memory://cut/{hash((tuple(sizes), shard_bytes))}"
    writer = begun(url, shard_bytes=shard_bytes, columns=[])
    shards = writer.write(0, [{"a": "x" * size} for size in sizes]).shards
    assert sum(shard.num_samples for shard in shards) == len(sizes)
    largest = max(sizes, default=0) + 10
    for shard in shards:
        assert shard.num_bytes <= max(shard_bytes * 5 // 4, largest) + largest
        assert len(shards) == 1 or shard.num_bytes >= shard_bytes // 4 or largest > shard_bytes // 4
    writer.abort()
    assert contents_of(url) == {}


@pytest.mark.parametrize("name", ["tar", "jsonl.gz", "mds", "parquet", "arrow", "tfrecord"])
def test_every_format(tmp_path: Path, name: str) -> None:
    writer = begun(tmp_path / "out", format=name, shard_bytes=2000)
    assert writer.commit(written(writer)).num_samples == 180
    found = [shoal.open(tmp_path / "out")[number] for number in range(180)]
    if name == "tar":
        assert [sample["__key__"] for sample in found[99:104]] == [
            "000000-000000099", "000002-000000000", "000002-000000001", "000002-000000002", "000003-000000000",
        ]  # fmt: skip
    else:
        numbers = [sample["number"][0] if name == "tfrecord" else sample["number"] for sample in found]
        assert [int(number) for number in numbers] == list(range(180))


def test_nothing_is_there_before_the_commit(tmp_path: Path) -> None:
    writer = begun(tmp_path / "out")
    written(writer)
    with pytest.raises(SourceError, match="not finished"):
        shoal.open(tmp_path / "out")


def test_a_run_after_one_that_was_killed_takes_its_shards_and_removes_what_it_does_not_need(tmp_path: Path) -> None:
    dead = begun(tmp_path / "out")
    dead.write(0, PARTITIONS[0])
    dead.write(9, rows_of(50))  # of a partition that does not come again
    kept = (tmp_path / "out" / "shard-000000-000000.jsonl").stat()
    writer = begun(tmp_path / "out")
    with pytest.raises(UsageError, match="another run with the same settings has begun here since"):
        dead.write(3, PARTITIONS[3])
    writer.commit(written(writer))
    calm = begun(tmp_path / "calm")
    calm.commit(written(calm))
    assert contents_of(tmp_path / "out") == contents_of(tmp_path / "calm")
    assert (tmp_path / "out" / "shard-000000-000000.jsonl").stat().st_ino == kept.st_ino


def test_other_rows_under_the_same_name_are_an_error_that_names_the_shard(tmp_path: Path) -> None:
    writer = begun(tmp_path / "out")
    writer.write(0, PARTITIONS[0])
    with pytest.raises(UsageError, match=r"shard-000000-000000\.jsonl: a shard of this name exists with other bytes"):
        writer.write(0, rows_of(100, first=1))
    two = writer.write(2, PARTITIONS[2])
    other = WrittenPartition(2, ())
    with pytest.raises(UsageError, match="two attempts of partition 2 have given different shards"):
        writer.commit([two, other])


def test_an_attempt_that_made_more_is_not_left(tmp_path: Path) -> None:
    writer = begun(tmp_path / "out")
    assert len(writer.write(0, PARTITIONS[0]).shards) > 2
    summary = writer.commit([writer.write(1, PARTITIONS[3])])  # and partition 0 is not among the results
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *(shard.name for shard in summary.shards), "shoal.index",
    ]  # fmt: skip


def test_a_late_attempt_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = begun(tmp_path / "out")
    done = written(writer)
    late = pickle.loads(pickle.dumps(writer))
    keep = Journal.keep

    def committed_first(self: Journal, part: Any) -> None:
        monkeypatch.setattr(Journal, "keep", keep)
        writer.commit(done)
        keep(self, part)

    monkeypatch.setattr(Journal, "keep", committed_first)
    late.write(0, PARTITIONS[0])
    before = contents_of(tmp_path / "out")
    assert not (tmp_path / "out" / ".shoal-pack").exists()
    late.write(3, PARTITIONS[3])
    with pytest.raises(UsageError, match="the dataset is finished, but this shard would now have other bytes"):
        late.write(3, PARTITIONS[0])
    late.abort()
    assert contents_of(tmp_path / "out") == before


def test_a_finished_dataset_that_is_written_again_is_compared(tmp_path: Path) -> None:
    writer = begun(tmp_path / "out")
    first = writer.commit(written(writer))
    before = contents_of(tmp_path / "out")
    again = begun(tmp_path / "out")
    done = written(again)
    assert again.commit(done).fingerprint == first.fingerprint
    with pytest.raises(UsageError, match="these rows differ from the dataset that is there already"):
        again.commit(done[1:])
    with pytest.raises(UsageError, match=r"shard-000001-000000\.jsonl: the dataset is finished"):
        again.write(1, rows_of(1))
    again.abort()
    assert contents_of(tmp_path / "out") == before


def test_what_is_aborted_leaves_nothing_and_ends_late_tasks(tmp_path: Path) -> None:
    writer = begun(tmp_path / "out")
    written(writer)
    writer.abort()
    assert contents_of(tmp_path / "out") == {}
    with pytest.raises(UsageError, match="another job has taken this destination, or this job was removed"):
        writer.write(0, PARTITIONS[0])
    writer.abort()


def test_a_run_that_another_has_replaced_removes_nothing(tmp_path: Path) -> None:
    old, new = begun(tmp_path / "out"), begun(tmp_path / "out")
    done = written(new)
    old.abort()
    with pytest.raises(UsageError, match="another run with the same settings has begun here since"):
        old.commit(done)
    assert new.commit(done).num_samples == 180


def test_a_task_that_fails_leaves_no_unfinished_file(tmp_path: Path) -> None:
    writer = begun(tmp_path / "out", shard_bytes=100_000)

    def failing() -> Any:
        yield from rows_of(50)
        yield {"number": object()}

    with pytest.raises(UsageError, match="row 50 of shard-000004"):
        writer.write(4, failing())
    assert not list((tmp_path / "out").rglob("*.tmp"))
    assert not list((tmp_path / "out").glob("*.jsonl"))
    assert clean(tmp_path / "out", grace_seconds=0).kept == ()


def test_a_shard_that_is_gone_or_other_at_the_commit(tmp_path: Path) -> None:
    writer = begun(tmp_path / "out")
    done = written(writer)
    (tmp_path / "out" / "shard-000002-000000.jsonl").unlink()
    with pytest.raises(UsageError, match=r"shard-000002-000000\.jsonl: this shard was written, but is missing"):
        writer.commit(done)
    assert not (tmp_path / "out" / "shoal.index").exists()


def test_other_settings_do_not_go_on_with_what_was_begun(tmp_path: Path) -> None:
    written(begun(tmp_path / "out"))
    with pytest.raises(UsageError, match="shard_bytes was 1000, is 2000"):
        begun(tmp_path / "out", shard_bytes=2000)
    with pytest.raises(UsageError, match="nothing was packed"):
        begun(tmp_path / "none").commit([])


def test_mds_shards_of_all_partitions_have_the_same_columns(tmp_path: Path) -> None:
    writer = begun(tmp_path / "out", format="mds", columns=[])
    done = [writer.write(0, [{"a": 1}]), writer.write(1, [{"a": "one"}])]
    with pytest.raises(UsageError, match=r"shard-000001-000000\.mds has the columns .*'a': 'str'"):
        writer.commit(done)


def test_a_schema_decides_what_rows_leave_open(tmp_path: Path) -> None:
    writer = PartitionWriter(tmp_path / "out", format="parquet")
    writer.begin(pa.schema([("a", pa.int32()), ("b", pa.string())]))
    sent = pickle.loads(pickle.dumps(writer))
    writer.commit([sent.write(0, [{"a": 1, "b": None}]), sent.write(1, [{"a": 2, "b": "x"}])])
    assert rows_in(tmp_path / "out") == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]
