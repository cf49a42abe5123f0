"""Where compressed shards are cut: also where frames end inside samples, and what an index may say of that."""

from __future__ import annotations

import base64
import gzip
import json
import random
import zlib
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.formats.data import make_seekable
from tests.formats.writers import COMPRESS, framed, in_frames, in_parts, seekable_zstd, tar_of

import shoal
from shoal.errors import ShardError
from shoal.formats.compressed import pieces as compressed_pieces
from shoal.formats.compressed.codecs import decompress
from shoal.formats.compressed.decompressed import DecompressedContent
from shoal.formats.compressed.reader import Compressed
from shoal.formats.format_registry import format_named, format_of
from shoal.formats.rows.lines.reader import JsonLines
from shoal.formats.shard_format import Format, Span
from shoal.index.assembly import ScannedShard, assemble, validate
from shoal.index.shard_scan import ShardScan
from shoal.indexing.index_files import save_index
from shoal.storage.files.local_store import LocalStore
from shoal.testing import check_format
from shoal.testing.known_shards import measured

pytest.importorskip("zstandard")

OF_MEMBERS = ("gz", "bz2", "xz", "zst")
DATA = Path(__file__).parent / "data" / "seekable"
SMALL_PIECE = 256


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 256 bytes, so that a shard of some kilobytes has many."""
    monkeypatch.setattr(compressed_pieces, "EXTENT_BYTES", SMALL_PIECE)


def lines_of(sizes: list[int]) -> list[bytes]:
    """Lines of JSON, each with so many bytes that no codec makes small."""
    return [
        json.dumps({"n": number, "x": random.Random(number).randbytes(size).hex()}).encode() + b"\n"
        for number, size in enumerate(sizes)
    ]


def shard_of(kind: str, sizes: list[int]) -> tuple[bytes, list[dict[str, Any]]]:
    """What is inside of a shard of this format, and its samples."""
    if kind == "jsonl":
        lines = lines_of(sizes)
        return b"".join(lines), [json.loads(line) for line in lines]
    rows = [random.Random(number).randbytes(size) for number, size in enumerate(sizes)]
    if kind == "tfrecord":
        return b"".join(map(framed, rows)), [{"record": row} for row in rows]
    names = [f"{number:04d}" for number in range(len(rows))]
    members = {f"{name}.bin": row for name, row in zip(names, rows, strict=True)}
    return tar_of(members), [{"__key__": name, "bin": row} for name, row in zip(names, rows, strict=True)]


def scanned(name: str, data: bytes) -> ShardScan:
    return format_named(name).scan(lambda first, end: data[first:end], len(data), shard="a")


def parsed(name: str, data: bytes, found: ShardScan, first: int, end: int) -> list[dict[str, Any]]:
    """The samples of pieces ``[first, end)``."""
    begin, stop = int(found.sample_starts[first]), int(found.ends[end - 1])
    before = found.samples_before()
    span = Span("a", begin, int(before[end] - before[first]), None, found.head)
    records = format_named(name).parse(data[begin:stop], span)
    return [records.sample(number) for number in range(len(records))]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("codec", OF_MEMBERS)
@pytest.mark.parametrize("kind", ["jsonl", "tar", "tfrecord"])
def test_any_samples_in_any_frames(kind: str, codec: str) -> None:
    pytest.importorskip("google_crc32c")
    name = f"{kind}.{codec}"
    seen = []

    @settings(max_examples=5 if codec == "xz" else 10)
    @example(sizes=[50] * 60, frames=[70], choice=random.Random(1))
    @given(
        sizes=st.lists(st.integers(1, 60) | st.integers(1, 900), min_size=1, max_size=40),
        frames=st.lists(st.integers(40, 2000), min_size=1, max_size=4) | st.integers(60, 200).map(lambda size: [size]),
        choice=st.randoms(use_true_random=False),
    )
    def law(sizes: list[int], frames: list[int], choice: random.Random) -> None:
        inside, expected = shard_of(kind, sizes)
        data = b"".join(in_frames(inside, frames, codec))
        found = scanned(name, data)
        assert found.piece_samples is not None
        assert found.piece_decoded_bytes is not None
        starts, ends, num_pieces = found.sample_starts, found.ends, len(found.piece_samples)
        seen.append(num_pieces > 1 and found.piece_ends is not None)
        assert found.num_samples == len(expected)
        assert (int(starts[0]), int(ends[-1])) == (0, len(data))
        # A frame is read twice at most, and all of them together are an eighth of the shard.
        assert (starts[2:-1] >= ends[:-2]).all()
        assert int((ends - starts[:-1]).sum()) <= len(data) * 9 / 8
        assert int(found.piece_decoded_bytes.sum()) <= len(inside) * 9 / 8
        assert (found.piece_decoded_bytes[:-1] >= SMALL_PIECE).all()
        validate(assemble(name, [ScannedShard("a", len(data), "", found)]))
        again = Compressed(format_named(kind), codec).scan_as(
            found.head, lambda first, end: data[first:end], len(data), shard="a"
        )
        assert (again.head, again.ends.tolist()) == (found.head, ends.tolist())
        assert again.layout_crcs.tolist() == found.layout_crcs.tolist()
        before = found.samples_before().tolist()
        borders = sorted({0, num_pieces, *(choice.randrange(num_pieces + 1) for _ in range(3))})
        for first, end in [*pairwise(borders), (0, num_pieces), (0, 1), (num_pieces - 1, num_pieces)]:
            assert parsed(name, data, found, first, end) == expected[before[first] : before[end]]

    law()
    assert any(seen)  # frames were shared in some of them


@pytest.mark.parametrize("codec", OF_MEMBERS)
def test_pieces_that_share_frames_conform(codec: str) -> None:
    inside, expected = shard_of("jsonl", [3000] * 70)
    data = b"".join(in_frames(inside, [8192], codec))
    report = check_format(format_named(f"jsonl.{codec}"), {"a.jsonl": (data, expected)}, num_damaged=12)
    assert report.num_spans > 10
    assert report.damage.num_refused > 0


def test_what_tools_for_it_have_written() -> None:
    """The seekable format with the table of its frames, by pyzstd; and blocks of gzip, by bgzip."""
    rows = make_seekable.rows()
    members = [{"__key__": name[:-4], "txt": data} for name, data in make_seekable.members()]
    for file, expected, num_pieces in (("pyzstd.jsonl.zst", rows, 8), ("bgzip.tar.gz", members, 4)):
        data, reader = (DATA / file).read_bytes(), format_of(file)
        found = scanned(reader.name, data)
        assert found.piece_samples is not None
        assert len(found.piece_samples) == num_pieces
        assert found.piece_ends is not None
        check_format(reader, {file: (data, expected)}, num_damaged=12)


def old_pieces(found: ShardScan, parts: list[bytes], packed: list[bytes]) -> tuple[list[int], list[int], list[int]]:
    """Where shards were cut before frames were shared: their bytes, content and samples up to each border."""
    content, stored = 0, 0
    cuts, contents, counts = [0], [0], [0]
    starts = found.sample_starts.tolist()
    for part, frame in list(zip(parts, packed, strict=True))[:-1]:
        content, stored = content + len(part), stored + len(frame)
        enough = content - contents[-1] >= SMALL_PIECE
        if enough and content in starts and counts[-1] < starts.index(content) < len(starts) - 1:
            cuts, contents, counts = [*cuts, stored], [*contents, content], [*counts, starts.index(content)]
    return [*cuts, sum(map(len, packed))], [*contents, sum(map(len, parts))], [*counts, len(starts) - 1]


@pytest.mark.usefixtures("small_pieces")
@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=40),
    each=st.integers(1, 7),
    inside_too=st.booleans(),
)
def test_where_frames_end_with_samples_nothing_changed(sizes: list[int], each: int, inside_too: bool) -> None:
    """The same cuts and the same form of head as before frames were shared; and an index of then finds them again."""
    lines = lines_of(sizes)
    parts = [b"".join(lines[at : at + each]) for at in range(0, len(lines), each)]
    if inside_too:  # some frames end inside of samples
        parts = [half for part in parts for half in in_parts(part, [100])]
    packed = [COMPRESS["zst"](part) for part in parts]
    data = b"".join(packed)
    inside = b"".join(parts)
    plain = format_named("jsonl").scan(lambda first, end: inside[first:end], len(inside), shard="a")
    cuts, contents, counts = old_pieces(plain, parts, packed)
    table = np.stack([np.diff(cuts), np.diff(contents)]).astype("<i8").tobytes()
    text = base64.b64encode(zlib.compress(table)).decode()
    head = {"inner": {}} | ({"pieces": text, "begin": 0, "end": len(inside)} if len(cuts) > 2 else {})
    reader = format_named("jsonl.zst")
    assert isinstance(reader, Compressed)
    read = lambda first, end: data[first:end]  # noqa: E731
    again = reader.scan_as(head, read, len(data), shard="a")
    for found in [again] if inside_too else [again, reader.scan(read, len(data), shard="a")]:
        assert found.head == head
        assert found.piece_ends is None
        assert found.sample_starts.tolist() == cuts
        assert found.samples_before().tolist() == counts
        for number in range(len(cuts) - 1):
            expected = [json.loads(line) for line in lines[counts[number] : counts[number + 1]]]
            assert parsed("jsonl.zst", data, found, number, number + 1) == expected


def test_an_index_of_then_is_compared_as_it_was_made() -> None:
    data = (DATA / "pyzstd.jsonl.zst").read_bytes()
    reader = format_named("jsonl.zst")
    assert isinstance(reader, Compressed)
    whole = reader.scan_as({"inner": {}}, lambda first, end: data[first:end], len(data), shard="a")
    assert whole.sample_starts.tolist() == [0, len(data)]
    assert whole.layout_crcs.tolist() == [zlib.crc32(data)]
    now = scanned("jsonl.zst", data)
    again = reader.scan_as(now.head, lambda first, end: data[first:end], len(data), shard="a")
    assert again.layout_crcs.tolist() == now.layout_crcs.tolist()


# ---- heads that lie


def table_of(head: Any) -> np.ndarray[Any, Any]:
    data = zlib.decompress(base64.b64decode(head["pieces"]["table"]))
    return np.frombuffer(data, dtype="<i8").reshape(5, -1).copy()


def head_with(head: Any, table: Any) -> dict[str, Any]:
    text = base64.b64encode(zlib.compress(np.ascontiguousarray(table, dtype="<i8").tobytes())).decode()
    return {**head, "pieces": {**head["pieces"], "table": text}}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", ["jsonl", "tar"])
@settings(max_examples=20)
@given(
    row=st.integers(0, 4),
    column=st.integers(0, 100),
    value=st.integers(-(2**63), 2**63 - 1) | st.integers(-5000, 5000) | st.sampled_from([-1, 0, 1, 512, 1 << 44]),
    relative=st.booleans(),
    other=st.integers(0, 100),
)
def test_a_table_that_lies_never_leads_to_a_wrong_sample(
    kind: str, row: int, column: int, value: int, relative: bool, other: int
) -> None:
    """Samples of the shard in their order, or an error."""
    name, (inside, expected) = f"{kind}.zst", shard_of(kind, [50] * 60)
    data = b"".join(in_frames(inside, [40], "zst"))
    found = scanned(name, data)
    table = table_of(found.head)
    place = column % table.shape[1]
    lie = int(table[row, place]) * relative + value
    table[row, place] = max(-(2**63), min(lie, 2**63 - 1))
    lying = replace(found, head=head_with(found.head, table))
    first = other % table.shape[1]
    for begin, end in ((first, first + 1), (0, table.shape[1]), (place, place + 1)):
        try:
            given = parsed(name, data, lying, begin, end)
        except ShardError:
            continue
        at = expected.index(given[0])
        assert given == expected[at : at + len(given)]


@cache
def bomb() -> str:
    """A table of 150 MB in few bytes. Collecting the tests does not make the table."""
    return base64.b64encode(zlib.compress(bytes(150_000_000))).decode()


@pytest.mark.parametrize(
    ("pieces", "match"),
    [
        ({"form": 3, "table": ""}, "the pieces are in form 3"),
        ({"form": 2}, "table"),
        ({"form": 2, "table": "%%%"}, "cannot be used"),
        ({"form": 2, "table": base64.b64encode(b"no zlib").decode()}, "cannot be used"),
        ({"form": 2, "table": base64.b64encode(zlib.compress(b"")).decode()}, "the table is empty"),
        (lambda: {"form": 2, "table": bomb()}, "cannot be used"),
        (bomb, "cannot be used"),
        (7, "cannot be used"),
    ],
)
def test_heads_that_cannot_be(pieces: Any, match: str) -> None:
    data = (DATA / "pyzstd.jsonl.zst").read_bytes()
    head = {"inner": {}, "pieces": pieces() if callable(pieces) else pieces, "begin": 0, "end": 10}

    def work() -> None:
        with pytest.raises(ShardError, match=match) as caught:
            format_named("jsonl.zst").parse(data, Span("a", 0, 1, None, head))
        assert "update shoal" in str(caught.value.hint)

    assert measured(work)[1] < 64 << 20
    for begin, end in ((float("inf"), 10), (0, 10**400), (None, 1), (0, [])):
        wrong = {**scanned("jsonl.zst", data).head, "begin": begin, "end": end}
        with pytest.raises(ShardError):
            format_named("jsonl.zst").parse(data, Span("a", 0, 1, None, wrong))


def test_the_piece_that_is_wrong_is_named() -> None:
    rows = np.array([[10, 10, 10], [10, 10, 10], [0, 15, 0], [0, 0, 0], [0, 0, 0]])  # piece 1 ends behind piece 2
    head = {**head_with({"pieces": {"form": 2}}, rows), "begin": 0, "end": 30}
    with pytest.raises(ShardError, match="piece 1 does not"):
        format_named("jsonl.zst").parse(b"", Span("a", 0, 1, None, head))


def test_no_more_is_decompressed_than_the_head_says_or_the_limit_allows() -> None:
    inside, _ = shard_of("jsonl", [3000] * 70)
    frames = in_frames(inside, [8192], "gz")
    data = b"".join(frames)
    found = scanned("jsonl.gz", data)
    begin, end = int(found.sample_starts[1]), int(found.ends[1])
    bomb = (gzip.compress(bytes(50_000_000)) + data)[: end - begin]
    with pytest.raises(ShardError, match="holds more than"):
        format_named("jsonl.gz").parse(bomb, Span("a", begin, 1, None, found.head))
    small = Compressed(format_named("jsonl"), "gz", limit_bytes=100_000)
    with pytest.raises(ShardError, match="more than 100000 bytes"):
        small.parse(data[begin:end], Span("a", begin, 1, None, found.head))


# ---- damage, and memory


def test_damage_is_told_with_the_frame() -> None:
    inside, _ = shard_of("jsonl", [3000] * 70)
    frames = in_frames(inside, [8192], "gz")
    data = b"".join(frames)
    found = scanned("jsonl.gz", data)
    assert found.piece_samples is not None
    frame = 20
    at = sum(map(len, frames[:frame]))
    broken = data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]
    (piece,) = np.flatnonzero((found.sample_starts[:-1] <= at) & (at < found.ends)).tolist()[:1]
    with pytest.raises(ShardError) as caught:
        parsed("jsonl.gz", broken, found, piece, piece + 1)
    assert caught.value.byte == at
    with pytest.raises(ShardError) as caught:
        scanned("jsonl.gz", broken)
    assert caught.value.byte == at


@pytest.mark.parametrize("codec", OF_MEMBERS)
@given(
    sizes=st.lists(st.integers(20, 300), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
    padding=st.integers(0, 40),
    step=st.integers(50, 1000),
)
def test_members_of_parts_are_those_of_the_whole(
    codec: str, sizes: list[int], cuts: list[int], padding: int, step: int
) -> None:
    data = random.Random(1).randbytes(900)
    frames = in_frames(data, sizes, codec)
    stored = b"".join(frames) + bytes(padding if codec in ("gz", "bz2") else 0)
    borders = sorted({0, len(stored), *(min(cut, len(stored)) for cut in cuts)})
    parts = [stored[first:end] for first, end in pairwise(borders)]
    whole = DecompressedContent(codec, parts, limit_bytes=1000)
    assert b"".join(whole.read(at, at + step) for at in range(0, len(data) + step, step)) == data
    assert whole.num_bytes == whole.read_to_end() == len(data)
    members = whole.members
    assert (members.ends[-1], members.content_ends[-1]) == (len(stored), len(data))
    starts = [0, *members.ends]
    assert list(members.crcs) == [zlib.crc32(stored[a:b]) for a, b in pairwise(starts)]
    content = [0, *members.content_ends]
    for (a, b), (first, end) in zip(pairwise(starts), pairwise(content), strict=True):
        assert decompress(codec, stored[a:b], limit_bytes=1000) == data[first:end]


def test_a_scan_holds_some_of_what_is_inside() -> None:
    inside = b"".join(lines_of([50_000] * 300))
    data = seekable_zstd(inside, [1 << 20])
    assert len(data) > 14 << 20
    found, used_bytes = measured(lambda: scanned("jsonl.zst", data))
    assert found.num_samples == 300
    assert used_bytes < 16 << 20


def test_content_beyond_the_limit_is_no_damage(tmp_path: Path) -> None:
    """The error says the limit and the format= that raises it, when shards are indexed and when the index is used."""
    lines = b"".join(b'{"n": %d, "x": "%s"}\n' % (number, b"x" * 33_000) for number in range(9))
    frames = b"".join(map(COMPRESS["zst"], lines.splitlines(keepends=True)))
    small, large = (Compressed(JsonLines(), "zst", limit_bytes=limit) for limit in (200_000, 1 << 20))
    for name, data in (("whole", COMPRESS["zst"](lines)), ("frames", frames)):
        path = tmp_path / f"{name}.jsonl.zst"
        path.write_bytes(data)
        with pytest.raises(ShardError, match="it holds more than 200000 bytes") as caught:
            shoal.open(path, format=small)
        assert 'Compressed(shoal.formats.JsonLines(), "zst", limit_bytes=' in caught.value.hint
        assert shoal.open(path, format=large, index=index_of(path, large)).num_samples == 9
        with pytest.raises(ShardError, match="more than 200000 bytes") as caught:
            shoal.open(path, format=small, index=index_of(path, large))[0]
        assert "limit_bytes=" in caught.value.hint


def index_of(path: Path, format_: Format) -> Path:
    index = shoal.open(path, format=format_).stream.opened.index
    return Path(save_index(index, path.with_suffix(".index"), store=LocalStore()))
