"""Tools for formats whose library opens files and decodes arrays: ranges as a file, kept ranges, pieces, rows."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ShardError
from shoal.formats import ArrayRows, FileOfRanges, NotedReads, PieceCuts, Span, StoredRows, known_reads, spilled_arrays
from shoal.formats.compressed.packed_heads import packed
from shoal.testing.known_shards import same

DATA = bytes(range(256)) * 4


def read(first_byte: int, end_byte: int, /) -> bytes:
    return DATA[first_byte:end_byte]


def test_a_shard_is_a_file() -> None:
    file = FileOfRanges(read, len(DATA))
    assert file.readable()
    assert file.seekable()
    assert file.seek(-4, 2) == len(DATA) - 4
    space = bytearray(8)
    assert file.readinto(space) == 4
    assert bytes(space[:4]) == DATA[-4:]
    assert file.read() == b""
    assert file.seek(3) == 3
    assert (file.seek(2, 1), bytes(file.read(2)), file.tell()) == (5, DATA[5:7], 7)


def failing(_: int, __: int, /) -> bytes:
    raise OSError("the disk is gone")


def test_a_failed_read_is_kept_and_may_give_zeros() -> None:
    file = FileOfRanges(failing, 100)
    with pytest.raises(OSError, match="gone"):
        file.read(4)
    assert isinstance(file.failure, OSError)
    quiet = FileOfRanges(failing, 100, raises=False)
    assert quiet.read(4) == bytes(4)
    assert isinstance(quiet.failure, OSError)


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 60)), max_size=20), st.integers(0, 900))
def test_kept_ranges_are_read_again_and_nothing_else(ranges: list[tuple[int, int]], begin: int) -> None:
    noted, is_known = NotedReads(read), np.zeros(len(DATA), np.bool_)
    for first, size in ranges:
        noted(first, min(first + size, len(DATA)))
        is_known[first : first + size] = True
    place: Any = {"first_byte": begin, "end_byte": begin + 50, "shard": "a.bin"}
    head = {"kept": noted.packed()}
    known = known_reads(head, "kept", DATA[begin : begin + 50] if begin % 2 else read, **place)
    for first, size in [*ranges, (begin, 50), (begin + 10, 5)]:
        end = min(first + size, len(DATA))
        assert bytes(known(first, end)) == DATA[first:end]
    is_known[begin : begin + 50] = True
    for first in np.flatnonzero(~is_known)[:5].tolist():
        with pytest.raises(ShardError, match=r"neither the index nor bytes") as caught:
            known(first, first + 1)
        assert (caught.value.shard, caught.value.byte) == ("a.bin", begin)


def test_reads_beyond_a_limit_are_not_kept() -> None:
    noted = NotedReads(read)
    noted(0, 10)
    assert noted.keep((noted(first, first + 10) for first in range(20, 60, 10)), limit_bytes=40)
    before = noted.packed()
    assert not noted.keep((noted(first, first + 10) for first in range(500, 900, 10)), limit_bytes=40)
    assert noted.packed() == before
    assert noted.num_bytes == 50


@pytest.mark.parametrize("kept", ["!", base64.b64encode(b"x").decode(), packed(b"short")])
def test_a_damaged_head_is_an_error(kept: str) -> None:
    with pytest.raises(ShardError, match="head of this shard"):
        known_reads({"kept": kept}, "kept", b"", first_byte=0, end_byte=0, shard="a.bin")
    with pytest.raises(ShardError, match="head of this shard"):
        PieceCuts.kept({"cuts": kept}, "cuts", shard="a.bin")


def stored(borders: list[int], *parts: tuple[int, int, int]) -> StoredRows:
    return StoredRows(np.array(borders), np.array(parts, np.int64).reshape(-1, 3))


def cuts(fields: list[StoredRows | None], num_rows: int = 6) -> list[list[int]]:
    found = PieceCuts.between(fields, num_rows=num_rows, num_bytes=100)
    return [found.first_bytes.tolist(), found.first_rows.tolist()]


def test_pieces_are_the_finest_that_follow_one_another() -> None:
    images = stored([0, 2, 4], (0, 10, 20), (2, 30, 40), (4, 50, 60))
    assert cuts([images]) == [[10, 30, 50, 60], [0, 2, 4, 6]]
    beside = stored([0, 2, 4], (0, 20, 25), (2, 40, 45), (4, 60, 65))
    assert cuts([images, beside]) == [[10, 30, 50, 65], [0, 2, 4, 6]]
    assert cuts([images, stored([0, 4], (0, 20, 25), (4, 60, 65))]) == [[10, 50, 65], [0, 4, 6]]
    after = stored([0, 2, 4], (0, 70, 71), (2, 71, 72), (4, 72, 73))
    assert cuts([images, after]) == [[10, 73], [0, 6]]
    mixed_up = stored([0, 2, 4], (0, 30, 40), (2, 10, 20), (4, 50, 60))
    assert cuts([mixed_up]) == [[10, 50, 60], [0, 4, 6]]


def test_rows_without_bytes_belong_to_a_piece_with_bytes() -> None:
    assert cuts([stored([0, 2, 4], (2, 30, 40))]) == [[30, 40], [0, 6]]
    assert cuts([stored([0, 2, 4], (0, 30, 40))]) == [[30, 40], [0, 6]]
    assert cuts([stored([0, 2, 4])]) == [[0, 100], [0, 6]]
    assert cuts([stored([0], (0, 5, 9)), None]) == [[0, 100], [0, 6]]
    assert cuts([stored([])], num_rows=0) == [[0], [0]]


def test_parts_outside_of_the_shard_are_refused() -> None:
    with pytest.raises(ValueError, match="byte 101 of 100"):
        cuts([stored([0], (0, 5, 101))])


def test_pieces_are_kept_and_found_by_their_bytes() -> None:
    images = PieceCuts.between([stored([0, 2, 4], (0, 10, 20), (2, 30, 40), (4, 50, 60))], num_rows=5, num_bytes=100)
    kept = PieceCuts.kept({"cuts": images.packed()}, "cuts", shard="a.bin")
    assert kept.rows_in(Span("a.bin", 10, 4), 40) == (slice(0, 2), slice(0, 4))
    assert kept.crcs().tolist() == images.crcs().tolist()
    assert len(set(kept.crcs().tolist())) == 3
    assert kept.num_samples.tolist() == [2, 2, 1]
    for first, count, size in [(10, 3, 40), (11, 4, 39), (10, 4, 41), (60, 1, 5), (70, 0, 0)]:
        with pytest.raises(ShardError, match="not the pieces"):
            kept.rows_in(Span("a.bin", first, count), size)


class Space:
    def __init__(self) -> None:
        self.data = bytearray()

    def append(self, data: Any, /) -> None:
        self.data += data

    def read(self, first_byte: int, end_byte: int, /) -> bytes:
        return bytes(self.data[first_byte:end_byte])


def columns(num_rows: int) -> dict[str, Any]:
    ragged = np.empty(num_rows, object)
    for row in range(num_rows):
        ragged[row] = np.arange(row % 4, dtype=np.int16)
    record = np.zeros(num_rows, [("a", "<i4"), ("b", "<f8", (2,))])
    record["a"] = np.arange(num_rows)
    return {
        "image": np.arange(12 * num_rows).reshape(num_rows, 3, 4).astype(">i4"),
        "label": np.arange(num_rows),
        "small": np.arange(num_rows, dtype=np.float32),
        "text": np.array([f"ü {row}" * (row % 3) for row in range(num_rows)], object),
        "bytes": np.array([b"%d" % row for row in range(num_rows)], "S9"),
        "ragged": ragged,
        "record": record,
    }


def test_rows_own_their_values_and_have_the_types_of_every_format() -> None:
    arrays = columns(5)
    rows = ArrayRows(arrays, [1, 2])
    sample = rows.sample(3)
    assert (type(sample["label"]), type(sample["small"]), sample["bytes"], sample["text"]) == (
        int,
        np.float32,
        b"3",
        "",
    )
    assert sample["image"].dtype == np.dtype("i4")
    assert rows.columns() is None
    arrays["record"]["a"][:] = 9
    arrays["image"][:] = 0
    assert sample["record"]["a"] == 3
    assert sample["image"].tolist() == np.arange(36, 48).reshape(3, 4).tolist()
    numbers = ArrayRows({name: arrays[name] for name in ("label", "small")}, [])
    found = numbers.columns()
    assert found is not None
    assert found.by_name()["label"].tolist() == list(range(5))
    assert len(ArrayRows({}, [])) == 0


@pytest.mark.parametrize("part_bytes", [1, 700, 1 << 20])
def test_spilled_rows_are_the_rows(part_bytes: int) -> None:
    arrays, space = columns(30), Space()
    spilled = spilled_arrays(
        lambda rows: {name: array[rows] for name, array in arrays.items()},
        slice(4, 30), space, part_bytes=part_bytes,
    )  # fmt: skip
    expected, found = ArrayRows(arrays, []), list[dict[str, Any]]()
    for first, end in zip(spilled.borders[:-1].tolist(), spilled.borders[1:].tolist(), strict=True):
        part = ArrayRows.of_part(space.read(first, end))
        assert len(part) == min(spilled.samples_per_part, 26 - len(found))
        found += [part.sample(number) for number in range(len(part))]
    assert same(found, [expected.sample(number) for number in range(4, 30)])
    assert (spilled.num_samples, spilled.borders[-1]) == (26, len(space.data))
