"""Shards made to do harm: sizes and places that lie, counts that reserve memory, content far larger than its bytes."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.formats import writers

from shoal.errors import ShardError
from shoal.formats.decoding.pickles import plain_pickle
from shoal.formats.format_registry import format_named
from shoal.formats.rows.litdata.reader import LitData
from shoal.formats.shard_format import Format, Span
from shoal.testing.known_shards import measured

MOST_BYTES = 48 << 20
LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def tar_member(name: bytes, size: bytes, *, kind: bytes = b"0") -> bytes:
    """A header with a right checksum and whatever size, and a block."""
    head = bytearray(512)
    head[: len(name)] = name
    head[124:136] = size.ljust(12, b"\0")
    head[148:156] = b" " * 8
    head[156:157] = kind
    head[257:265] = b"ustar\x0000"
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + bytes(512)


def pax(record: bytes) -> bytes:
    data = record.ljust(512, b"\0")
    return tar_member(b"x", b"%011o" % len(record), kind=b"x")[:512] + data + tar_member(b"a.txt", b"%011o" % 0)[:512]


def mds(count: int, offsets: list[int], rest: bytes = b"") -> bytes:
    return struct.pack(f"<{1 + len(offsets)}I", count, *offsets) + rest


def mds_value(encoding: str, value: bytes) -> bytes:
    return writers.mds_of({"x": (encoding, None)}, [[value]])


def litdata_item(kind: str, sizes: tuple[int, ...], data: bytes) -> tuple[Format, bytes]:
    leaves = len(sizes)
    tree = {"type": "builtins.list", "context": "null", "children_spec": [LEAF] * leaves}
    reader = LitData({"config": {"data_format": [kind] * leaves, "data_spec": json.dumps([1, tree])}})
    item = struct.pack(f"<{leaves}I", *sizes) + data
    return reader, mds(1, [12, 12 + len(item)], item)


def record_of(length: int, data: bytes = b"") -> bytes:
    """A frame of TFRecord with this length, whose checksum is right."""
    whole = writers.framed(data)
    import google_crc32c

    from shoal.formats.rows.tfrecord.crc32c import masked

    head = struct.pack("<Q", length)
    return head + struct.pack("<I", int(masked(google_crc32c.value(head)))) + whole[12:]


def parquet(rows: int) -> bytes:
    """A million numbers a row group in a few hundred bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.table({"x": np.zeros(rows, dtype=np.int64)}), out, row_group_size=rows)
    return out.getvalue()


def feather(rows: int) -> bytes:
    import pyarrow as pa
    from pyarrow import feather as writer

    out = io.BytesIO()
    writer.write_feather(pa.table({"x": np.zeros(rows, dtype=np.int64)}), out, compression="zstd", chunksize=rows)
    return out.getvalue()


def cases() -> dict[str, Callable[[], tuple[Format | str, bytes]]]:
    deep = b"[" * 1_000_000
    return {
        "tar size beyond the file": lambda: ("tar", tar_member(b"a.txt", b"77777777777")),
        "tar size in base 256": lambda: ("tar", tar_member(b"a.txt", b"\x80" + b"\x7f" * 11)),
        "tar negative size": lambda: ("tar", tar_member(b"a.txt", b"\xff" * 12)),
        "tar long name of 8 GiB": lambda: ("tar", tar_member(b"././@LongLink", b"77777777777", kind=b"L")),
        "tar pax record that lies": lambda: ("tar", pax(b"99999999 path=x\n")),
        "tar pax size that lies": lambda: ("tar", pax(b"28 size=9999999999999999999\n")),
        "mds 2^32 - 1 samples": lambda: ("mds", mds(2**32 - 1, [8, 9])),
        "mds samples that overlap": lambda: ("mds", mds(2, [200, 300, 250], bytes(300))),
        "mds samples beyond the file": lambda: ("mds", mds(1, [12, 2**32 - 1], bytes(10))),
        "mds deep description": lambda: ("mds", mds(0, [8 + len(deep)], deep)),
        "mds array of 2^62 numbers": lambda: ("mds", mds_value("ndarray", b"\x09\x01" + b"\xff\xff\xff\x7f" * 2)),
        "mds deep json": lambda: ("mds", mds_value("json", deep)),
        "mds image of 2^64 pixels": lambda: ("mds", mds_value("pil", b"\xff" * 8 + b"\x03\0\0\0RGB")),
        "litdata 2^32 - 1 items": lambda: (litdata_item("int", (8,), bytes(8))[0], mds(2**32 - 1, [12, 20])),
        "litdata sizes that overflow": lambda: litdata_item("bytes", (2**32 - 1, 2**32 - 1), bytes(8)),
        "litdata array of rank 2^31": lambda: litdata_item("numpy", (8,), struct.pack("<II", 3, 2**31)),
        "litdata array of 2^96 numbers": lambda: litdata_item(
            "numpy", (20,), struct.pack("<5I", 3, 3, *[2**32 - 1] * 3)
        ),
        "tfrecord of 2^63 bytes": lambda: ("tfrecord", record_of(2**63)),
        "tfrecord of 2^64 - 1 bytes": lambda: ("tfrecord", record_of(2**64 - 1)),
        "recordio part of 512 MiB": lambda: ("recordio", writers.RECORDIO_MAGIC + struct.pack("<I", 2**29 - 1)),
        "recordio 2^32 - 1 labels": lambda: (
            "recordio",
            writers.recordio_record(struct.pack("<IfQQ", 2**32 - 1, 0, 0, 0)),
        ),
        "jsonl deep": lambda: ("jsonl", deep),
        "jsonl number of a million digits": lambda: ("jsonl", b"1" * 1_000_000),
        "jsonl no utf-8": lambda: ("jsonl", b'{"\xff": 1}\n'),
        "csv open quote": lambda: ("csv", b'a,b\n"' + b"x\n" * 100_000),
        "csv no utf-8 in names": lambda: ("csv", b"a,\xff\n1,2\n"),
        "text no utf-8": lambda: ("text", b"\xff\xfe\n"),
        "arrow message of 2 GiB": lambda: ("arrow", b"\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes(100)),
        "arrow footer that lies": lambda: ("arrow", b"ARROW1\0\0" + bytes(100) + b"\xff\xff\xff\x7fARROW1"),
        "parquet footer of 2 GiB": lambda: ("parquet", b"PAR1" + bytes(100) + b"\xff\xff\xff\x7fPAR1"),
        "gz of gz of zeros": lambda: ("jsonl.gz", writers.COMPRESS["gz"](writers.COMPRESS["gz"](bytes(20_000_000)))),
    }


@pytest.mark.parametrize("case", cases())
def test_what_lies_is_refused_in_little_memory(case: str) -> None:
    for library in ("google_crc32c", "pyarrow", "PIL"):
        pytest.importorskip(library)
    chosen, data = cases()[case]()
    reader = format_named(chosen) if isinstance(chosen, str) else chosen

    def use() -> Any:
        found = reader.scan(lambda first, end: data[first:end], len(data), shard="a b/\u00e9")
        begin, end = int(found.sample_starts[0]), int(found.sample_starts[-1])
        starts = None if found.piece_samples is not None else (found.sample_starts - begin).tolist()
        records = reader.parse(data[begin:end], Span("a b/\u00e9", begin, found.num_samples, starts, found.head))
        return [records.sample(number) for number in range(len(records))]

    def attempt() -> ShardError:
        with pytest.raises(ShardError) as caught:
            use()
        return caught.value

    error, used_bytes = measured(attempt)
    assert error.shard == "a b/\u00e9"
    assert error.hint
    assert error.byte is None or 0 <= error.byte <= max(len(data), 20_000_000)
    assert used_bytes <= MOST_BYTES


@pytest.mark.parametrize(("name", "make"), [("parquet", parquet), ("arrow", feather)])
def test_what_takes_more_memory_than_bytes_is_counted_as_what_it_takes(name: str, make: Callable[[int], bytes]) -> None:
    pytest.importorskip("pyarrow")
    data = make(1_000_000)
    assert len(data) < 100_000
    found = format_named(name).scan(lambda first, end: data[first:end], len(data), shard="a")
    assert found.piece_decoded_bytes is not None
    assert found.piece_decoded_bytes.sum() >= 8_000_000


def test_a_buffer_of_a_record_batch_that_lies_is_refused() -> None:
    pytest.importorskip("pyarrow")
    data = bytearray(feather(1000))
    place = data.index((8000).to_bytes(8, "little"))
    data[place : place + 8] = (2**60).to_bytes(8, "little")
    with pytest.raises(ShardError, match=f"claims to hold {2**60}"):
        format_named("arrow").scan(lambda first, end: bytes(data[first:end]), len(data), shard="a")


def test_names_of_members_that_are_not_utf_8_are_kept() -> None:
    data = tar_member(b"caf\xe9.txt", b"%011o" % 3)
    reader = format_named("tar")
    found = reader.scan(lambda first, end: data[first:end], len(data), shard="a")
    sample = reader.parse(data, Span("a", 0, 1, [0, 1024], found.head)).sample(0)
    assert sample["__key__"].encode("utf-8", "surrogateescape") == b"caf\xe9"


@pytest.mark.parametrize("begin", [2**51, -8, 0])
def test_a_footer_that_names_messages_elsewhere_is_refused(begin: int) -> None:
    pa = pytest.importorskip("pyarrow")
    out = io.BytesIO()
    table = pa.table({"x": [1, 2]})
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
        batch = out.tell()
    whole = out.getvalue()
    size = int.from_bytes(whole[-10:-6], "little")
    footer = bytearray(whole[-10 - size : -10])
    blocks = [at for at in range(0, size - 8, 4) if 8 <= int.from_bytes(footer[at : at + 8], "little") <= batch]
    for at in blocks:  # wherever a place could stand, among them the one of the record batch
        footer[at : at + 8] = begin.to_bytes(8, "little", signed=True)
        data = b"ARROW1\0\0" + bytes(16) + footer + whole[-10:]
        with pytest.raises(ShardError):
            format_named("arrow").scan(lambda first, end, data=data: data[first:end], len(data), shard="a")
        footer[:] = whole[-10 - size : -10]
    assert blocks


@pytest.mark.parametrize("put", [b"r" + (1 << 22).to_bytes(4, "little"), b"p4194304\n"])
def test_a_pickle_of_numbers_that_counts_on_memory_is_refused(put: bytes) -> None:
    def attempt() -> None:
        with pytest.raises(ValueError, match="its memo"):
            plain_pickle(b"\x80\x02K\x01" + put + b".")

    _, used_bytes = measured(attempt)
    assert used_bytes < 1 << 20


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_of_numbers_is_read(protocol: int) -> None:
    values = [(2, 3, 2), "text", [1, [2, (3,)]], (2, 3)]
    assert plain_pickle(pickle.dumps(values, protocol)) == values


@pytest.mark.parametrize("value", [print, shutil.rmtree, np.float64(1), 1j])
def test_a_pickle_that_calls_anything_is_not_read(value: object) -> None:
    with pytest.raises(ValueError, match="it wants"):
        plain_pickle(pickle.dumps(value))
