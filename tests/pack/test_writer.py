"""Samples from code into shards: cut, indexed, taken up, refused."""

from __future__ import annotations

import enum
import errno
import os
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pack.contents import contents_of

import shoal
from shoal.errors import StorageError, UsageError
from shoal.index.assembly import validate
from shoal.indexing.index_files import load_index
from shoal.pack import pack
from shoal.pack.output.destination import Output
from shoal.pack.writer import Writer
from shoal.storage.files.local_store import LocalStore
from shoal.storage.memory_store import MemoryStore
from shoal.storage.store_of_url import open_store

COLUMNS = ["label", "lang=meta.lang", "length"]


def sample(number: int) -> dict[str, Any]:
    return {"text": f"document {number} " * 3, "label": number % 3, "meta": {"lang": "en" if number % 2 else "de"}}


def write(url: str | Path, count: int, *, kill_after: int | None = None, **options: Any) -> Writer:
    writer = Writer(url, **{"format": "jsonl", "shard_bytes": 2000, "columns": COLUMNS, **options})
    for number in range(count if kill_after is None else kill_after):
        writer.write(sample(number))
    if kill_after is None:
        writer.close()
    else:
        writer._out.release()  # as the system does for a process that is killed
    return writer


def test_what_was_written_is_there_with_its_index(tmp_path: Path) -> None:
    summary = write(tmp_path, 100).summary
    assert summary is not None
    names = [shard.name for shard in summary.shards]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "shoal.index"]
    assert names[1] == "shard-000001.jsonl"
    assert all(shard.num_bytes <= 2000 for shard in summary.shards)
    assert [shard.num_bytes for shard in summary.shards] == [(tmp_path / name).stat().st_size for name in names]
    dataset = shoal.open(tmp_path)
    assert [dataset[number] for number in range(100)] == [sample(number) for number in range(100)]
    index = load_index(str(tmp_path / "shoal.index"), store=LocalStore())
    validate(index)
    assert index.fingerprint == summary.fingerprint
    assert index.extent_checksum is not None
    assert index.columns["label"].tolist() == [number % 3 for number in range(100)]
    assert index.metadata["texts"] == {"lang": ["de", "en"]}
    assert index.columns["lang"].tolist() == [number % 2 for number in range(100)]
    assert index.columns["length"].tolist() == [len(sample(number)["text"]) for number in range(100)]
    assert index.columns["record_crc32"].dtype == np.uint32


def test_it_is_the_index_that_a_scan_would_make(tmp_path: Path) -> None:
    write(tmp_path, 60, columns=())
    packed = load_index(str(tmp_path / "shoal.index"), store=LocalStore())
    (tmp_path / "shoal.index").unlink()
    from shoal.cli.main import main

    assert main(["index", str(tmp_path), "--checksum", "--json"]) == 0
    scanned = load_index(str(tmp_path / "shoal.index"), store=LocalStore())
    for name in ("shard_bytes", "extent_shard", "extent_first_byte", "extent_end_byte", "extent_num_samples"):
        assert np.array_equal(getattr(packed, name), getattr(scanned, name)), name
    for name in ("extent_decoded_bytes", "extent_layout_crc", "extent_checksum", "sample_bytes"):
        assert np.array_equal(getattr(packed, name), getattr(scanned, name)), name
    assert packed.fingerprint == scanned.fingerprint
    assert list(packed.shard_versions) == list(scanned.shard_versions)


@pytest.mark.parametrize("where", ["memory", "local"])
def test_who_was_killed_is_taken_up_where_a_shard_was_finished(tmp_path: Path, where: str) -> None:
    url = str(tmp_path / "a") if where == "local" else "memory://pack-taken-up/a"
    undisturbed = str(tmp_path / "b") if where == "local" else "memory://pack-taken-up/b"
    write(url, 100, kill_after=50)
    again = write(url, 100, kill_after=70)
    assert 0 < again.num_finished < 50
    done = write(url, 100)
    assert again.num_finished < done.num_finished < 70
    write(undisturbed, 100)
    assert contents_of(url) == contents_of(undisturbed)


def test_the_rest_can_be_given_alone(tmp_path: Path) -> None:
    write(tmp_path / "a", 100, kill_after=50)
    with Writer(tmp_path / "a", format="jsonl", shard_bytes=2000, columns=COLUMNS) as writer:
        for number in range(writer.skip_finished(), 100):
            writer.write(sample(number))
    write(tmp_path / "b", 100)
    assert contents_of(tmp_path / "a") == contents_of(tmp_path / "b")


def test_who_is_done_has_nothing_to_do(tmp_path: Path) -> None:
    first = write(tmp_path, 100).summary
    before = contents_of(tmp_path)
    again = write(tmp_path, 100).summary
    assert first is not None
    assert again is not None
    assert again.digest == first.digest
    assert contents_of(tmp_path) == before
    with pytest.raises(UsageError, match="finished with 100 samples"):
        write(tmp_path, 101)


@pytest.mark.parametrize("url", ["{}", "memory://pack-lost/{}"])
def test_what_is_finished_is_not_believed_where_shards_are_lost(tmp_path: Path, url: str) -> None:
    url = url.format(tmp_path)
    write(url, 100)
    write(url, 100)
    store = open_store(url)
    lost: list[str] = []
    for number in (1, 2):
        lost.append(f"{url}/shard-{number:06d}.jsonl")
        store.delete(lost[-1])
        others = " and 1 other are" if number == 2 else " is"
        with pytest.raises(UsageError, match=rf"was finished, but shard-000001\.jsonl{others} missing now"):
            write(url, 100)
    store.put(lost[0], b"")
    with pytest.raises(UsageError, match=r"shard-000001\.jsonl and 1 other are missing now, or of another size"):
        write(url, 100)


def test_other_samples_than_before_are_noticed(tmp_path: Path) -> None:
    write(tmp_path, 100, kill_after=50)
    with (
        pytest.raises(UsageError, match="differs from the sample that an earlier run wrote"),
        Writer(tmp_path, format="jsonl", shard_bytes=2000, columns=COLUMNS) as writer,
    ):
        for number in range(100):
            writer.write(sample(number + 1))


def some(count: int, *, sign: int = 1, stop: int = 1 << 60) -> Iterator[dict[str, Any]]:
    for number in range(count):
        if number == stop:
            msg = "in the middle"
            raise RuntimeError(msg)
        yield {"__key__": str(sign * number), "value": sign * number}


@pytest.mark.parametrize("name", ["tar", "mds", "tfrecord", "jsonl.gz", "parquet", "arrow"])
def test_other_samples_are_noticed_in_every_format(tmp_path: Path, name: str) -> None:
    options = {"group_bytes": 300} if name in ("parquet", "arrow") else {}
    if options:
        pytest.importorskip("pyarrow")
    asked: dict[str, Any] = {"format": name, "shard_bytes": 3000, "options": options}
    with pytest.raises(RuntimeError):
        pack(some(400, stop=390), tmp_path, **asked)
    assert len(list(tmp_path.glob("shard-*"))) > 1
    with pytest.raises(UsageError, match="differs from the sample that an earlier run wrote"):
        pack(some(400, sign=-1), tmp_path, **asked)
    assert pack(some(400), tmp_path, **asked).num_samples == 400
    with pytest.raises(UsageError, match="differs from the sample that an earlier run wrote"):
        pack(some(400, sign=-1), tmp_path, **asked)
    assert pack(some(400), tmp_path, **asked).num_samples == 400


@pytest.mark.parametrize("begin", ["same", "alone"])
def test_columns_of_mds_are_those_of_the_first_sample_also_after_a_kill(tmp_path: Path, begin: str) -> None:
    samples = [{"value": None if number == 0 else number} for number in range(300)]
    pack(samples, tmp_path / "undisturbed", format="mds", shard_bytes=1000)
    writer = Writer(tmp_path / "killed", format="mds", shard_bytes=1000)
    for entry in samples[:200]:
        writer.write(entry)
    writer._out.release()
    with Writer(tmp_path / "killed", format="mds", shard_bytes=1000) as writer:
        for entry in samples[writer.skip_finished() if begin == "alone" else 0 :]:
            writer.write(entry)
    assert contents_of(tmp_path / "killed") == contents_of(tmp_path / "undisturbed")


def test_a_writer_that_lost_samples_does_not_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    writer = Writer(tmp_path / "rows", format="parquet", options={"group_bytes": 200})
    with pytest.raises(UsageError, match="the column 'value', which is int64, cannot hold 'no number'"):
        for number in range(60):
            writer.write({"value": number if number != 30 else "no number"})
    for again in (lambda: writer.write({"value": 1}), writer.close):
        with pytest.raises(UsageError, match="ended with an error, and samples that it held are in no shard"):
            again()
    writer = Writer(tmp_path / "full", format="jsonl", shard_bytes=200)
    monkeypatch.setattr("shoal.storage.files.atomic_writes.os.fsync", full_disk)
    with pytest.raises(StorageError, match="disk is full"):
        for number in range(60):
            writer.write(sample(number))
    monkeypatch.undo()
    with pytest.raises(UsageError, match="ended with an error"):
        writer.close()
    for name in ("rows", "full"):
        assert not (tmp_path / name / "shoal.index").exists()
    write(tmp_path / "full", 60, shard_bytes=200, columns=())
    assert shoal.open(tmp_path / "full").num_samples == 60


def full_disk(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_sample_that_is_refused_is_as_if_it_had_not_been_given(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "some", format="jsonl", shard_bytes=2000, columns=["label"])
    for number in range(100):
        for refused in ({"text": b"no text", "label": 1}, {"text": "no label"}, ["no dict"], None):
            with pytest.raises(UsageError):
                writer.write(refused)  # type: ignore[arg-type]  # what nobody should give
        writer.write(sample(number))
    writer.close()
    write(tmp_path / "good", 100, columns=["label"])
    assert contents_of(tmp_path / "some") == contents_of(tmp_path / "good")


@pytest.mark.parametrize("shard_bytes", [200, 100_000])
def test_a_column_of_numbers_and_texts_is_one_of_texts_wherever_shards_end(tmp_path: Path, shard_bytes: int) -> None:
    values = [*range(50), *(f"x{number}" for number in range(50)), *range(7)]
    samples = ({"value": value} for value in values)
    summary = pack(samples, tmp_path, format="jsonl", shard_bytes=shard_bytes, columns=["value"])
    assert (len(summary.shards) > 1) == (shard_bytes < 1000)
    index = load_index(str(tmp_path / "shoal.index"), store=LocalStore())
    words = index.metadata["texts"]["value"]
    assert [words[code] for code in index.columns["value"].tolist()] == list(map(str, values))


@pytest.mark.parametrize("prefix", ["", "a/b", "../a", ".hidden", "new\nline", "\udcff", "é" * 65])
def test_prefixes_that_would_lead_elsewhere_are_refused(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(UsageError, match="cannot be PREFIX"):
        write(tmp_path / "out", 10, prefix=prefix)
    assert list(tmp_path.iterdir()) == []


def test_what_was_only_begun_is_begun_anew(tmp_path: Path) -> None:
    write(tmp_path, 100, kill_after=1)
    assert not list(tmp_path.glob("shard-*"))
    write(tmp_path, 100, shard_bytes=3000)
    write(tmp_path / "undisturbed", 100, shard_bytes=3000)
    assert {
        name: data for name, data in contents_of(tmp_path).items() if not name.startswith("undisturbed")
    } == contents_of(tmp_path / "undisturbed")


def test_other_arguments_than_before_are_refused_and_named(tmp_path: Path) -> None:
    write(tmp_path, 100, kill_after=50)
    with pytest.raises(UsageError, match="shard_bytes was 2000, is 3000"):
        write(tmp_path, 100, shard_bytes=3000)
    write(tmp_path, 100)
    with pytest.raises(UsageError, match="a dataset already"):
        write(tmp_path, 100, shard_bytes=3000)


def test_shards_that_are_there_are_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_text("{}\n")
    with pytest.raises(UsageError, match=r"there are shards already, such as old\.jsonl"):
        write(tmp_path, 10)
    with pytest.raises(UsageError, match=r"there are shards already, such as old\.jsonl"):
        write(tmp_path, 10, format="mds")
    assert [path.name for path in tmp_path.iterdir()] == ["old.jsonl"]


def test_an_error_inside_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="JSON cannot hold a value of type bytes"),
        Writer(tmp_path, format="jsonl", shard_bytes=2000) as writer,
    ):
        for number in range(30):
            writer.write(sample(number))
        writer.write({"text": b"x"})
    left = sorted(path.name for path in tmp_path.iterdir())
    assert "shoal.index" not in left
    assert not list(tmp_path.rglob("*.tmp"))
    with pytest.raises(UsageError, match="closed"):
        writer.write(sample(0))


def test_nothing_at_all_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing was packed"):
        write(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_fails_is_an_error_and_the_rest_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, put, left = "memory://pack-failing/a", MemoryStore.put, [4]

    def failing(store: MemoryStore, path: str, data: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            error = StorageError(f"could not write {path}: no space left")
            error.errno = errno.ENOSPC
            raise error
        put(store, path, data)

    monkeypatch.setattr(MemoryStore, "put", failing)
    with pytest.raises(StorageError, match="no space left"):
        write(url, 100)
    monkeypatch.undo()
    assert "shoal.index" not in contents_of(url)
    assert write(url, 100).num_finished > 0
    write("memory://pack-failing/b", 100)
    assert contents_of(url) == contents_of("memory://pack-failing/b")


def test_two_at_once_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.pack.output.destination._WAIT_SECONDS", 0.1)
    writer = Writer(tmp_path, format="jsonl", shard_bytes=2000)
    with pytest.raises(StorageError, match="another process is working here"):
        Writer(tmp_path, format="jsonl", shard_bytes=2000)
    writer.write(sample(1))
    writer.close()


@pytest.mark.parametrize("same", [True, False])
def test_who_waits_for_another_that_ends_finds_what_that_has_made(tmp_path: Path, same: bool) -> None:
    first = Writer(tmp_path, format="jsonl", shard_bytes=2000)
    first.write(sample(1))
    ending = threading.Timer(0.3, first.close)
    ending.start()
    try:
        if same:
            with Writer(tmp_path, format="jsonl", shard_bytes=2000) as second:
                second.write(sample(1))
            assert second.summary is not None
            assert first.summary is not None
            assert second.summary.digest == first.summary.digest
        else:
            with pytest.raises(UsageError, match="there is a dataset already"):
                Writer(tmp_path, format="jsonl", shard_bytes=3000)
    finally:
        ending.join()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shard-000000.jsonl", "shoal.index"]


def test_outputs_travel_to_other_processes(tmp_path: Path) -> None:
    out = pickle.loads(pickle.dumps(Output(tmp_path, plan="p")))
    assert (out.url, out.plan, out.lock_descriptor) == (str(tmp_path), "p", None)


@pytest.mark.parametrize("name", ["tar", "tar.gz"])
def test_neighbours_of_one_key_are_refused_in_tars(tmp_path: Path, name: str) -> None:
    # Every reader, our own scan among them, joins them to one sample, or stumbles over a field that comes twice.
    with Writer(tmp_path, format=name) as writer:
        writer.write({"__key__": "a", "txt": b"1"})
        for field in ("txt", "cls"):
            with pytest.raises(UsageError, match="'a' follows a sample with the same key"):
                writer.write({"__key__": "a", field: b"2"})
        for key in ("b", "a"):
            writer.write({"__key__": key, "txt": b"3"})
    indexed = list(shoal.open(tmp_path))
    (tmp_path / "shoal.index").unlink()
    assert [sample["__key__"] for sample in indexed] == ["a", "b", "a"]
    assert list(shoal.open(tmp_path)) == indexed


class Level(int, enum.Enum):
    LOW = 3


class Colour(str, enum.Enum):  # noqa: UP042  # str() says "Colour.RED" of these
    RED = "red"


def test_members_of_enumerations_are_numbers_and_texts_of_columns(tmp_path: Path) -> None:
    with Writer(tmp_path, format="jsonl", columns=["level", "colour"]) as writer:
        writer.write({"level": Level.LOW, "colour": Colour.RED})
    index = load_index(str(tmp_path / "shoal.index"), store=LocalStore())
    assert index.columns["level"].tolist() == [3]
    assert index.metadata["texts"] == {"colour": ["red"]}
    assert shoal.open(tmp_path)[0] == {"level": 3, "colour": "red"}


def test_a_text_in_a_column_that_only_looks_like_a_number_stays_a_text(tmp_path: Path) -> None:
    names = ["007", "1_000", "٣", "+5", "-0"]
    with Writer(tmp_path / "a", format="tar", columns=["id=txt"]) as writer:
        for number, name in enumerate(names):
            writer.write({"__key__": f"{number}", "txt": name.encode()})
    assert load_index(str(tmp_path / "a" / "shoal.index"), store=LocalStore()).metadata["texts"]["id"] == sorted(names)
    with Writer(tmp_path / "b", format="tar", columns=["id=txt"]) as writer:
        for number, name in enumerate(["7\n", "-12", "0"]):
            writer.write({"__key__": f"{number}", "txt": name.encode()})
    assert load_index(str(tmp_path / "b" / "shoal.index"), store=LocalStore()).columns["id"].tolist() == [7, -12, 0]


def test_threads_do_not_write_at_the_same_time(tmp_path: Path) -> None:
    refused: list[UsageError] = []

    def write_another() -> None:
        try:
            writer.write({"__key__": "b", "txt": b"2"})
        except UsageError as error:
            refused.append(error)

    class Meanwhile(dict[str, Any]):
        def items(self) -> Any:
            thread = threading.Thread(target=write_another)
            thread.start()
            thread.join()
            return super().items()

    with Writer(tmp_path, format="tar") as writer:
        writer.write(Meanwhile({"__key__": "a", "txt": b"1"}))
        assert "two threads" in str(refused[0])
        write_another()
    assert [sample["__key__"] for sample in shoal.open(tmp_path)] == ["a", "b"]
    assert len(refused) == 1


@pytest.mark.parametrize("name", ["mds", "jsonl"])
def test_nothing_is_packed_beside_an_index_json_of_others(tmp_path: Path, name: str) -> None:
    # MDS overwrote it; shards of other formats could not be opened beside one that names what is not there.
    (tmp_path / "index.json").write_text("mine")
    with pytest.raises(UsageError, match=r"there is an index\.json"):
        Writer(tmp_path, format=name)
    assert [path.name for path in tmp_path.iterdir()] == ["index.json"]
    assert (tmp_path / "index.json").read_text() == "mine"


@pytest.mark.parametrize("refused", [{"a": object(), "label": 1}, {"a": "text"}])
def test_a_first_sample_that_is_refused_decides_nothing(tmp_path: Path, refused: dict[str, Any]) -> None:
    with Writer(tmp_path, format="mds", columns=["label"]) as writer:
        with pytest.raises(UsageError):
            writer.write(refused)
        writer.write({"b": b"bytes", "label": 2})
    assert shoal.open(tmp_path)[0] == {"b": b"bytes", "label": 2}


@pytest.mark.parametrize("name", ["tfrecord", "tfrecord.gz"])
@pytest.mark.parametrize(
    ("first", "other"),
    [
        ({"record": b"raw"}, {"a": 1}),
        ({"a": 1}, {"record": b"raw"}),
        ({"record": b"\n\x00"}, {"record": b"raw"}),  # an example without features
    ],
)
def test_records_are_read_as_what_they_were_written(
    tmp_path: Path, name: str, first: dict[str, Any], other: dict[str, Any]
) -> None:
    with Writer(tmp_path, format=name) as writer:
        writer.write(first)
        with pytest.raises(UsageError, match="the first sample of the shard is a"):
            writer.write(other)
        writer.write(first)
    assert len(list(shoal.open(tmp_path))) == 2


def test_a_record_that_looks_like_an_example_may_follow_others(tmp_path: Path) -> None:
    samples = [{"record": data} for data in (b"raw", b"\n\x00", b"")]
    pack(samples, tmp_path, format="tfrecord")
    assert list(shoal.open(tmp_path)) == samples
