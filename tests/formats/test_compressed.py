"""Shards compressed as a whole: the same samples as without, and nothing that fills the memory."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.writers import COMPRESS, framed, framed_snappy, tar_of

import shoal
from shoal.errors import ShardError
from shoal.formats.compressed.codecs import CODECS, CodecError, decompress, decompress_parts
from shoal.formats.compressed.reader import Compressed
from shoal.formats.format_registry import format_named, format_of
from shoal.formats.rows.lines.reader import JsonLines
from shoal.formats.shard_format import Span
from shoal.testing import check_format

pytest.importorskip("brotli")
pytest.importorskip("cramjam")
pytest.importorskip("zstandard")

OF_MEMBERS = ("gz", "zlib", "bz2", "xz", "zst")


def samples_of(format: Any, data: bytes) -> list[dict[str, Any]]:  # noqa: A002
    found = format.scan(lambda first, end: data[first:end], len(data), shard="a")
    records = format.parse(data, Span("a", 0, found.num_samples, None, found.head))
    return [records.sample(number) for number in range(len(records))]


@settings(max_examples=30)
@given(data=st.binary(max_size=300), repeats=st.integers(0, 2000), at=st.floats(0, 1, exclude_max=True))
def test_frames_of_snappy_are_read_too(data: bytes, repeats: int, at: float) -> None:
    data *= repeats
    packed = framed_snappy(data)
    assert decompress("snappy", packed, limit_bytes=len(data)) == data
    skipped = b"\xfe\x03\0\0abc" + packed[:10]
    assert decompress("snappy", packed + skipped + packed[10:], limit_bytes=2 * len(data)) == 2 * data
    damaged = bytearray(packed)
    damaged[int(at * len(packed))] ^= 4
    for wrong in (bytes(damaged), packed[: int(at * len(packed))]):
        with contextlib.suppress(CodecError):
            assert data.startswith(decompress("snappy", wrong, limit_bytes=len(data)))


def test_frames_of_snappy_that_lie_are_refused() -> None:
    head, big = framed_snappy(b"")[:10], b"\x80\x80\x80\x80\x08"
    for rest, match in (
        (b"\0" + (4 + len(big)).to_bytes(3, "little") + bytes(4) + big, "more than 65536 bytes"),
        (b"\x05\0\0\0", "the kind 5"),
        (b"\0\xff\xff\xff", "ends in the middle"),
        (b"\0\xff", "ends in the middle"),
    ):
        with pytest.raises(CodecError, match=match):
            decompress("snappy", head + rest, limit_bytes=1 << 30)
    with pytest.raises(CodecError, match="more than 1000 bytes"):
        decompress("snappy", framed_snappy(bytes(2000)), limit_bytes=1000)


@pytest.mark.parametrize("codec", OF_MEMBERS)
@pytest.mark.parametrize("name", ["tar", "tfrecord"])
def test_a_compressed_shard_without_the_suffix_says_how_it_is_read(name: str, codec: str, tmp_path: Path) -> None:
    pytest.importorskip("google_crc32c")
    plain = tar_of({"a.bin": Random(0).randbytes(2000)}) if name == "tar" else framed(b"x")
    path = tmp_path / f"a.{name}"
    path.write_bytes(COMPRESS[codec](plain))
    with pytest.raises(ShardError) as caught:
        shoal.open(path)
    assert f'format="{name}.{codec}"' in caught.value.hint
    assert shoal.open(path, format=f"{name}.{codec}").num_samples == 1


def test_a_header_of_xz_that_asks_for_a_gigabyte_is_refused() -> None:
    packed = bytearray(COMPRESS["xz"](b"text"))
    header = slice(12, 12 + 4 * (packed[12] + 1))
    packed[16] = 36  # the size of the dictionary, 2**30
    packed[header.stop - 4 : header.stop] = zlib.crc32(packed[header][:-4]).to_bytes(4, "little")
    with pytest.raises(CodecError, match="Memory usage limit"):
        decompress("xz", packed, limit_bytes=100)


def test_a_block_of_snappy_that_cannot_hold_what_it_says_is_refused_before_that_is_reserved() -> None:
    packed = b"\x80\x80\x80\x80\x08" + bytes(100)
    with pytest.raises(CodecError, match="2147483648 decompressed bytes, too many for 105"):
        decompress("snappy", packed, limit_bytes=1 << 32)


def test_every_codec_has_its_test() -> None:
    assert {*COMPRESS} == {*CODECS}


@pytest.mark.parametrize("codec", COMPRESS)
@settings(max_examples=20)
@given(data=st.binary(max_size=3000), repeats=st.integers(1, 2000))
def test_what_was_compressed_comes_out(codec: str, data: bytes, repeats: int) -> None:
    data *= repeats
    packed = COMPRESS[codec](data)
    assert decompress(codec, packed, limit_bytes=len(data)) == data
    if len(data):
        with pytest.raises(CodecError, match=f"more than {len(data) - 1} bytes"):
            decompress(codec, packed, limit_bytes=len(data) - 1)


@pytest.mark.parametrize("codec", OF_MEMBERS)
def test_several_members_are_one_content(codec: str) -> None:
    packed = COMPRESS[codec](b"first ") + COMPRESS[codec](b"") + COMPRESS[codec](b"second")
    assert decompress(codec, packed, limit_bytes=100) == b"first second"
    if codec in ("gz", "bz2"):
        assert decompress(codec, packed + bytes(512), limit_bytes=100) == b"first second"
        assert decompress(codec, bytes(512).join([packed, packed]), limit_bytes=100) == b"first second" * 2


@pytest.mark.parametrize("codec", COMPRESS)
@given(
    tail=st.sampled_from([b"", bytes(7), bytes(7) + b"more", b"more", None]) | st.binary(max_size=5),
    cuts=st.lists(st.integers(0, 200), max_size=4),
    at_end=st.booleans(),
)
def test_in_whatever_parts_it_comes(codec: str, tail: bytes | None, cuts: list[int], at_end: bool) -> None:
    """With what follows behind it, be it in a part of its own: the same bytes, or as much of an error."""
    packed = COMPRESS[codec](b"a line of text\n" * 50)
    data = packed + (COMPRESS[codec](b"another") if tail is None else tail)
    borders = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts), *([len(packed)] if at_end else [])})
    parts = [data[begin:end] for begin, end in pairwise(borders)]
    try:
        whole = bytes(decompress(codec, data, limit_bytes=10_000))
    except CodecError:
        with pytest.raises(CodecError):
            list(decompress_parts(codec, parts, limit_bytes=10_000))
    else:
        assert b"".join(decompress_parts(codec, parts, limit_bytes=10_000)) == whole


@pytest.mark.parametrize("codec", COMPRESS)
@given(place=st.floats(0, 1, exclude_max=True))
def test_what_is_cut_short_is_refused(codec: str, place: float) -> None:
    packed = COMPRESS[codec](b"a line of text\n" * 50 + bytes(range(256)))
    with pytest.raises(CodecError):
        decompress(codec, packed[: int(place * len(packed))] or packed[:1], limit_bytes=10_000)


@pytest.mark.parametrize("codec", COMPRESS)
@given(data=st.binary(min_size=1, max_size=200))
def test_any_bytes_are_decompressed_or_refused(codec: str, data: bytes) -> None:
    packed = COMPRESS[codec](b"0123456789" * 5)
    for damaged in (data, packed[: len(data)] + data):
        with contextlib.suppress(CodecError):
            assert len(decompress(codec, damaged, limit_bytes=1 << 20)) <= 1 << 20


@pytest.mark.parametrize("codec", COMPRESS)
def test_a_bomb_is_refused(codec: str) -> None:
    packed = COMPRESS[codec](bytes(8 << 20))
    shard = Compressed(JsonLines(), codec, limit_bytes=1 << 20)
    with pytest.raises(ShardError, match=f"more than {1 << 20} bytes"):
        shard.scan(lambda first, end: packed[first:end], len(packed), shard="a.jsonl")


@pytest.mark.parametrize("codec", COMPRESS)
def test_the_samples_are_those_of_the_plain_shard(codec: str) -> None:
    lines = b'\n\n{"a": 1}\n \n{"a": 2}'
    assert samples_of(format_named(f"jsonl.{codec}"), COMPRESS[codec](lines)) == [{"a": 1}, {"a": 2}]
    table = b"x,y\n1,2\n3,4\n"
    assert samples_of(format_named(f"csv.{codec}"), COMPRESS[codec](table))[1] == {"x": "3", "y": "4"}
    tar = tar_of({"a.txt": b"one", "a.cls": b"1", "b.txt": b"two"})
    assert samples_of(format_of(f"x.tar.{codec}"), COMPRESS[codec](tar)) == [
        {"__key__": "a", "txt": b"one", "cls": b"1"},
        {"__key__": "b", "txt": b"two"},
    ]


def test_names() -> None:
    assert format_of("x.TGZ").name == "tar.gz"
    assert format_of("x.mds.zstd").name == "mds.zst"
    for codec, compress in COMPRESS.items():
        assert samples_of(format_named(f"jsonl.{codec}"), b"") == []
        assert samples_of(format_named(f"jsonl.{codec}"), compress(b"")) == []


def test_another_shard_is_noticed() -> None:
    format = format_named("jsonl.gz")  # noqa: A001
    one, other = gzip.compress(b"{}\n{}\n"), gzip.compress(b"{}\n")
    found = format.scan(lambda first, end: one[first:end], len(one), shard="a")
    with pytest.raises(ShardError, match="says 2 samples in this shard, but the shard has 1"):
        format.parse(other, Span("a", 0, 2, None, found.head))


@pytest.mark.parametrize("codec", OF_MEMBERS)
@pytest.mark.parametrize("kind", ["jsonl", "csv", "tar", "tfrecord"])
def test_members_that_end_with_a_sample_are_pieces(codec: str, kind: str) -> None:
    format = format_named(f"{kind}.{codec}")  # noqa: A001
    size = 30_000  # so that three make a piece of 64 KiB or more
    rows = [bytes([97 + number % 26]) * size for number in range(10)]
    if kind == "tar":
        parts = [tar_of({f"{n}.txt": row})[: 512 + size + -size % 512] for n, row in enumerate(rows)] + [bytes(10_240)]
        expected: list[Any] = [{"__key__": str(n), "txt": row} for n, row in enumerate(rows)]
    elif kind == "tfrecord":
        parts, expected = [framed(row) for row in rows], [{"record": row} for row in rows]
    elif kind == "csv":
        parts = [b"a,b\n", *(b"1,%s\n" % row for row in rows)]
        expected = [{"a": "1", "b": row.decode()} for row in rows]
    else:
        parts = [b"\xef\xbb\xbf\n\n", *(b'{"x": "%s"}\n' % row for row in rows), b"\n \n"]
        expected = [{"x": row.decode()} for row in rows]
    data = b"".join(map(COMPRESS[codec], parts))
    found = format.scan(lambda first, end: data[first:end], len(data), shard="a")
    assert found.piece_samples is not None
    assert len(found.piece_samples) == 4
    assert found.piece_decoded_bytes is not None
    assert found.piece_decoded_bytes.sum() == sum(map(len, parts))
    report = check_format(format, {"a": (data, expected)}, num_damaged=12)
    assert report.num_spans == 10
    # Cut elsewhere than at samples, they are one piece.
    whole = b"".join(parts)
    data = b"".join(COMPRESS[codec](whole[at : at + 70_000]) for at in range(0, len(whole), 70_000))
    found = format.scan(lambda first, end: data[first:end], len(data), shard="a")
    assert found.piece_samples is not None
    assert found.piece_samples.tolist() == [10]
    assert samples_of(format, data) == expected


def test_a_piece_that_holds_more_than_the_index_says_is_not_decompressed() -> None:
    format = format_named("jsonl.gz")  # noqa: A001
    lines = [b'{"x": "%s"}\n' % (b"y" * 70_000)] * 3
    data = b"".join(gzip.compress(line) for line in lines)
    found = format.scan(lambda first, end: data[first:end], len(data), shard="a")
    begin, end = found.sample_starts[1:3].tolist()
    bomb = gzip.compress(bytes(50_000_000))
    padded = (bomb + data)[: end - begin]
    for wrong in (padded, bytes(end - begin), data[begin : end - 6] + b"\xfe\xfe" + data[end - 4 : end]):
        with pytest.raises(ShardError) as caught:
            format.parse(wrong, Span("a", begin, 1, None, found.head))
        assert caught.value.byte is not None
    for place in ((begin + 1, end), (begin, end - 1)):
        with pytest.raises(ShardError, match="no pieces of this shard at"):
            format.parse(data[slice(*place)], Span("a", place[0], 1, None, found.head))


def test_frames_of_a_dataset_are_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    lines = [b'{"n": %d, "x": "%s"}\n' % (n, b"y" * 20_000) for n in range(200)]
    frames = [COMPRESS["zst"](b"".join(lines[at : at + 5])) for at in range(0, 200, 5)]
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(frames))
    ds = shoal.open(tmp_path / "a.jsonl.zst").shuffle(seed=1, window="1MiB", chunk="100KB")
    assert sorted(sample["n"] for sample in ds) == list(range(200))
    assert next(iter(shoal.open(tmp_path / "a.jsonl.zst").skip(150)))["n"] == 150
