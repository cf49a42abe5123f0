"""RecordIO, against a writer after the description of the format."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.writers import RECORDIO_MAGIC as MAGIC
from tests.formats.writers import recordio_record as record

from shoal.errors import ShardError
from shoal.formats.rows.records import CutRecords
from shoal.formats.rows.tfrecord.recordio import RecordIO
from shoal.formats.shard_format import Span
from shoal.index.shard_scan import ShardScan


def scan(data: bytes, **options: Any) -> ShardScan:
    return RecordIO(**options).scan(lambda first, end: data[first:end], len(data), shard="a.rec")


def parse(data: bytes, found: ShardScan, *, with_starts: bool = True, image_headers: bool = False) -> CutRecords:
    starts = found.sample_starts.tolist() if with_starts else None
    return RecordIO(image_headers=image_headers).parse(data, Span("a.rec", 0, found.num_samples, starts))


PIECES = st.lists(st.sampled_from([MAGIC, b"abcd", b"x", b"", b"\0\0"]), max_size=6).map(b"".join)


@given(records=st.lists(PIECES, max_size=8), window_bytes=st.sampled_from([8, 13, 1000]), with_starts=st.booleans())
def test_records_are_found_and_given_back(records: list[bytes], window_bytes: int, with_starts: bool) -> None:
    data = b"".join(map(record, records))
    found = scan(data, window_bytes=window_bytes)
    opened = parse(data, found, with_starts=with_starts)
    assert [opened.sample(number)["data"] for number in range(len(opened))] == records
    assert opened.layout_crcs().tolist() == found.layout_crcs.tolist()


def test_images_have_labels() -> None:
    one = struct.pack("<IfQQ", 0, 7.0, 12, 0) + b"jpeg"
    many = struct.pack("<IfQQ", 2, 0.0, 13, 0) + struct.pack("<2f", 1.5, -2.0) + b"png"
    data = record(one) + record(many) + record(b"short")
    opened = parse(data, scan(data), image_headers=True)
    assert opened.sample(0) == {"label": 7.0, "id": 12, "data": b"jpeg"}
    labels = opened.sample(1)["label"]
    assert labels.dtype == np.float32
    assert labels.tolist() == [1.5, -2.0]
    with pytest.raises(ShardError, match="no header of an image"):
        opened.sample(2)


def test_only_heads_of_large_records_are_read() -> None:
    data = b"".join(record(bytes(400_000)) for _ in range(8))
    num_read = 0

    def read(first: int, end: int) -> bytes:
        nonlocal num_read
        num_read += end - first
        return data[first:end]

    RecordIO(window_bytes=65536).scan(read, len(data), shard="a.rec")
    assert num_read <= 65536 + 8 * 8


@given(data=st.binary(max_size=64), cut=st.integers(0, 60), flip=st.tuples(st.integers(0, 59), st.integers(0, 7)))
def test_any_bytes_are_records_or_refused(data: bytes, cut: int, flip: tuple[int, int]) -> None:
    good = bytearray(record(b"one") + record(MAGIC * 2 + b"two") + record(b"three"))
    good[flip[0] % len(good)] ^= 1 << flip[1]
    for shard in (data, bytes(good), bytes(good[:cut]), bytes(good) + data):
        with contextlib.suppress(ShardError):
            found = scan(shard)
            for image_headers in (True, False):
                opened = parse(shard, found, image_headers=image_headers)
                for number in range(len(opened)):
                    with contextlib.suppress(ShardError):
                        opened.sample(number)


@pytest.mark.parametrize("cut", [1, 4, 9, 13])
def test_a_truncated_shard_is_refused(cut: int) -> None:
    data = record(b"whole") + record(b"cut short")
    with pytest.raises(ShardError) as caught:
        scan(data[:-cut])
    assert caught.value.byte == len(record(b"whole"))
