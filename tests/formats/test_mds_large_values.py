"""Samples of MDS with large values, which are read by themselves: the same as from all bytes at once, with one copy."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import shoal.pack
from shoal.errors import ShardError
from shoal.formats.rows.mds.reader import Mds
from shoal.formats.shard_format import Span

COLUMNS = {"a": "int", "big": "bytes", "s": "str", "j": "json", "text": "str", "z": "int"}


def shard(directory: Path, samples: list[dict[str, Any]]) -> bytes:
    with shoal.pack.Writer(directory, format="mds", options={"columns": COLUMNS}) as writer:
        for sample in samples:
            writer.write(sample)
    (path,) = directory.glob("*.mds")
    return path.read_bytes()


def sample_of(number: int, num_bytes: int, num_letters: int) -> dict[str, Any]:
    big = number.to_bytes(2, "little") * (num_bytes // 2)
    return {"a": number, "big": big, "s": f"s{number}", "j": {"n": number}, "text": "x" * num_letters, "z": -number}


SIZES = [(40_000, 30_000), (40_000, 5), (2, 30_000), (2, 5), (0, 0), (16_384, 16_383)]


def read_alone(format: Mds, data: bytes, number: int) -> tuple[Any, list[tuple[int, int]]]:  # noqa: A002
    """What one sample is, read alone and from all of its bytes, and the ranges that were read for it."""
    reads: list[tuple[int, int]] = []

    def read(first_byte: int, end_byte: int) -> bytes:
        reads.append((first_byte, end_byte))
        return data[first_byte:end_byte]

    found = format.scan(read, len(data), shard="a.mds")
    begin, end = int(found.sample_starts[number]), int(found.sample_starts[number + 1])
    reads.clear()
    span = Span("a.mds", begin, 1, None, found.head)
    sample = format.read_sample(read, end, span)
    ranges = list(reads)
    assert sample == format.parse(data[begin:end], span).sample(0)
    return sample, ranges


@pytest.mark.parametrize("number", range(len(SIZES)))
def test_a_sample_read_piece_by_piece_is_that_of_all_its_bytes(tmp_path: Path, number: int) -> None:
    samples = [sample_of(place, *sizes) for place, sizes in enumerate(SIZES)]
    found, reads = read_alone(Mds(), shard(tmp_path / "data", samples), number)
    assert found == samples[number]
    large = [size for size in SIZES[number] if size >= 16_384]
    if large:
        assert sum(end - begin in large for begin, end in reads) == len(large)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(reads))
        assert len(reads) <= 5


def test_what_is_not_wanted_is_not_read(tmp_path: Path) -> None:
    data = shard(tmp_path / "data", [sample_of(0, 40_000, 30_000)])
    found, reads = read_alone(Mds().projected(["a", "text"]), data, 0)
    assert list(found) == ["a", "text"]
    assert sum(end - begin for begin, end in reads) < 31_000


@pytest.mark.parametrize("sizes", [(40_000, 30_000), (40_000, 5)])
def test_a_damaged_value_is_reported_as_from_all_bytes(tmp_path: Path, sizes: tuple[int, int]) -> None:
    data = bytearray(shard(tmp_path / "data", [sample_of(0, *sizes)]))
    data[data.rindex(b"x")] = 0xFF
    format = Mds()  # noqa: A001
    found = format.scan(lambda begin, end: bytes(data[begin:end]), len(data), shard="a.mds")
    begin, end = map(int, found.sample_starts)
    span = Span("a.mds", begin, 1, None, found.head)
    with pytest.raises(ShardError) as alone:
        format.read_sample(lambda first, stop: bytes(data[first:stop]), end, span)
    with pytest.raises(ShardError) as whole:
        format.parse(bytes(data[begin:end]), span).sample(0)
    assert str(alone.value) == str(whole.value)


def test_wrong_sizes_are_reported(tmp_path: Path) -> None:
    data = bytearray(shard(tmp_path / "data", [sample_of(0, 40_000, 30_000)]))
    format = Mds()  # noqa: A001
    found = format.scan(lambda begin, end: bytes(data[begin:end]), len(data), shard="a.mds")
    begin, end = map(int, found.sample_starts)
    data[begin] ^= 1  # the size of the first value
    span = Span("a.mds", begin, 1, None, found.head)
    with pytest.raises(ShardError):
        format.read_sample(lambda first, stop: bytes(data[first:stop]), end, span)
