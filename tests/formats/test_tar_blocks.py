"""Many members of a tar laid out at once: the bytes and checksums that one by one would give."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.formats.rows.tar.member_blocks import laid_out
from shoal.formats.rows.tar.writer import TarEncoder, plain_header

NAMES = st.binary(min_size=1, max_size=100).filter(lambda name: b"\0" not in name)
MEMBERS = st.lists(st.tuples(NAMES, st.integers(0, 3000)), min_size=1, max_size=12)


@given(MEMBERS)
def test_headers_are_those_made_one_by_one(members: list[tuple[bytes, int]]) -> None:
    block = laid_out([name for name, _ in members], np.array([size for _, size in members]))
    assert block is not None
    for number, (name, size) in enumerate(members):
        start, end = int(block.headers[number]), int(block.ends[number])
        assert bytes(block.data[start : start + 512]) == plain_header(name, size)
        assert not any(block.data[start + 512 : end])
        assert end - start == 512 + -(-size // 512) * 512
        assert block.header_crcs[number] == crc32(plain_header(name, size))
    assert int(block.ends[-1]) == len(block.data)


@given(st.lists(st.tuples(st.binary(max_size=1500), st.binary(max_size=3)), min_size=1, max_size=6))
def test_records_are_those_of_the_encoder(samples: list[tuple[bytes, bytes]]) -> None:
    names = [name for number in range(len(samples)) for name in (b"d/%d.txt" % number, b"d/%d.cls" % number)]
    block = laid_out(names, np.array([len(value) for sample in samples for value in sample]))
    assert block is not None
    for place, value in zip(block.payloads.tolist(), (value for sample in samples for value in sample), strict=True):
        block.data[place : place + len(value)] = value
    found = block.records(members_each=2)
    encoder, shard = TarEncoder(), TarEncoder().begin()
    parts: list[Any] = []
    for number, (text, label) in enumerate(samples):
        parts += shard.add(encoder.record({"__key__": f"d/{number}", "txt": text, "cls": label}))
    written = shard.written()
    assert bytes(found.data) == b"".join(parts)
    assert found.num_bytes.tolist() == np.diff(written.scan.sample_starts).tolist()
    assert found.layout_crcs.tolist() == written.scan.layout_crcs.tolist()
    assert written.record_crcs is not None
    assert found.crcs.tolist() == written.record_crcs.tolist()


def test_what_no_plain_header_holds_is_left_to_the_encoder() -> None:
    assert laid_out([b"x" * 101], np.array([1])) is None
    assert laid_out([b"x"], np.array([8**11])) is None
