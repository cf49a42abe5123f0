"""Indexes that other tools leave beside shards, as their sources write them, right and wrong."""

from __future__ import annotations

import io
import json
import logging
import os
import struct
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats import writers
from tests.stream.faraway import far_away, local_store

import shoal
from shoal.errors import IndexFileError, ShardError
from shoal.formats.format_registry import format_named
from shoal.formats.metadata.manifests import Expected
from shoal.formats.metadata.scanning import checked_scan, scan_again
from shoal.formats.metadata.third_party_index import by_borders, scan_by_index
from shoal.formats.rows.tar.borders import cut_sample
from shoal.index.shard_scan import ShardScan
from shoal.indexing.build import build_index
from shoal.indexing.index_files import save_index
from shoal.storage.files.local_store import LocalStore
from shoal.verify.index_repair import repair_index
from shoal.verify.open_to_verify import open_to_verify, verify


def made_tar(num_samples: int) -> bytes:
    members: dict[str, bytes] = {}
    for number in range(num_samples):
        members |= {f"{number:03d}.jpg": b"x" * (number * 37 % 1500), f"{number:03d}.cls": b"%d" % number}
    return writers.tar_of(members)


def energon(data: bytes) -> bytes:
    """As ``energon prepare``: where the first member of each sample begins, and where the last one ends."""
    offsets, last, end = [], "", 0
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            key = member.name.partition(".")[0]
            if key != last:
                offsets.append(member.offset)
            last, end = key, member.offset_data + -(-member.size // 512) * 512
    return struct.pack(f"<{len(offsets) + 1}Q", *offsets, end)


def wds2idx(data: bytes, version: str = "v1.2") -> bytes:
    """As DALI's ``wds2idx``: extension, offset, size and name of the components of a sample on a line."""
    lines: list[list[str]] = []
    last = ""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            key, _, extension = member.name.partition(".")
            if key != last:
                lines.append([])
            last = key
            lines[-1] += [extension, str(member.offset_data), str(member.size)]
            lines[-1] += [member.name] if version == "v1.2" else []
    return "\n".join([f"{version} {len(lines)}", *(" ".join(line) for line in lines), ""]).encode()


def made_records(num_samples: int) -> bytes:
    rows = [{"label": np.array([number]), "image": [b"x" * number]} for number in range(num_samples)]
    return b"".join(writers.framed(writers.example(row)) for row in rows)


def tfrecord2idx(data: bytes) -> bytes:
    lines, position = [], 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 8], "little") + 16
        lines.append(f"{position} {size}\n")
        position += size
    return "".join(lines).encode()


def made_rec(num_samples: int) -> tuple[bytes, bytes]:
    """A RecordIO shard and MXNet's index of it."""
    data, lines = b"", []
    for number in range(num_samples):
        lines.append(f"{number}\t{len(data)}\n")
        data += writers.recordio_record(struct.pack("<IfQQ", 0, 1.0, number, 0) + b"x" * number)
    return data, "".join(lines).encode()


def made(kind: str, num_samples: int) -> tuple[str, bytes, bytes]:
    """Name of the format, shard, and index of it."""
    if kind == "recordio":
        return (kind, *made_rec(num_samples))
    if kind == "tfrecord":
        data = made_records(num_samples)
        return kind, data, tfrecord2idx(data)
    data = made_tar(num_samples)
    return (
        "tar",
        data,
        {"energon": energon, "wds2idx": wds2idx, "wds2idx 1.1": lambda d: wds2idx(d, "v1.1")}[kind](data),
    )


KINDS = ("energon", "wds2idx", "wds2idx 1.1", "tfrecord", "recordio")


def scan(name: str, data: bytes) -> ShardScan:
    return format_named(name).scan(lambda first, end: data[first:end], len(data), shard="s")


def by_index(name: str, data: bytes, index: bytes, *, is_local: bool = True) -> tuple[ShardScan | None, int]:
    """The scan by an index, and how many bytes of the shard it read."""
    num_read = 0

    def read(first: int, end: int, /) -> bytes:
        nonlocal num_read
        assert 0 <= first <= end <= len(data)
        num_read += end - first
        return data[first:end]

    return scan_by_index(format_named(name), index, read, len(data), shard="s", is_local=is_local), num_read


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_samples", [1, 2, 3, 200])
def test_an_index_that_fits_gives_the_samples_of_a_scan(kind: str, num_samples: int) -> None:
    pytest.importorskip("google_crc32c")
    name, data, index = made(kind, num_samples)
    expected = scan(name, data)
    scanned, num_read = by_index(name, data, index)
    assert scanned is not None
    assert scanned.sample_starts.tolist() == expected.sample_starts.tolist()
    assert scanned.head == {**expected.head, "by_borders": "all seen" if name == "tar" else True}
    again = scan_again(format_named(name), lambda first, end: data[first:end], len(data), shard="s", head=scanned.head)
    assert again.layout_crcs.tolist() == scanned.layout_crcs.tolist() == by_borders(expected).layout_crcs.tolist()
    if num_samples == 200:
        far, num_read = by_index(name, data, index, is_local=False)
        assert num_read < len(data) / 2
        assert far is not None
        assert far.sample_starts.tolist() == expected.sample_starts.tolist()
        assert far.head["by_borders"] is True
        assert far.layout_crcs.tolist() == scanned.layout_crcs.tolist()


@pytest.mark.parametrize("kind", KINDS)
@given(words=st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3))
def test_a_wrong_index_is_noticed_or_harmless(kind: str, words: list[int]) -> None:
    name, data, index = made(kind, 6)
    place = words[0] % len(index)
    damaged = {
        0: index[:place],
        1: index[:place] + bytes([index[place] ^ 1 << words[2] % 8]) + index[place + 1 :],
        2: index + index[place:],
        3: index[place:],
        4: words[2].to_bytes(8, "little") * 7,
    }[words[1] % 5]
    scanned, _ = by_index(name, data, damaged)
    if scanned is not None:
        assert scanned.sample_starts.tolist() == scan(name, data).sample_starts.tolist()


def part(data: bytes, first: int, end: int) -> bytes:
    return data[first:end]


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_of_another_shard_is_noticed_and_counted(kind: str) -> None:
    name, data, _ = made(kind, 40)
    for other in (39, 41, 80):
        index = made(kind, other)[2]
        assert by_index(name, data, index)[0] is None
        scanned = checked_scan(
            format_named(name),
            lambda a, b: data[a:b],
            len(data),
            shard="s",
            index=partial(part, index),
            index_bytes=len(index),
        )
        assert scanned.notes["stale_indexes"] == 1
        assert scanned.num_samples == 40


def test_a_shard_scanned_by_an_index_must_hold_what_its_manifest_says() -> None:
    name, data, index = made("energon", 40)
    check = partial(
        checked_scan,
        format_named(name),
        lambda a, b: data[a:b],
        len(data),
        shard="s",
        index=partial(part, index),
        index_bytes=len(index),
    )
    assert check(expected=Expected(len(data), 40)).notes == {}
    with pytest.raises(ShardError, match=r"the shard has 40 samples, but index.json says 41"):
        check(expected=Expected(len(data), 41))
    with pytest.raises(ShardError, match=r"index.json says 7"):
        check(expected=Expected(7, 40))


def test_global_headers_of_a_tar_are_not_passed_over() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT, pax_headers={"path": "all.txt"}) as tar:
        tar.addfile(tarfile.TarInfo("a.txt"))
    data = out.getvalue()
    assert by_index("tar", data, struct.pack("<2Q", 0, len(data) - 1024))[0] is None


@pytest.mark.parametrize("kind", KINDS)
def test_datasets_are_the_same_with_and_without(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    caplog.set_level(logging.INFO, "shoal")
    suffix = {"tfrecord": ".tfrecord", "recordio": ".rec"}.get(kind, ".tar")
    for directory in ("with", "without"):
        (tmp_path / directory).mkdir()
        for number in range(2):
            _, data, index = made(kind, 30 + number)
            shard = tmp_path / directory / f"a b {number}{suffix}"
            shard.write_bytes(data)
            if directory == "with":
                beside = shard.with_name(shard.name + ".idx") if kind == "energon" else shard.with_suffix(".idx")
                beside.write_bytes(index)
    one, other = shoal.open(tmp_path / "with"), shoal.open(tmp_path / "without")
    assert "2 of 2 shards have an index of other tools" in caplog.text
    assert one.state_dict() == other.state_dict()
    assert repr(list(one)) == repr(list(other))
    assert repr(list(one.shuffle(seed=1))) == repr(list(other.shuffle(seed=1)))
    assert repr(one[45]) == repr(other[45])
    # The time of a shard changes, and it is scanned again; then its contents do.
    shard = tmp_path / "with" / f"a b 0{suffix}"
    os.utime(shard, ns=(1, 1))
    assert repr(list(shoal.open(tmp_path / "with", index=None))) == repr(list(other))
    opened = shoal.open(tmp_path / "with")
    shard.write_bytes(made(kind, 31)[1])
    with pytest.raises(ShardError, match="not the one that was indexed"):
        list(opened)
    # The scan of the other shard does not fit this shard any more.
    assert shoal.open(tmp_path / "with").num_samples == 62
    assert "1 of 2 indexes of other tools do not fit" in caplog.text
    assert json.loads(json.dumps(opened.num_samples)) == 61


# ---- indexes that cut a sample in two, or join two


TARS = ("ustar", "gnu", "times", "long names", "long paths", "longest paths", "directories", "links inside")
DIRECTORY_BYTES = {"long names": 120, "long paths": 300, "longest paths": 700}


def tar_of_kind(kind: str, num_samples: int) -> bytes:
    """Samples of two members each, whose headers are plain or not."""
    out = io.BytesIO()
    format = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "long names": tarfile.GNU_FORMAT}  # noqa: A001
    with tarfile.open(fileobj=out, mode="w", format=format.get(kind, tarfile.PAX_FORMAT)) as tar:
        for number in range(num_samples):
            stem = f"{'x' * DIRECTORY_BYTES[kind]}/{number:03d}" if kind in DIRECTORY_BYTES else f"{number:03d}"
            for suffix in ("cls", "jpg"):
                info = tarfile.TarInfo(f"{stem}.{suffix}")
                info.size = number * 37 % 1500
                info.mtime = 1.5 if kind == "times" else 1  # a fraction takes a PAX header
                tar.addfile(info, io.BytesIO(b"x" * info.size))
                if kind == "links inside" and suffix == "cls":
                    link = tarfile.TarInfo(f"{number}.link")
                    link.type, link.linkname = tarfile.SYMTYPE, "a"
                    tar.addfile(link)
            if kind == "directories" and number + 1 < num_samples:
                directory = tarfile.TarInfo(f"d{number}")
                directory.type = tarfile.DIRTYPE
                tar.addfile(directory)
    return out.getvalue()


def offsets_of(data: bytes) -> list[tuple[int, int]]:
    """Where each sample begins, by a scan, and where its second member does: behind the first one."""
    starts = scan("tar", data).sample_starts.tolist()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        ends = {}
        for member in tar:
            if member.name.endswith(".cls"):
                ends[member.name] = member.offset_data + -(-member.size // 512) * 512
    return list(zip(starts, ends.values(), strict=False))


@pytest.mark.parametrize("kind", TARS)
@pytest.mark.parametrize("num_samples", [20, 90])
def test_a_sample_that_is_cut_in_two_is_noticed_at_every_border(kind: str, num_samples: int) -> None:
    data = tar_of_kind(kind, num_samples)
    borders = scan("tar", data).sample_starts.tolist()
    assert by_index("tar", data, struct.pack(f"<{len(borders)}Q", *borders))[0] is not None or kind == "directories"
    num_passed = 0
    for place, (_, cut) in enumerate(offsets_of(data)):
        wrong = [*borders[: place + 1], cut, *borders[place + 1 :]]
        index = struct.pack(f"<{len(wrong)}Q", *wrong)
        assert by_index("tar", data, index)[0] is None
        num_passed += by_index("tar", data, index, is_local=False)[0] is not None
    assert num_passed or kind == "directories"  # the few places that are always compared do not tell
    scanned = checked_scan(
        format_named("tar"),
        lambda a, b: data[a:b],
        len(data),
        shard="s",
        index=lambda a, b: index[a:b],
        index_bytes=len(index),
    )
    assert scanned.notes["stale_indexes"] == 1
    assert scanned.num_samples == num_samples


@pytest.mark.parametrize("version", ["v1.1", "v1.2"])
def test_an_index_with_names_says_itself_where_samples_are_cut_or_joined(version: str) -> None:
    data = made_tar(40)
    lines = wds2idx(data, version).decode().splitlines()
    words, each = lines[16].split(" "), 4 if version == "v1.2" else 3
    cut = [*lines[:16], " ".join(words[:each]), " ".join(words[each:]), *lines[17:]]
    joined = [*lines[:16], f"{lines[16]} {lines[17]}", *lines[18:]]
    for wrong, count in ((cut, 41), (joined, 39)):
        index = "\n".join([f"{version} {count}", *wrong[1:], ""]).encode()
        assert by_index("tar", data, index)[0] is None
        far = by_index("tar", data, index, is_local=False)[0]
        assert (far is None) == (version == "v1.2" or wrong is joined)  # which has no suffix twice


def wrong_index(kind: str, data: bytes, sample: int) -> bytes:
    """One of Energon's, or of an old wds2idx, that cuts a sample in two or joins it with the next one."""
    borders = list(struct.unpack(f"<{len(energon(data)) // 8}Q", energon(data)))
    if kind == "joined":
        return struct.pack(f"<{len(borders) - 1}Q", *borders[: sample + 1], *borders[sample + 2 :])
    cut = offsets_of(data)[sample][1]
    if kind == "cut":
        return struct.pack(f"<{len(borders) + 1}Q", *borders[: sample + 1], cut, *borders[sample + 1 :])
    lines = wds2idx(data, "v1.1").decode().splitlines()
    words = lines[sample + 1].split(" ")
    lines[sample + 1 : sample + 2] = [" ".join(words[:3]), " ".join(words[3:])]
    return "\n".join([f"v1.1 {len(lines) - 1}", *lines[1:], ""]).encode()


@pytest.mark.parametrize("kind", TARS[:5])
def test_neighbours_of_one_key_are_seen_where_headers_fit_into_blocks(kind: str) -> None:
    data = tar_of_kind(kind, 12)
    starts = scan("tar", data).sample_starts.tolist()
    assert cut_sample(data, starts) is None
    for place, (_, cut) in enumerate(offsets_of(data)):
        wrong = [*starts[: place + 1], cut, *starts[place + 1 :]]
        sample_cut = cut_sample(memoryview(data), wrong)
        assert sample_cut is not None
        assert sample_cut[0] == place + 1
        assert sample_cut[1].endswith(f"{place:03d}")


@pytest.mark.parametrize("kind", ["cut", "joined", "cut by wds2idx"])
def test_a_wrong_index_of_shards_far_away_is_never_read_as_samples(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks at all borders there: reading tells, also where damage is left out, and says what to do."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    directory = tmp_path / "data"
    directory.mkdir()
    data = tar_of_kind("ustar", 60)
    (directory / "a.tar").write_bytes(data)
    (directory / "a.tar.idx").write_bytes(wrong_index(kind, data, 20))
    to_verify = open_to_verify(directory)
    index = build_index(to_verify.source, store=local_store(), format=to_verify.format)
    assert index.notes == {}
    assert index.num_samples == (59 if kind == "joined" else 61)
    save_index(index, directory / "shoal.index", store=LocalStore())
    for on_error in ("raise", "skip"):
        ds = shoal.open(directory).shuffle("none", chunk="1MiB").reading(on_error=on_error)
        with pytest.raises(IndexFileError, match=r"a\.tar, byte \d+: the index .*020") as caught:
            list(ds)
        assert ".idx" in caught.value.hint
    if kind == "joined":
        with pytest.raises(IndexFileError, match="into the sample '020'"):
            shoal.open(directory)[20]
    # The shard is as it was when it was indexed, so it is the index that is wrong; without the other one it is mended.
    report = verify(open_to_verify(directory))
    assert [damage.kind for damage in report.damages] == ["changed"]
    (directory / "a.tar.idx").unlink()
    mended, damages = repair_index(open_to_verify(directory), report)
    assert damages == []
    assert mended.num_samples == 60
    assert [sample["__key__"] for sample in shoal.open(directory)] == [f"{number:03d}" for number in range(60)]


@pytest.mark.parametrize("order", ["none", "window"])
def test_a_cut_between_chunks_is_noticed_too(order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    data = tar_of_kind("ustar", 24)
    num_wrong = 0
    for sample in range(1, 24, 3):
        directory = tmp_path / f"{sample}"
        directory.mkdir()
        (directory / "a.tar").write_bytes(data)
        (directory / "a.tar.idx").write_bytes(wrong_index("cut", data, sample))
        to_verify = open_to_verify(directory)
        index = build_index(to_verify.source, store=local_store(), format=to_verify.format, extent_bytes=1)
        assert index.num_extents == index.num_samples  # so that each border is one of chunks
        if index.num_samples == 24:
            continue  # it was compared here
        num_wrong += 1
        save_index(index, directory / "shoal.index", store=LocalStore())
        with pytest.raises(IndexFileError, match=f"'{sample:03d}'"):
            list(shoal.open(directory).shuffle(order, chunk="2400"))
    assert num_wrong > 2


def test_right_indexes_of_shards_far_away_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    for number, kind in enumerate(("ustar", "times", "long paths")):
        directory = tmp_path / kind
        directory.mkdir()
        data = tar_of_kind(kind, 40)
        (directory / "a.tar").write_bytes(data)
        (directory / "a.tar.idx").write_bytes(energon(data))
        to_verify = open_to_verify(directory)
        for extent_bytes in (1, 5000):
            index = build_index(
                to_verify.source, store=local_store(), format=to_verify.format, extent_bytes=extent_bytes
            )
            assert index.shard_heads[0]["by_borders"] is True
            save_index(index, directory / "shoal.index", store=LocalStore())
            for order in ("none", "window", "full"):
                ds = shoal.open(directory).shuffle(order, chunk=None if order == "full" else "4KiB")
                assert [int(sample["__key__"][-3:]) for sample in ds] == ds.ids().tolist()
            far = far_away(shoal.open(directory)).shuffle(seed=number, chunk="4KiB")
            assert sorted(int(sample["__key__"][-3:]) for sample in far) == list(range(40))
            assert shoal.open(directory)[39]["__key__"].endswith("039")


def test_an_index_made_near_is_scanned_again_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "a.tar").write_bytes(made_tar(30))
    (tmp_path / "a.tar.idx").write_bytes(energon(made_tar(30)))
    to_verify = open_to_verify(tmp_path)
    for store in (LocalStore(), local_store()):
        index = build_index(to_verify.source, store=store, format=to_verify.format)
        assert index.shard_heads[0]["by_borders"] == ("all seen" if store.reads_ahead else True)
        save_index(index, tmp_path / "shoal.index", store=LocalStore())
        os.utime(tmp_path / "a.tar", ns=(7, 7 + store.reads_ahead))
        assert len(list(shoal.open(tmp_path))) == 30
        assert verify(open_to_verify(tmp_path)).damages == []
