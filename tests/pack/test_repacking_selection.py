"""Repacking without duplicates, and with rare classes repeated: exact counts, the same bytes wherever units run."""

from __future__ import annotations

import json
import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pack.contents import contents_of
from tests.pack.files import make_files
from tests.samples import write_tar

import shoal
from shoal.errors import ShardError, UsageError
from shoal.pack import pack, plan_repack, repack
from shoal.pack.from_shards.repack_settings import copy_numbers
from shoal.pack.writer import Writer

MIXED: dict[str, Any] = {"mix": True, "seed": 4, "memory": "64KiB", "extent_bytes": "4KiB"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    """30 cats, 60 dogs and 5 zebras, packed in order with their classes."""
    pack(make_files(tmp_path / "files"), tmp_path / "animals", shard_bytes=40_000, extent_bytes=4096)
    return tmp_path / "animals"


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def digests(made: Any) -> list[str]:
    return [shard.digest for shard in getattr(made, "summary", made).shards]


@pytest.mark.parametrize("repeats", [{"balance": "cls"}, {"oversample": {"zebra": 7, "cat": 2}}])
def test_repeats_are_those_of_pack(tmp_path: Path, animals: Path, repeats: dict[str, Any]) -> None:
    """Packed plain and repacked with repeats, or packed with them: the same samples, keys and order; the same bytes."""
    expected = pack(tmp_path / "files", tmp_path / "at-once", seed=9, **repeats)
    made = repack(animals, tmp_path / "later", seed=9, shard_bytes="1GiB", **repeats)
    assert digests(made) == digests(expected)
    assert {(one.name, one.num_inputs, one.num_samples) for one in made.classes} == {
        (name, count, 60 if "balance" in repeats else {"cat": 60, "dog": 60, "zebra": 35}[name])
        for name, count in {"cat": 30, "dog": 60, "zebra": 5}.items()
    }
    labels = shoal.open(tmp_path / "later").index_column("cls")
    np.testing.assert_array_equal(labels, shoal.open(tmp_path / "at-once").index_column("cls"))


@pytest.mark.parametrize(
    ("to", "mixed", "num_workers"),
    [
        ("tar", {}, 1),
        ("jsonl", MIXED, 2),
        *(pytest.param(*case, 2, marks=pytest.mark.drill) for case in [("tar", {}), ("tar", MIXED), ("jsonl", {})]),
    ],
)
def test_the_bytes_do_not_hang_on_who_makes_them(
    tmp_path: Path, animals: Path, to: str, mixed: dict[str, Any], num_workers: int
) -> None:
    options = {**mixed, "balance": "cls", "shard_bytes": 50_000, "format": to, "decode": to == "jsonl"}
    here = repack(animals, tmp_path / "here", num_workers=1, **options)
    job = plan_repack(animals, tmp_path / "job", **options)
    for number in reversed(job.missing()):
        pickle.loads(pickle.dumps(job.task(number)))()
    job.finish()
    assert here.summary.num_samples == 180
    assert len(here.summary.shards) > 2
    assert contents_of(tmp_path / "here") == contents_of(tmp_path / "job")
    if num_workers > 1:
        two = repack(animals, tmp_path / "two", num_workers=num_workers, **options)
        assert contents_of(tmp_path / "here") == contents_of(tmp_path / "two")
        assert here.classes == two.classes
    samples = list(shoal.open(tmp_path / "here"))
    assert len({sample["__key__"] for sample in samples}) == 180
    assert Counter(sample["__key__"].split("/")[0] for sample in samples) == {"cat": 60, "dog": 60, "zebra": 60}
    labels = shoal.open(tmp_path / "here").index_column("cls")
    assert np.bincount(labels).tolist() == [60, 60, 60]
    zebras = {sample["__key__"] for sample in samples if sample["__key__"].startswith("zebra/003")}
    assert zebras == {"zebra/003", *(f"zebra/003~{copy}" for copy in range(2, 13))}


def test_copies_are_mixed_like_all_others(tmp_path: Path, animals: Path) -> None:
    repack(animals, tmp_path / "out", balance="cls", num_workers=1, **{**MIXED, "memory": "1MiB"})
    labels = shoal.open(tmp_path / "out").index_column("cls")
    thirds = [np.bincount(part, minlength=3) for part in np.array_split(labels, 3)]
    assert all(8 <= count <= 32 for part in thirds for count in part), thirds  # 20 are expected of each


def test_what_is_no_class(tmp_path: Path, animals: Path) -> None:
    with pytest.raises(UsageError, match="the index has no column 'kind'"):
        repack(animals, tmp_path / "out", balance="kind")
    with pytest.raises(UsageError, match="no input is of the class 'cow'"):
        repack(animals, tmp_path / "out", oversample={"cow": 2})
    with pytest.raises(UsageError, match="both say how often"):
        repack(animals, tmp_path / "out", oversample={"cat": 2}, balance="cls")
    assert not (tmp_path / "out").exists()


def test_texts_and_numbers_are_classes(tmp_path: Path) -> None:
    rows = [{"text": f"{n}", "lang": "en" if n % 4 else "de", "n": n % 3} for n in range(12)]
    with Writer(tmp_path / "in", format="jsonl", columns=["lang", "n"]) as writer:
        for row in rows:
            writer.write(row)
    made = repack(tmp_path / "in", tmp_path / "lang", balance="lang")
    assert [(one.name, one.num_inputs, one.num_samples) for one in made.classes] == [("de", 3, 9), ("en", 9, 9)]
    ds = shoal.open(tmp_path / "lang")
    assert ds.select(lang="de").num_samples == 9
    assert Counter(sample["text"] for sample in ds)["0"] == 3
    made = repack(tmp_path / "in", tmp_path / "n", oversample={"0": 2}, oversample_key="n")
    assert made.summary.num_samples == 16


def test_what_is_left_out_is_missing_from_its_class(tmp_path: Path) -> None:
    rows = [{"x": number if number % 5 else "text", "kind": "ab"[number % 3 == 0]} for number in range(30)]
    pytest.importorskip("pyarrow")
    options: dict[str, Any] = {"format": "parquet", "balance": "kind", "columns": [], "on_error": "skip"}
    with Writer(tmp_path / "source", format="jsonl", columns=["kind"]) as writer:
        for row in rows:
            writer.write(row)
    made = repack(tmp_path / "source", tmp_path / "out", **options)
    kinds = shoal.open(tmp_path / "out").index_column("kind")
    assert len(kinds) == made.summary.num_samples < 40
    written = Counter(sample["kind"] for sample in shoal.open(tmp_path / "out"))
    assert {one.name: one.num_samples - one.num_left_out for one in made.classes} == written
    texts = shoal.open(tmp_path / "out").select(kind="a").num_samples
    assert texts == written["a"]


# Duplicates.


def test_by_key_and_by_content(tmp_path: Path) -> None:
    samples = [("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"3"), ("d", b"1")]
    for shard, part in enumerate((samples[:2], samples[2:])):
        write_tar(tmp_path / f"{shard}.tar", [{"__key__": key.encode(), "txt": data} for key, data in part])
    source = str(tmp_path / "*.tar")
    made = repack(source, tmp_path / "key", dedup="key").summary
    assert made.duplicates is not None
    assert (made.duplicates.num_samples, made.duplicates.first) == (1, (("sample 2", "sample 0"),))
    assert [s["__key__"] for s in shoal.open(tmp_path / "key")] == ["a", "b", "c", "d"]
    made = repack(source, tmp_path / "content", dedup="content").summary
    assert made.duplicates is not None
    assert made.duplicates.first == (("sample 1", "sample 0"), ("sample 4", "sample 0"))
    assert [s["txt"] for s in shoal.open(tmp_path / "content")] == [b"1", b"2", b"3"]
    assert repack(source, tmp_path / "content", dedup="content").summary.duplicates == made.duplicates  # found finished
    with pytest.raises(UsageError, match="there is a dataset already"):
        repack(source, tmp_path / "content")


def test_rows_by_key(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", [{"key": number % 3, "text": f"{number}"} for number in range(7)])
    assert repack(tmp_path / "in.jsonl", tmp_path / "out", dedup="key").summary.num_samples == 3
    write_lines(tmp_path / "other.jsonl", [{"text": "a"}, {"text": "a"}])
    with pytest.raises(UsageError, match="neither __key__ nor key"):
        repack(tmp_path / "other.jsonl", tmp_path / "none", dedup="key")
    assert repack(tmp_path / "other.jsonl", tmp_path / "none", dedup="content").summary.num_samples == 1


ROWS = st.lists(
    st.fixed_dictionaries({"x": st.integers(0, 3), "y": st.sampled_from(["", "a", "b"])}), min_size=1, max_size=40
)


@given(rows=ROWS, mixed=st.booleans(), balanced=st.booleans())
@settings(max_examples=8, deadline=None)
def test_the_law(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]], mixed: bool, balanced: bool
) -> None:
    """What is repacked is what would be repacked of the first ones alone; classes are repeated after that."""
    home = tmp_path_factory.mktemp("law")
    first = [row for number, row in enumerate(rows) if row not in rows[:number]]
    for name, some in (("in", rows), ("first", first)):
        with Writer(home / name, format="jsonl", columns=["x"], shard_bytes=200) as writer:
            for row in some:
                writer.write(row)
    options: dict[str, Any] = {"balance": "x"} if balanced else {}
    options |= {"mix": True, "memory": "1MiB"} if mixed else {}
    made = repack(home / "in", home / "out", dedup="content", shard_bytes=100, num_workers=1, **options)
    alone = repack(home / "first", home / "alone", shard_bytes=100, num_workers=1, **options)
    assert made.summary.duplicates is not None
    assert made.summary.duplicates.num_samples == len(rows) - len(first)
    found, expected = ([(row["x"], row["y"]) for row in shoal.open(home / name)] for name in ("out", "alone"))
    if not mixed:
        assert digests(made) == digests(alone)
    assert Counter(found) == Counter(expected)
    assert shoal.open(home / "out").index_column("x").tolist() == [x for x, _ in found]
    job = plan_repack(home / "in", home / "job", dedup="content", shard_bytes=100, num_workers=1, **options)
    for number in job.missing():
        pickle.loads(pickle.dumps(job.task(number)))()
    assert job.finish().duplicates == made.summary.duplicates
    assert contents_of(home / "job") == contents_of(home / "out")


@pytest.mark.drill
def test_processes_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(tmp_path / "in.jsonl", [{"x": number * number % 97} for number in range(500)])
    monkeypatch.setattr("shoal.pack.inputs.dedup_pass._JOB_SAMPLES", 40)
    made = [repack(tmp_path / "in.jsonl", tmp_path / str(n), dedup="content", num_workers=n) for n in (1, 2)]
    assert made[0].summary.num_samples == 49
    assert contents_of(tmp_path / "1") == contents_of(tmp_path / "2")


def test_columns_of_tables_are_those_of_what_is_left(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    write_tar(tmp_path / "0.tar", [{"__key__": b"a", "txt": b"1"}, {"__key__": b"b", "txt": b"2"}])
    write_tar(tmp_path / "1.tar", [{"__key__": b"a", "jpg": b"1"}])
    repack(str(tmp_path / "*.tar"), tmp_path / "out", dedup="key", format="parquet")
    assert set(shoal.open(tmp_path / "out")[0]) == {"__key__", "txt"}


def test_damage_is_no_duplicate(tmp_path: Path) -> None:
    with Writer(tmp_path / "in", format="jsonl", extent_bytes=64) as writer:
        for number in range(40):
            writer.write({"x": f"value {number % 20}"})
    (shard,) = (tmp_path / "in").glob("*.jsonl")
    data, written_ns = bytearray(shard.read_bytes()), shard.stat().st_mtime_ns
    for line in (3, 23):  # equal, both damaged alike
        place = data.index(b"value 3", 0 if line == 3 else data.index(b"value 19"))
        data[place + 6] = ord("X")
    shard.write_bytes(bytes(data))
    os.utime(shard, ns=(written_ns, written_ns))
    with pytest.raises(ShardError):
        repack(tmp_path / "in", tmp_path / "out", dedup="content")
    made = repack(tmp_path / "in", tmp_path / "out", dedup="content", on_error="skip").summary
    assert [name for name, _ in made.skipped] == ["sample 3", "sample 23"]
    assert made.duplicates is not None
    assert (made.num_samples, made.duplicates.num_samples) == (19, 19)
    repack(tmp_path / "in", tmp_path / "all", on_error="skip", shard_bytes=100, num_workers=1)
    job = plan_repack(tmp_path / "in", tmp_path / "job", on_error="skip", shard_bytes=100)
    for number in job.missing():
        pickle.loads(pickle.dumps(job.task(number)))()
    assert [name for name, _ in job.finish().skipped] == ["sample 3", "sample 23"]
    assert contents_of(tmp_path / "job") == contents_of(tmp_path / "all")


@given(st.lists(st.integers(0, 5), max_size=60))
def test_copies_are_numbered_in_order(ids: list[int]) -> None:
    expected = [ids[:position].count(number) for position, number in enumerate(ids)]
    assert copy_numbers(np.array(ids, dtype=np.int64)).tolist() == expected
