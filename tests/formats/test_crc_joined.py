"""Checksums of spans from the checksums of their parts."""

from __future__ import annotations

from zlib import crc32

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.formats.writing.joined_checksums import joined_crcs


@given(st.lists(st.lists(st.binary(max_size=70), min_size=1, max_size=5), max_size=6))
def test_they_are_those_of_the_bytes_in_a_row(groups: list[list[bytes]]) -> None:
    parts = [part for group in groups for part in group]
    cuts = np.cumsum([0, *(len(group) for group in groups)])
    crcs = np.array([crc32(part) for part in parts], dtype=np.uint32)
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    assert joined_crcs(crcs, sizes, cuts).tolist() == [crc32(b"".join(group)) for group in groups]


def test_large_parts() -> None:
    parts = [b"a" * 5_000_000, b"", b"b" * 3_000_001, b"c"]
    crcs = np.array([crc32(part) for part in parts], dtype=np.uint32)
    sizes = np.array([len(part) for part in parts])
    assert joined_crcs(crcs, sizes, np.array([0, 4])).tolist() == [crc32(b"".join(parts))]
