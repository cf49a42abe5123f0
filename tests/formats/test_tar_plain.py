"""One plain sample out of known borders: the same as walking through all headers, or nothing at all.

All of it is true of the function in Python and of its compiled twins.
"""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.formats.tar_reference import parse_all, reference_groups, scan

from shoal.errors import ShardError
from shoal.formats.compiled_cutting import is_compiled, tar_sample
from shoal.formats.rows.tar.headers_fast_path import read_plain_sample
from shoal.formats.rows.tar.reader import Tar, _read_front_by_front
from shoal.formats.shard_format import Span

READERS = {
    "python": read_plain_sample,
    "compiled": tar_sample,
    "compiled, front by front": lambda part, begin, end: _read_front_by_front(lambda a, b: part[a:b], begin, end),
}
ALL_READERS = pytest.mark.parametrize("reader", READERS if is_compiled else ["python"])
SIZES = st.lists(st.lists(st.integers(0, 2000), min_size=1, max_size=5), min_size=1, max_size=12)


def archive(sizes: list[list[int]], *, mtime: float = 0, kind: int = tarfile.PAX_FORMAT, name: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as tar:
        for number, each in enumerate(sizes):
            for field, size in enumerate(each):
                info = tarfile.TarInfo(f"{name}{number:05d}.f{field}")
                info.size, info.mtime = size, mtime
                tar.addfile(info, io.BytesIO(bytes([number % 256]) * size))
    return out.getvalue()


def span(data: bytes) -> tuple[bytes, NDArray[np.int64]]:
    starts = scan(data).sample_starts
    return data[: int(starts[-1])], starts


def plain_samples(part: bytes, starts: NDArray[np.int64], reader: str) -> list[dict[str, object] | None]:
    read = READERS[reader]
    return [read(part, begin, end) for begin, end in zip(starts.tolist(), starts[1:].tolist(), strict=False)]


@ALL_READERS
@given(sizes=SIZES, mtime=st.sampled_from([0, 1.5]))
def test_the_same_as_the_long_way(reader: str, sizes: list[list[int]], mtime: float) -> None:
    data = archive(sizes, mtime=mtime)
    samples = plain_samples(*span(data), reader)
    assert None not in samples
    assert samples == reference_groups(data) == parse_all(data, scan(data), step=5)


STEMS = ["a", "_a", "__a", "__a__", "d/", "d/a", "a\nb", "", "\u00e9", "a.b/c", ".h", "a.b/__c"]
SUFFIXES = ["bin", "JPG", "seg.Png", "\u03a3", "y__", "b\nc", "__url__", ""]
KINDS = [tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.SYMTYPE]


@ALL_READERS
def test_what_was_known_before_makes_no_difference(reader: str) -> None:
    """Suffixes and headers are recognized; so any two names must be read as by the parser, which remembers nothing."""
    blocks = [_header(f"{stem}.{suffix}", tarfile.REGTYPE) for stem in STEMS for suffix in SUFFIXES]
    blocks += [_header("a.bin", kind, owner) for kind in KINDS for owner in ("", "me")]
    # A directory in old archives, so that no bytes follow.
    blocks.append(_header("a.b/", tarfile.AREGTYPE, num_bytes=512) + _header("a.txt", tarfile.REGTYPE))
    read = READERS[reader]
    for suffix in SUFFIXES:
        read(_header(f"usual.{suffix}", tarfile.REGTYPE), 0, 512)
    for first in blocks:
        for second in blocks:
            sample = read(first + second, 0, len(first + second))
            assert sample is None or sample == _walked(first + second), (first[:20], second[:20])


def _header(name: str, kind: bytes, owner: str = "", num_bytes: int = 0) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.uname, info.size = kind, owner, num_bytes
    return info.tobuf(tarfile.GNU_FORMAT)


def _walked(data: bytes) -> dict[str, object] | None:
    """Return the sample in these bytes, found by walking through them; None if they are not one."""
    records = Tar().parse(data, Span("s", 0, 1, [0, len(data)]))
    try:
        assert len(records.layout_crcs()) == 1  # this walks
        return records.sample(0)
    except ShardError:
        return None


@ALL_READERS
@pytest.mark.parametrize("name", ["\u00e9", "long" * 30, "part/" * 30])
@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_names_of_all_kinds(reader: str, name: str, kind: int) -> None:
    if kind == tarfile.USTAR_FORMAT and name.startswith("long"):
        pytest.skip("ustar has no such names")
    data = archive([[5, 6], [7, 8]], kind=kind, name=name)
    reference = reference_groups(data)
    samples = plain_samples(*span(data), reader)
    assert all(sample in (None, wanted) for sample, wanted in zip(samples, reference, strict=True))
    assert parse_all(data, scan(data)) == reference


@ALL_READERS
def test_every_flipped_bit_of_a_header_is_noticed(reader: str) -> None:
    data = archive([[600, 0], [3]], mtime=1.5)
    part, starts = span(data)
    intact = plain_samples(part, starts, reader)
    assert None not in intact
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        payloads = {byte for m in tar for byte in range(m.offset_data, m.offset_data + m.size)}
    for place in sorted(set(range(len(part))) - payloads):
        for flip in (1, 0x10):
            damaged = bytearray(part)
            damaged[place] ^= flip
            for sample, wanted in zip(plain_samples(bytes(damaged), starts, reader), intact, strict=True):
                assert sample is None or sample == wanted, place


@given(shifts=st.lists(st.sampled_from([-512, 0, 0, 0, 512, 1]), min_size=7, max_size=7))
def test_samples_cut_elsewhere_are_noticed(shifts: list[int]) -> None:
    part, starts = span(archive([[5, 6], [7], [8], [9, 10], [11], [12]]))
    moved = starts + np.array(shifts, dtype=np.int64)
    moved[0], moved[-1] = 0, len(part)
    try:
        records = Tar().parse(part, Span("s", 0, 6, moved.tolist()))
        samples = [records.sample(number) for number in range(6)]
    except ShardError:
        return
    assert all(len({*sample} - {"__key__"}) for sample in samples)
    assert set(moved.tolist()) <= {0, *range(1024, len(part) + 1, 1024)}
