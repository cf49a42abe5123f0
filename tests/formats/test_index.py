"""The index: cutting, assembling, asking, storing and checking it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pickle
import tracemalloc
import zlib
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.errors import IndexFileError, UsageError
from shoal.index import assembly, chunk_table
from shoal.index.assembly import ScannedShard, assemble, subset, validate
from shoal.index.cutting import cut_chunks, cut_extents, even_cuts
from shoal.index.index_file import confirm, decode, encode
from shoal.index.shard_scan import BY_BORDERS, ShardScan
from shoal.index.shard_texts import Texts
from shoal.index.table import EXTENT_COLUMNS, Index, locate


def scan_of(sizes: list[int], *, start: int = 512, **kwargs: Any) -> ShardScan:
    starts = np.cumsum([start, *sizes]).astype(np.int64) if sizes else np.zeros(1, dtype=np.int64)
    return ShardScan(starts, np.arange(len(sizes), dtype=np.uint32) * 77, **kwargs)


def index_of(sizes: list[list[int]], *, extent_bytes: int = 1000, **kwargs: Any) -> Index:
    shards = [
        ScannedShard(f"part/train-{number:04d}.tar", 512 + sum(each) + 1024, f"v{number}", scan_of(each))
        for number, each in enumerate(sizes)
    ]
    return assemble("tar", shards, extent_bytes=extent_bytes, **kwargs)


SIZES = st.lists(st.lists(st.integers(1, 3000), max_size=30), max_size=6)
SOME = [[500] * 7, [], [100, 200, 300], [5000, 1]]


def file_of(index: Index) -> bytes:
    return b"".join(bytes(part) for part in encode(index))


@given(sizes=st.lists(st.integers(1, 5000), max_size=60), extent_bytes=st.integers(1, 20_000))
def test_extents_follow_the_cutting_rule(sizes: list[int], extent_bytes: int) -> None:
    scan = scan_of(sizes)
    extents = cut_extents(scan, extent_bytes=extent_bytes)
    if not sizes:
        assert len(extents.first_byte) == 0
        return
    per_extent = max(1, int(extent_bytes / (sum(sizes) / len(sizes)) + 0.5))
    number = -(-len(sizes) // per_extent)
    borders = [i * len(sizes) // number for i in range(number + 1)]
    assert extents.num_samples.tolist() == np.diff(borders).tolist()
    assert extents.num_samples.max() - extents.num_samples.min() <= 1
    assert extents.first_byte.tolist() == scan.sample_starts[borders[:-1]].tolist()
    assert extents.end_byte.tolist() == scan.sample_starts[borders[1:]].tolist()
    for row in range(number):
        crcs = scan.layout_crcs[borders[row] : borders[row + 1]].astype("<u4").tobytes()
        assert extents.layout_crc[row] == zlib.crc32(crcs)


@given(sizes=SIZES)
def test_an_index_says_where_each_sample_lies(sizes: list[list[int]]) -> None:
    index = index_of(sizes)
    validate(index)
    flat = [(shard, 512 + sum(each[:i]), 512 + sum(each[: i + 1])) for shard, each in enumerate(sizes)
            for i in range(len(each))]  # fmt: skip
    assert (index.num_shards, index.num_samples) == (len(sizes), len(flat))
    assert index.num_bytes == sum(1536 + sum(each) for each in sizes)
    shards, first, end = locate(index, np.arange(len(flat)))
    assert list(zip(shards.tolist(), first.tolist(), end.tolist(), strict=True)) == flat
    for row in range(index.num_extents):
        samples = flat[index.extent_first_sample[row] : index.extent_first_sample[row + 1]]
        assert (samples[0][1], samples[-1][2]) == (index.extent_first_byte[row], index.extent_end_byte[row])


def test_without_sample_sizes_the_extent_is_given() -> None:
    index = index_of(SOME, keep_sample_bytes=False)
    validate(index)
    shards, first, end = locate(index, [8, 0])
    row = int(np.searchsorted(index.extent_first_sample, 8, side="right")) - 1
    assert (shards[0], first[0], end[0]) == (2, index.extent_first_byte[row], index.extent_end_byte[row])


@pytest.mark.parametrize("ids", [[-1], [12], [0, 99]])
def test_there_is_no_such_sample(ids: list[int]) -> None:
    with pytest.raises(UsageError, match="12 samples"):
        locate(index_of(SOME), ids)


def test_the_fingerprint_is_that_of_the_data() -> None:
    index = index_of(SOME)
    moved = [
        ScannedShard(f"else/where/train-{n:04d}.tar", 10**6, "other", scan_of(each, notes={"links": 1}))
        for n, each in enumerate(SOME)
    ]
    assert assemble("tar", moved, extent_bytes=1000).fingerprint == index.fingerprint
    assert assemble("tar", moved, extent_bytes=1000).notes == {"links": 4}
    others = [index_of(SOME, extent_bytes=2000), index_of(SOME[:3]), index_of([[501], *SOME[1:]])]
    assert len({index.fingerprint, *(other.fingerprint for other in others)}) == 4
    assert index.fingerprint == "a8604303fdb9b56a3e535c3ff4a3642b"


@given(sizes=SIZES, data=st.data())
def test_subset_is_the_index_of_its_shards(sizes: list[list[int]], data: st.DataObject) -> None:
    index = index_of(sizes)
    chosen = data.draw(st.permutations(range(len(sizes))).map(lambda order: order[: len(order) // 2 + 1]))
    part = subset(index, chosen)
    validate(part)
    assert list(part.shard_names) == [index.shard_names[number] for number in chosen]
    assert part.sample_bytes is not None
    assert part.sample_bytes.tolist() == [size for number in chosen for size in sizes[number]]
    if list(chosen) == list(range(len(sizes))):
        assert part.fingerprint == index.fingerprint


@pytest.mark.parametrize("numbers", [[0, 0], [4], [-1]])
def test_subset_refuses(numbers: list[int]) -> None:
    with pytest.raises(UsageError, match="4"):
        subset(index_of(SOME), numbers)


@given(sizes=SIZES, extents_per_chunk=st.integers(1, 9))
def test_chunks(sizes: list[list[int]], extents_per_chunk: int) -> None:
    index = index_of(sizes)
    chunks = cut_chunks(index, extents_per_chunk=extents_per_chunk)
    borders = []
    for shard in range(index.num_shards):
        rows = np.flatnonzero(index.extent_shard == shard)
        number = -(-len(rows) // extents_per_chunk)
        borders += [int(rows[0]) + i * len(rows) // number for i in range(number)]
    for number, (first, end) in enumerate(pairwise([*borders, index.num_extents])):
        assert set(index.extent_shard[first:end].tolist()) == {chunks.shard[number]}
        assert (chunks.first_byte[number], chunks.end_byte[number]) == (
            index.extent_first_byte[first],
            index.extent_end_byte[end - 1],
        )
        assert chunks.num_samples[number] == index.extent_num_samples[first:end].sum()
        assert chunks.decoded_bytes[number] == index.extent_decoded_bytes[first:end].sum()
        assert chunks.first_sample[number] == index.extent_first_sample[first]
    assert chunks.first_sample[-1] == index.num_samples
    assert len(chunks) == len(borders)


@given(sizes=SIZES, extents_per_chunk=st.integers(1, 9), tile=st.integers(1, 8), heads=st.booleans(), data=st.data())
def test_some_chunks_are_rows_of_all(
    sizes: list[list[int]], extents_per_chunk: int, tile: int, heads: bool, data: st.DataObject
) -> None:
    """Also in tars whose borders are not verified, whose chunks have the headers behind them."""
    index = index_of(sizes)
    if heads:
        index = dataclasses.replace(index, shard_heads={number: {BY_BORDERS: "2 of 9"} for number in range(len(sizes))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_table, "_TILE", tile)
        table = cut_chunks(index, extents_per_chunk=extents_per_chunk)
        decoded_bytes = table.decoded_bytes
        assert (table.total_bytes, table.largest_bytes) == (decoded_bytes.sum(), decoded_bytes.max(initial=0))
        assert table.most_samples == table.num_samples.max(initial=0)
        assert table.mean_bytes == (decoded_bytes.mean() if len(table) else 0)
    chosen = np.array(
        data.draw(st.lists(st.integers(0, len(table) - 1), max_size=9) if len(table) else st.just([])), int
    )
    places: Any = (table.shard, table.first_byte, table.end_byte)
    for column, rows in zip(places, tuple[Any, ...](table.chunks.places(chosen)), strict=True):
        assert column[chosen].tolist() == rows.tolist()
        assert column.dtype == rows.dtype
    assert table.chunks.decoded_bytes(chosen).tolist() == decoded_bytes[chosen].tolist()
    assert [column.tolist() for column in table.samples_of(chosen)] == [
        table.first_sample[chosen].tolist(),
        table.num_samples[chosen].tolist(),
    ]


def test_memory_of_a_cut_is_the_borders_of_its_chunks() -> None:
    index = index_of([[100] * 80_000] * 5, extent_bytes=1)
    columns = [getattr(index, name) for name in EXTENT_COLUMNS]
    tracemalloc.start()
    try:
        validate(index)
        table = cut_chunks(index, extents_per_chunk=2)
        assert table.largest_bytes == 200
        held_bytes, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(column.nbytes for column in columns) == 40 * 400_000
    assert held_bytes < 10 * len(table)
    assert peak_bytes < 8 * len(table) + (5 << 20)  # tiles of 65,536


def test_chunks_of_one_extent_are_columns_of_the_index() -> None:
    index = index_of(SOME)
    chunks = cut_chunks(index, extents_per_chunk=1)
    shared = {
        "first_sample": "extent_first_sample",
        "shard": "extent_shard",
        "first_byte": "extent_first_byte",
        "end_byte": "extent_end_byte",
        "num_samples": "extent_num_samples",
        "decoded_bytes": "extent_decoded_bytes",
    }
    for name, column in shared.items():
        assert np.shares_memory(getattr(chunks, name), getattr(index, column)), name


def test_counts_must_be_positive() -> None:
    with pytest.raises(UsageError, match="extents_per_chunk=0"):
        cut_chunks(index_of(SOME), extents_per_chunk=0)
    with pytest.raises(UsageError, match="extent_bytes=0"):
        cut_extents(scan_of([1]), extent_bytes=0)
    assert even_cuts(0, size=3).tolist() == [0]


def assert_same(left: Index, right: Index) -> None:
    for entry in dataclasses.fields(Index):
        one, other = getattr(left, entry.name), getattr(right, entry.name)
        if isinstance(one, np.ndarray):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
        elif entry.name == "columns":
            assert {name: column.tolist() for name, column in one.items()} == {n: c.tolist() for n, c in other.items()}
        elif entry.name in ("shard_names", "shard_versions"):
            assert tuple(one) == tuple(other)
        else:
            assert one == other, entry.name


@given(sizes=SIZES, keep=st.booleans())
def test_a_stored_index_is_the_same(sizes: list[list[int]], keep: bool) -> None:
    index = index_of(sizes, keep_sample_bytes=keep, metadata={"made": "now"})
    decoded = decode(file_of(index))
    assert_same(index, decoded)
    validate(decoded)
    assert_same(index, pickle.loads(pickle.dumps(decoded)))


def rich_index() -> Index:
    index = index_of(SOME)
    return dataclasses.replace(
        index,
        shard_names=("\u00e9/a b.tar", "b..c/x.tar", "c.tar", "\udcff.tar"),
        shard_heads={2: {"pax_globals": [[512, "n", None]]}},
        extent_checksum=np.arange(index.num_extents, dtype=np.uint32),
        columns={"score": np.linspace(0, 1, 12, dtype=np.float32), "ok": np.arange(12) % 2 == 0},
        notes={"links": 3},
    )


def test_columns_are_aligned_read_only_views() -> None:
    data = bytearray(file_of(rich_index()))
    decoded = decode(data)
    assert_same(rich_index(), decoded)
    start = 8 + int.from_bytes(data[:8], "little")
    assert start % 64 == 0
    header = json.loads(data[8:start])
    for name, entry in header.items():
        assert name == "__metadata__" or name.startswith("padding.") or entry["data_offsets"][0] % 64 == 0
    assert np.shares_memory(np.frombuffer(data, dtype=np.uint8), decoded.extent_first_byte)
    with pytest.raises(ValueError, match="read-only"):
        decoded.extent_first_byte[0] = 1
    assert decoded.shard_names[1:3] == ("b..c/x.tar", "c.tar")


def with_header(data: bytes, old: bytes, new: bytes) -> bytes:
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length]
    assert old in header
    header = header.replace(old, new, 1)
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def test_a_newer_version_is_named() -> None:
    data = with_header(file_of(index_of(SOME)), b'"version":"1"', b'"version":"7"')
    with pytest.raises(IndexFileError, match="version '7', but this version of shoal reads version 1") as caught:
        decode(data)
    assert "update shoal" in caught.value.hint


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"shoal.index"', b'"other.index"'),
        (b'"I32"', b'"F32"'),
        (b'"I32"', b'"X32"'),
        (b'"data_offsets":[0,32]', b'"data_offsets":[8,40]'),
        (b'"data_offsets":[0,32]', b'"data_offsets":[0,99999999999]'),
        (b'"data_offsets":[0,32]', b'"data_offsets":[-8,24]'),
        (b'"data_offsets":[0,32]', b'"data_offsets":[0,32.0]'),
        (b'"data_offsets":[0,32]', b'"data_offsets":[0,1' + b"0" * 5000 + b"]"),
        (b'"shape":[4]', b'"shape":[5]'),
        (b'"shape":[4]', b'"shape":[true]'),
        (b'"shape":[4]', b'"shape":4'),
        (b"extent_end_byte", b"extent_bad_byte"),
        (b"num_shards", b"num_shoals"),
        (b'\\"num_shards\\": 4', b'\\"num_shards\\": -4'),
        (b'\\"num_shards\\": 4', b'\\"num_shards\\": 9'),
        (b"{", b"["),
        (b"{", b"{" * 9),
    ],
)
def test_headers_are_not_believed(old: bytes, new: bytes) -> None:
    data = file_of(index_of(SOME))
    damaged = with_header(data, old, new)
    with pytest.raises(IndexFileError):
        decode(damaged)


@pytest.mark.parametrize("size", [0, 7, 8, 9, 100, 2000, -1])
def test_cut_files_are_noticed(size: int) -> None:
    with pytest.raises(IndexFileError, match="not a whole index file"):
        decode(file_of(index_of(SOME))[:size])
    with pytest.raises(IndexFileError):
        decode(file_of(index_of(SOME)) + b"x")


FILE = file_of(rich_index())


@given(changes=st.lists(st.tuples(st.integers(0, len(FILE) - 1), st.integers(0, 255)), min_size=1, max_size=5))
def test_damaged_files_never_crash(changes: list[tuple[int, int]]) -> None:
    data = bytearray(FILE)
    for place, value in changes:
        data[place] = value
    with contextlib.suppress(IndexFileError):
        index = decode(bytes(data))
        validate(index)
        list(index.shard_versions)
        cut_chunks(index, extents_per_chunk=2)


@given(place=st.integers(0, len(FILE) - 1), bits=st.integers(1, 255))
@example(place=FILE.index(b'"crc32":"') + 9, bits=1)
@example(place=len(FILE) - 1, bits=128)
def test_no_byte_changes_unnoticed(place: int, bits: int) -> None:
    """A change in the name of the checksum removes the checksum, and nothing else."""
    data = bytearray(FILE)
    data[place] ^= bits
    try:
        index = decode(bytes(data))
        confirm(bytes(data))
    except IndexFileError:
        return
    assert FILE.index(b'"crc32"') <= place <= FILE.index(b'"crc32"') + len('"crc32"')
    assert_same(index, rich_index())


def test_files_of_before_have_no_checksum() -> None:
    entry = FILE[FILE.index(b'"crc32":"') :][:19]
    data = with_header(FILE, entry, b"")
    assert len(data) == len(FILE) - 19
    confirm(data)
    confirm(FILE)


@given(data=st.binary(max_size=300))
def test_random_files_never_crash(data: bytes) -> None:
    with pytest.raises(IndexFileError):
        decode(data)


@pytest.mark.parametrize("name", ["../x.tar", "a/../b.tar", "/etc/x.tar", "", "a\nb", "a\x7f", "..", "a\\..\\b", "\\x"])
def test_names_stay_in_their_directory(name: str) -> None:
    index = dataclasses.replace(index_of([[5]]), shard_names=(name,))
    with pytest.raises(IndexFileError, match="names a shard"):
        encode(index)
    with pytest.raises(IndexFileError, match="names a shard"):
        validate(index)
    good = file_of(dataclasses.replace(index, shard_names=("x" * max(1, len(name)),)))
    if name and "\n" not in name:
        bad = decode(good.replace(b"x" * len(name), name.encode(), 1))
        with pytest.raises(IndexFileError, match="names a shard"):
            bad.shard_names[0]


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"shard_names": ("a", "a", "b", "c")}, "same name"),
    ({"shard_bytes": np.array([10, 0, 10, 10])}, "ends after its shard"),
    ({"shard_bytes": np.array([-1, 0, 10, 10])}, "shard 0 is negative"),
    ({"extent_shard": np.array([0, 0, 0, 0, 9, 3, 3], dtype=np.int32)}, "extent 4 belongs to no shard"),
    ({"extent_shard": np.array([3, 0, 0, 0, 2, 3, 3], dtype=np.int32)}, "extent 0 belongs to a later"),
    ({"extent_decoded_bytes": np.full(7, -1)}, "extent 0 has a negative"),
    ({"sample_bytes": np.full(12, 7, dtype=np.uint32)}, "do not add up"),
    ({"fingerprint": "00"}, "fingerprint"),
    ({"extent_first_sample": np.arange(8)}, "are miscounted"),
]


@pytest.fixture(params=[1, 2, 3, 1 << 16])
def tile(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of extents that are checked at a time."""
    monkeypatch.setattr(assembly, "_TILE", request.param)
    return int(request.param)


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize(("changes", "match"), CONTRADICTIONS)
def test_contradictions_are_named(changes: dict[str, Any], match: str) -> None:
    index = index_of(SOME)
    validate(index)
    assert index.num_extents == 7
    with pytest.raises(IndexFileError, match=match):
        validate(dataclasses.replace(index, **changes))


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("extent_first_byte", {1: 1511}),
        ("extent_first_byte", {0: -1}),
        ("extent_end_byte", {0: 0}),
        ("extent_num_samples", {2: 0}),
    ],
)
def test_gaps_are_named(name: str, values: dict[int, int]) -> None:
    index = index_of(SOME)
    column = getattr(index, name).copy()
    for row, value in values.items():
        column[row] = value
    with pytest.raises(IndexFileError, match="extent"):
        validate(dataclasses.replace(index, **{name: column}))


@given(texts=st.lists(st.binary(max_size=6).map(lambda text: text.replace(b"\n", b"")), max_size=8))
def test_texts_of_shards_are_those_of_a_list(texts: list[bytes]) -> None:
    """One at a time, in slices, all, and in another process; also bytes that are not UTF-8."""
    expected = [text.decode("utf-8", "surrogateescape") for text in texts]
    column = Texts(b"\n".join(texts), num_texts=len(texts), is_path=False)
    for same in (column, pickle.loads(pickle.dumps(column))):  # ours
        assert list(same) == expected
        assert [same[number] for number in range(-len(texts), len(texts))] == expected * 2
        assert list(same[1:3]) == expected[1:3]
        with pytest.raises(IndexError):
            same[len(texts)]
    if texts:
        with pytest.raises(IndexFileError, match="names or versions"):
            Texts(b"\n".join(texts), num_texts=len(texts) + 1, is_path=False)[0]
