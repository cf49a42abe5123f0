"""Every damage is found, where it is; and an index is written anew only where the shards are sound."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.samples import write_jsonl, write_tar, write_tar_shards

import shoal
from shoal.errors import StorageError, UsageError
from shoal.index.table import Index, locate
from shoal.indexing.build import build_index
from shoal.indexing.checksums import extent_checksums
from shoal.indexing.index_files import load_index, save_index
from shoal.pack.writer import Writer
from shoal.reading.checks.record_checksums import RECORD_CRCS
from shoal.storage.files.local_store import LocalStore
from shoal.testing import RangeServer
from shoal.verify.index_repair import repair_index
from shoal.verify.open_to_verify import open_to_verify, verify
from shoal.verify.verify_report import Damage, VerifyReport


def write_index(directory: Path, *, checksums: bool = True, records: bool = False, extent_bytes: int = 4096) -> Index:
    """An index beside the shards of a directory."""
    dataset = open_to_verify(directory)
    index = build_index(
        dataset.source, store=dataset.store, format=dataset.format, workers=0, extent_bytes=extent_bytes
    )
    if checksums:
        paths = dataset.source.paths
        index = replace(index, extent_checksum=extent_checksums(index, paths, store=LocalStore(), check=lambda _: None))
    if records:
        shard, first, end = (part.tolist() for part in locate(index, np.arange(index.num_samples)))
        data = [Path(path).read_bytes() for path in dataset.source.paths]
        crcs = [crc32(data[s][a:b]) for s, a, b in zip(shard, first, end, strict=True)]
        index = replace(index, columns={RECORD_CRCS: np.array(crcs, dtype=np.uint32)})
    save_index(index, directory / "shoal.index", store=LocalStore())
    return index


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_tar_shards(tmp_path / "data", num_shards=3, samples_per_shard=40)
    return tmp_path / "data"


def report_on(directory: Path) -> VerifyReport:
    return verify(open_to_verify(directory))


def flip(path: Path, byte: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= mask
    path.write_bytes(data)


@pytest.mark.parametrize("checksums", [False, True])
def test_sound_shards(data: Path, checksums: bool) -> None:
    index = write_index(data, checksums=checksums)
    report = report_on(data)
    assert report.damages == []
    assert (report.num_by_checksum, report.num_by_parsing)[:: 1 if checksums else -1] == (index.num_extents, 0)
    assert report.num_bytes == int((index.extent_end_byte - index.extent_first_byte).sum())


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255), records=st.booleans())
def test_a_byte_that_changed_is_told_with_its_sample(
    tmp_path_factory: pytest.TempPathFactory, place: float, mask: int, records: bool
) -> None:
    data = tmp_path_factory.mktemp("flip")
    path = data / "a.tar"
    names = [{"__key__": f"k{i}".encode(), "txt": f"text {i}".encode() * 9} for i in range(12)]
    write_tar(path, names)
    index = write_index(data, records=records)
    byte = int(place * path.stat().st_size)
    flip(path, byte, mask)
    report = report_on(data)
    _, starts, ends = locate(index, np.arange(index.num_samples))
    if byte >= ends[-1]:  # the end of the archive; nothing of a sample
        assert report.num_damaged_samples == 0
        return
    (damage,) = report.damages
    assert (damage.kind, damage.shard) == ("checksum", "a.tar")
    assert damage.first_byte is not None
    assert damage.end_byte is not None
    assert damage.first_byte <= byte < damage.end_byte
    sample = int(np.searchsorted(starts, byte, side="right")) - 1
    assert sample in damage.samples
    if records:
        assert damage.samples == (sample,)
        assert (damage.first_byte, damage.end_byte) == (starts[sample], ends[sample])
    elif byte - starts[sample] >= 512:  # a payload: names can still be read
        assert damage.keys == tuple(f"k{number}" for number in damage.samples)


@pytest.mark.parametrize("indexed", [True, False])
def test_what_is_no_file_is_one_damage_among_others(data: Path, indexed: bool) -> None:
    if indexed:
        write_index(data, records=True)
    first, second, third = sorted(data.glob("*.tar"))
    flip(first, 513)
    second.unlink()
    third.unlink()
    third.symlink_to(third.name)
    if indexed:
        second.mkdir()
    else:
        os.mkfifo(second)
    report = report_on(data)
    kinds = [(damage.shard, damage.kind) for damage in report.damages]
    if indexed:
        assert kinds == [(first.name, "checksum"), (second.name, "missing"), (third.name, "missing")]
        assert "asked for a file, but it is a directory; it had 40 samples" in report.damages[1].what
        assert (
            "it is a link to train-000002.tar, and the links lead in a circle; it had 40 samples"
            in report.damages[2].what
        )
    else:
        assert kinds == [(second.name, "unreadable"), (third.name, "unreadable")]
        assert report.damages[0].what == "asked for a file, but it is not a regular file"
        assert report.num_by_parsing > 0


@pytest.mark.parametrize("other", ["directory", "circle", "nowhere", "pipe"])
def test_what_is_no_index_file_is_damage_of_the_index(data: Path, other: str) -> None:
    write_index(data)
    path = data / "shoal.index"
    path.unlink()
    if other == "directory":
        path.mkdir()
    elif other == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(path.name if other == "circle" else "none")
    (damage,) = report_on(data).damages
    assert (damage.kind, damage.shard) == ("index", "")
    with pytest.raises(StorageError):  # a named index that is not there
        open_to_verify(data, index=data / "another.index")


def test_a_disk_that_cannot_read_some_bytes_is_damage_of_these(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = write_index(data)
    bad, read = sorted(data.glob("*.tar"))[1], os.pread
    numbers = np.flatnonzero(index.extent_shard == 1)
    byte = int(index.extent_first_byte[numbers[1]]) + 5

    def pread(descriptor: int, num_bytes: int, first_byte: int) -> bytes:
        if os.fstat(descriptor).st_ino == bad.stat().st_ino and first_byte <= byte < first_byte + num_bytes:
            raise OSError(errno.EIO, "Input/output error")
        return read(descriptor, num_bytes, first_byte)

    monkeypatch.setattr("os.pread", pread)
    report = report_on(data)
    lost = [damage for damage in report.damages if damage.samples]
    assert [(damage.shard, damage.kind, damage.first_byte) for damage in lost] == [(bad.name, "unreadable", byte - 5)]
    assert lost[0].what.startswith("could not read bytes")
    assert {damage.shard for damage in report.damages} == {bad.name}
    assert report.num_by_checksum == index.num_extents - 1
    assert report.num_bytes == int((index.extent_end_byte - index.extent_first_byte).sum())


def test_every_damage_is_listed(data: Path) -> None:
    index = write_index(data, records=True)
    first, second, third = sorted(data.glob("*.tar"))
    _, starts, _ = locate(index, np.arange(index.num_samples))
    for sample in (3, 4, 17):
        flip(first, int(starts[sample]) + 512)
    second.unlink()
    os.truncate(third, int(starts[100]))
    report = report_on(data)
    assert [(d.shard, d.kind) for d in report.damages if d.shard == first.name] == [(first.name, "checksum")] * len(
        {int(np.searchsorted(index.extent_first_sample, s, side="right")) for s in (3, 4, 17)}
    )
    lost = {sample: key for d in report.damages for sample, key in zip(d.samples, d.keys, strict=True)}
    assert {3, 4, 17} <= set(lost)
    assert set(lost) == {3, 4, 17, *range(40, 80)} | {s for d in report.damages if d.kind == "cut" for s in d.samples}
    assert [lost[3], lost[4], lost[17]] == ["0003", "0004", "0017"]
    assert {d.kind for d in report.damages if d.shard == second.name} == {"missing"}
    cut = [d for d in report.damages if d.shard == third.name]
    assert {d.kind for d in cut} == {"cut"}
    assert set(range(100, 120)) <= {s for d in cut for s in d.samples}
    assert report.num_damaged_samples == len(lost)
    with pytest.raises(UsageError, match=r"shards are damaged too, first "):
        repair_index(open_to_verify(data), report)


def test_a_stream_loses_the_record_with_a_wrong_checksum_and_no_other(data: Path) -> None:
    index = write_index(data, records=True)
    _, starts, _ = locate(index, np.arange(index.num_samples))
    path = data / "train-000000.tar"
    written = path.stat().st_mtime_ns
    flip(path, int(starts[17]) + 512)  # in a text, which could still be read
    os.utime(path, ns=(written, written))  # as of a disk that rots
    ds = shoal.open(data).reading(on_error="skip", verify="always")
    assert [sample["__key__"] for sample in ds] == [f"{number:04d}" for number in range(120) if number != 17]
    assert ds.stats()["skipped_ids"] == [17]


def test_lines_without_checksums(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "docs.jsonl")
    index = write_index(tmp_path, checksums=False)
    _, starts, _ = locate(index, np.arange(index.num_samples))
    flip(path, int(starts[5]) + 2)  # another key: sound JSON, and another line than was indexed
    flip(path, int(starts[150]), 0xFF)  # no JSON
    report = report_on(tmp_path)
    assert [damage.kind for damage in report.damages] == ["checksum", "unreadable"]
    assert 5 in report.damages[0].samples
    assert report.damages[1].samples == (150,)


def test_a_scan_finds_what_no_sample_holds(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "docs.jsonl")
    write_index(tmp_path)
    with path.open("ab") as file:
        file.write(b'{"id": 200}\n')
    (damage,) = report_on(tmp_path).damages
    assert (damage.kind, damage.is_of_index) == ("changed", True)
    assert "the index has 200 samples, but the shard has 201" in damage.what


def test_an_index_is_mended_where_only_it_is_wrong(data: Path) -> None:
    old = write_index(data)
    write_tar(data / "train-000003.tar", [{"__key__": b"new", "txt": b"new"}])
    dataset = open_to_verify(data)
    report = verify(dataset)
    assert [(d.kind, d.shard) for d in report.damages] == [("unknown", "train-000003.tar")]
    mended, left = repair_index(dataset, report)
    assert left == []
    assert report_on(data).damages == []
    assert (mended.num_samples, mended.extent_checksum is not None) == (121, True)
    # What was known stays: ids, and the extents that states belong to.
    assert np.array_equal(mended.extent_end_byte[: old.num_extents], old.extent_end_byte)
    assert mended.fingerprint == load_index(str(data / "shoal.index"), store=LocalStore()).fingerprint


def test_columns_are_kept_or_the_index_is_left_as_it_is(data: Path) -> None:
    old = write_index(data, records=True)
    write_tar(data / "train-000003.tar", [{"__key__": b"new", "txt": b"new"}])
    dataset = open_to_verify(data)
    mended, left = repair_index(dataset, verify(dataset))
    assert left == []
    assert mended.columns[RECORD_CRCS][:120].tolist() == old.columns[RECORD_CRCS].tolist()
    flip(data / "train-000003.tar", 513)
    assert [(d.kind, d.samples) for d in report_on(data).damages] == [("checksum", (120,))]  # its record has one, too
    flip(data / "train-000003.tar", 513)

    labelled = replace(mended, columns={**mended.columns, "label": np.arange(121)})
    labelled = replace(labelled, metadata={**mended.metadata, "classes": ["a"]})
    save_index(labelled, data / "shoal.index", store=LocalStore())
    write_tar(data / "train-000004.tar", [{"__key__": b"newer", "txt": b"newer"}])
    dataset = open_to_verify(data)
    with pytest.raises(UsageError, match=r"columns label, and their values .* 1 shard, the first of train-000004.tar"):
        repair_index(dataset, verify(dataset))
    assert load_index(str(data / "shoal.index"), store=LocalStore()).num_samples == 121

    (data / "train-000004.tar").unlink()
    os.utime(data / "train-000000.tar", ns=(1, 1))
    dataset = open_to_verify(data)
    mended, left = repair_index(dataset, verify(dataset))
    assert left == []
    assert mended.columns["label"].tolist() == list(range(121))
    assert mended.metadata["classes"] == ["a"]


def test_without_an_index_every_shard_that_cannot_be_scanned_is_listed(data: Path) -> None:
    flip(data / "train-000000.tar", 150)  # in the checksum of the first header
    flip(data / "train-000002.tar", 150)
    dataset = open_to_verify(data)
    report = verify(dataset)
    assert [(d.kind, d.shard, d.first_byte) for d in report.damages] == [
        ("unreadable", "train-000000.tar", 0),
        ("unreadable", "train-000002.tar", 0),
    ]
    assert dataset.opened is not None
    assert dataset.opened.index.num_samples == 40
    flip(data / "train-000001.tar", 150)
    assert [damage.shard for damage in report_on(data).damages] == [f"train-00000{number}.tar" for number in range(3)]


def test_an_unreadable_index_is_made_again(data: Path) -> None:
    index = write_index(data)
    flip(data / "shoal.index", (data / "shoal.index").stat().st_size // 2)
    (data / "shoal.index").write_bytes((data / "shoal.index").read_bytes()[:-100])
    dataset = open_to_verify(data)
    report = verify(dataset)
    assert [(d.kind, d.shard) for d in report.damages] == [("index", "")]
    mended, left = repair_index(dataset, report)
    assert (left, mended.num_samples) == ([], index.num_samples)
    assert report_on(data).damages == []


def test_only_sound_shards_get_a_new_index(data: Path) -> None:
    """A shard that grew, and holds what cannot be parsed: the index stays."""
    for path in data.glob("*.tar"):
        path.unlink()
    write_jsonl(data / "a.jsonl", num_docs=20)
    write_index(data)
    before = (data / "shoal.index").read_bytes()
    with (data / "a.jsonl").open("ab") as file:
        file.write(b"{no json\n")
    dataset = open_to_verify(data)
    report = verify(dataset)
    assert [damage.kind for damage in report.damages] == ["changed"]
    _, left = repair_index(dataset, report)
    assert [(damage.kind, damage.samples) for damage in left] == [("unreadable", (20,))]
    assert (data / "shoal.index").read_bytes() == before


def test_other_times_are_taken_over(data: Path) -> None:
    index = write_index(data)
    for path in data.glob("*.tar"):
        os.utime(path, ns=(1, 1))
    dataset = open_to_verify(data)
    report = verify(dataset)
    assert (report.damages, report.num_touched) == ([], 3)
    mended, left = repair_index(dataset, report)
    assert (left, mended.fingerprint) == ([], index.fingerprint)
    assert report_on(data).num_touched == 0


def test_some_shards_by_name(data: Path) -> None:
    write_index(data)
    flip(data / "train-000001.tar", 600)
    (data / "train-000002.tar").unlink()
    assert verify(open_to_verify(data / "train-000000.tar")).damages == []
    kinds = [damage.kind for damage in verify(open_to_verify(str(data / "train-00000{0..1}.tar"))).damages]
    assert kinds == ["checksum"]


def test_damage_knows_whose_it_is() -> None:
    assert [Damage(kind, "", None, None, "").is_of_index for kind in ("changed", "cut", "index")] == [True, False, True]


FORMATS = ["tar", "mds", "parquet", "arrow", "jsonl", "jsonl.zst", "tfrecord", "tar.gz"]


def packed(directory: Path, name: str, *, count: int = 60) -> Path:
    """Shards as shoal writes them, with their index."""
    keyed = name.startswith("tar")
    with Writer(directory, format=name, shard_bytes=4000) as writer:
        for number in range(count):
            text = f"document {number} " * (number % 5 + 1)
            writer.write({"__key__": f"{number:03d}", "txt": text} if keyed else {"text": text, "label": number})
    return directory


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_checked_with_and_without_checksums(tmp_path: Path, name: str) -> None:
    data = packed(tmp_path / "data", name)
    shards = sorted(path for path in data.iterdir() if path.name.startswith("shard"))
    assert report_on(data).damages == []
    assert report_on(data).num_by_parsing == 0
    index = load_index(str(data / "shoal.index"), store=LocalStore())
    for extent in (0, index.num_extents - 1):
        path = shards[int(index.extent_shard[extent])]
        good = path.read_bytes()
        flip(path, int(index.extent_first_byte[extent] + index.extent_end_byte[extent]) // 2, 0xFF)
        damages = report_on(data).damages
        assert [(damage.kind, damage.shard) for damage in damages] == [("checksum", path.name)]
        path.write_bytes(good)
    save_index(replace(index, extent_checksum=None, columns={}), data / "shoal.index", store=LocalStore())
    report = report_on(data)
    assert (report.damages, report.num_by_checksum, report.num_by_parsing) == ([], 0, index.num_extents)


@pytest.mark.drill
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(FORMATS),
    place=st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 0.9999999]),
    harm=st.sampled_from(["flip", "cut", "append"]),
)
def test_no_byte_that_was_written_can_change_unseen(
    tmp_path_factory: pytest.TempPathFactory, name: str, place: float, harm: str
) -> None:
    data = packed(tmp_path_factory.mktemp("any") / "data", name, count=400)
    path = max(data.glob("shard*"))
    byte = int(place * path.stat().st_size)
    if harm == "flip":
        flip(path, byte, 1 << byte % 8)
    elif harm == "cut":
        os.truncate(path, byte)
    else:
        path.write_bytes(path.read_bytes() + bytes([byte % 256]) * (1 + byte % 700))
    damages = report_on(data).damages
    assert {damage.shard for damage in damages} == {path.name}
    if harm != "append":  # more lines may follow
        assert not any(damage.is_of_index for damage in damages)


def test_what_is_mended_is_known_as_it_is_now(tmp_path: Path) -> None:
    data = packed(tmp_path / "data", "parquet")
    (path,) = data.glob("shard*")
    path.write_bytes(2 * path.read_bytes())  # the second footer describes the first rows: the same samples
    report = report_on(data)
    assert [damage.kind for damage in report.damages] == ["changed"]
    repair_index(open_to_verify(data), report)
    assert report_on(data).damages == []


@pytest.mark.parametrize("harm", ["gone", "cut", "other", "bytes", "circle", "column", "encoding"])
def test_the_index_of_other_readers_is_checked_and_written_anew(tmp_path: Path, harm: str) -> None:
    data, path = packed(tmp_path / "data", "mds", count=300), tmp_path / "data" / "index.json"
    good = path.read_bytes()
    packed(tmp_path / "other", "mds", count=200)
    if harm == "gone":
        path.unlink()
    elif harm == "circle":
        path.unlink()
        path.symlink_to(path.name)
    elif harm == "cut":
        path.write_bytes(good[:-5])
    elif harm == "other":
        path.write_bytes((tmp_path / "other" / "index.json").read_bytes())
    elif harm == "column":
        path.write_bytes(good.replace(b'"column_names": ["', b'"column_names": ["x'))
    elif harm == "encoding":
        path.write_bytes(good.replace(b'"int"', b'"uint8"', 1))
    else:
        path.write_bytes(good.replace(b'"samples": ', b'"samples": 1'))
    before = (data / "shoal.index").read_bytes()
    report = report_on(data)
    assert [(damage.kind, damage.shard, damage.is_of_index) for damage in report.damages] == [
        ("index", "index.json", True)
    ]
    if harm == "cut":  # an index that is written elsewhere leaves what lies beside the shards as it is
        mended, left = repair_index(open_to_verify(data), report, output=(str(tmp_path / "my.index"), LocalStore()))
        assert [damage.shard for damage in left] == ["index.json"]
        assert load_index(str(tmp_path / "my.index"), store=LocalStore()).fingerprint == mended.fingerprint
        assert path.read_bytes() == good[:-5]
    repair_index(open_to_verify(data), report)
    assert path.read_bytes() == good
    assert (data / "shoal.index").read_bytes() == before
    assert report_on(data).damages == []


def test_a_shard_more_gets_into_both_indexes(tmp_path: Path) -> None:
    data = packed(tmp_path / "data", "mds", count=300)
    first = min(data.glob("shard*"))
    (data / "shard-000099.mds").write_bytes(first.read_bytes())
    report = report_on(data)
    assert [damage.kind for damage in report.damages] == ["unknown"]
    mended, left = repair_index(open_to_verify(data), report)
    assert left == []
    shards = json.loads((data / "index.json").read_text())["shards"]
    assert [shard["raw_data"]["basename"] for shard in shards] == list(mended.shard_names)
    assert report_on(data).damages == []


def test_a_link_that_leads_nowhere_is_a_missing_shard(tmp_path: Path) -> None:
    data = packed(tmp_path / "data", "jsonl", count=200)
    path = max(data.glob("shard*"))
    path.unlink()
    path.symlink_to("nowhere")
    flip(min(data.glob("shard*")), 3)
    assert [damage.kind for damage in report_on(data).damages] == ["checksum", "missing"]


def test_shards_far_away_are_checked_as_near_ones(data: Path) -> None:
    write_index(data)
    flip(data / "train-000001.tar", 600)
    with RangeServer(data) as server:
        report = verify(open_to_verify(f"{server.url}/train-00000{{0..2}}.tar", index=f"{server.url}/shoal.index"))
    assert [(damage.kind, damage.shard, damage.first_byte) for damage in report.damages] == [
        ("checksum", "train-000001.tar", 0)
    ]
