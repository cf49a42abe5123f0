"""Headers of tar members are found in the middle of an archive, and little else is taken for one."""

from __future__ import annotations

import random
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.test_tar import FORMATS, SIMPLE, archive
from tests.formats.test_tar_odd import header, member, pax

from shoal.formats.rows.tar.header_fields import likely_header


def first_header(buffer: bytes, first_byte: int) -> int | None:
    """What tarfile says about each block in turn."""
    for position in range(-first_byte % 512, len(buffer) - 511, 512):
        try:
            tarfile.TarInfo.frombuf(buffer[position : position + 512], "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            continue
        return first_byte + position
    return None


@pytest.mark.parametrize("kind", FORMATS)
def test_every_header_is_found_from_where_the_one_before_ends(kind: str) -> None:
    data = archive(SIMPLE, kind=kind, mtime=1.5 if kind == "pax" else 1)
    position, found = 0, []
    while (start := likely_header(data[position:], position)) is not None:
        found.append(start)
        position = start + 1
    expected, position = [], 0
    while (start := first_header(data[position:], position)) is not None:
        expected.append(start)
        position = start + 1
    assert found == expected
    assert len(found) >= len(SIMPLE)


@pytest.mark.parametrize(
    "block",
    [
        member(b"a.x", magic=b""),
        member(b"b.x", magic=b"ustar  \0"),
        header(b"a.x", b"\x80" + bytes(10) + b"\x03"),
        header(b"a.x", b"       3 \0"),
        header(b"d/", 0, b"5"),
        member(b"\xff.x", checksum=b"%7o\0"),
        pax(path="p")[:512],
        member(b"L", kind=b"L"),
    ],
)
def test_every_kind_of_header_is_likely(block: bytes) -> None:
    noise = random.Random(0).randbytes(2048)
    assert likely_header(noise + block + noise, 10_240) == 10_240 + 2048


@given(
    blocks=st.lists(st.sampled_from(["zeros", "noise", "header", "damaged"]), max_size=12),
    first_byte=st.integers(0, 5000),
    cut_bytes=st.integers(0, 600),
    seed=st.integers(0, 1000),
)
def test_it_is_the_first_that_tarfile_takes_for_one(
    blocks: list[str], first_byte: int, cut_bytes: int, seed: int
) -> None:
    draw = random.Random(seed)
    buffer = draw.randbytes(-first_byte % 512)
    for kind in blocks:
        block = bytearray(member(b"%d.x" % draw.randrange(1000)))
        if kind == "damaged":
            block[draw.randrange(148)] ^= 1
        buffer += {"zeros": bytes(512), "noise": draw.randbytes(512)}.get(kind, bytes(block))
    buffer = buffer[: max(0, len(buffer) - cut_bytes)]
    expected = first_header(buffer, first_byte)
    assert likely_header(buffer, first_byte) == expected
    assert likely_header(memoryview(buffer), first_byte) == expected


def test_bytes_of_no_archive_have_no_likely_header() -> None:
    assert likely_header(random.Random(1).randbytes(4 << 20), 0) is None
    assert likely_header(bytes(1 << 20), 0) is None
    assert likely_header(b"0" * (1 << 20), 0) is None
    assert likely_header(b"", 7) is None
