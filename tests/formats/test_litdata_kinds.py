"""Kinds of chunks that LitData writes: items in frames, items as rows of a table, nested leaves.

What LitData itself reads of them is in `test_peers`.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import ShardError, UsageError
from shoal.formats import LitData, Span
from shoal.formats.rows.litdata.leaves import json_value
from shoal.testing import check_format

MADE = Path(__file__).parent / "data" / "peers" / "litdata"
KINDS = ("rows", "rows-zstd", "nested", "batch", "sample", "images")

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.fixture(autouse=True)
def _libraries() -> None:
    for library in ("pyarrow", "PIL", "zstandard"):
        pytest.importorskip(library)


def reader_of(kind: str) -> LitData:
    return LitData(json.loads((MADE / kind / "index.json").read_text()))


def samples_in(reader: LitData, data: bytes) -> list[Any]:
    found = reader.scan(lambda first, end: data[first:end], len(data), shard="a.bin")
    begin, end = int(found.sample_starts[0]), int(found.sample_starts[-1])
    records = reader.parse(data[begin:end], Span("a.bin", begin, found.num_samples, head=found.head))
    return [records.sample(number) for number in range(len(records))]


@pytest.mark.parametrize("kind", KINDS)
def test_the_format_conforms(kind: str) -> None:
    reader = reader_of(kind)
    shards = {path.name: path.read_bytes() for path in sorted((MADE / kind).glob("*.bin"))}
    known = {name: (data, samples_in(reader, data)) for name, data in shards.items()}
    report = check_format(reader, known, num_damaged=30)
    assert report.num_samples == 8
    assert report.damage.num_refused > 10


def framed(items: list[bytes], per_frame: int) -> bytes:
    """A chunk of frames, each of so many items."""
    import zstandard

    groups = [items[at : at + per_frame] for at in range(0, len(items), per_frame)]
    frames = [zstandard.compress(b"".join(group)) for group in groups]
    offsets = np.cumsum([0, *map(len, items)]).astype("<u4").tobytes()
    at = 24 + len(offsets) + 24 * len(frames)
    table = b""
    for number, (group, frame) in enumerate(zip(groups, frames, strict=True)):
        table += struct.pack("<IIQII", per_frame * number, len(group), at, len(frame), sum(map(len, group)))
        at += len(frame)
    prefix = struct.pack("<8sHHIII", b"LDFZ01\0\0", 1, 0, len(items), per_frame, len(frames))
    return prefix + offsets + table + b"".join(frames)


ONE_LEAF = json.dumps([1, {"type": None, "context": None, "children_spec": []}])


def test_frames_make_pieces_of_64_kib_that_are_read_alone(tmp_path: Path) -> None:
    values = [bytes([number]) * 20_000 for number in range(100)]
    data = framed([struct.pack("<I", len(value)) + value for value in values], per_frame=3)
    (tmp_path / "chunk-0-0.bin").write_bytes(data)
    config = {"data_format": ["bytes"], "data_spec": ONE_LEAF, "compression": "zstd", "compression_level": "batch"}
    chunks = [{"filename": "chunk-0-0.bin", "chunk_bytes": len(data), "chunk_size": 100, "dim": None}]
    (tmp_path / "index.json").write_text(json.dumps({"config": config, "chunks": chunks}))
    found = reader_of("batch").scan(lambda first, end: data[first:end], len(data), shard="a.bin")
    assert found.piece_samples is not None
    assert found.piece_samples.tolist() == [6] * 16 + [4]
    ds = shoal.open(tmp_path)
    assert [sample["item"] for sample in ds] == values
    assert ds[41]["item"] == values[41]
    assert sorted(sample["item"] for sample in ds.shuffle(seed=3, window="1MiB")) == values


def test_a_table_of_frames_that_contradicts_itself_is_refused() -> None:
    reader = LitData({"config": {"data_format": ["bytes"], "data_spec": ONE_LEAF}})
    data = framed([struct.pack("<I", 4) + b"abcd"] * 7, per_frame=3)
    assert len(samples_in(reader, data)) == 7
    table = 24 + 4 * 8
    for byte, what in (
        (8, "version 2"),
        (24, "items"),
        (table, "frames"),
        (table + 8, "frames"),
        (table + 20, "frames"),
    ):
        broken = bytearray(data)
        broken[byte] += 1
        with pytest.raises(ShardError, match=what) as caught:
            samples_in(reader, bytes(broken))
        assert caught.value.shard == "a.bin"
    with pytest.raises(ShardError, match="frames"):
        samples_in(reader, data[:-1])


def test_rows_of_another_number_than_the_chunk_says_are_refused() -> None:
    (path,) = (MADE / "rows").glob("*.bin")
    data = bytearray(path.read_bytes())
    data[0] += 1
    with pytest.raises(ShardError, match="the chunk says 9 items, but its Arrow file has 8 rows"):
        samples_in(reader_of("rows"), bytes(data))


def test_rows_behind_items_of_earlier_versions_are_read() -> None:
    (path,) = (MADE / "rows").glob("*.bin")
    data = path.read_bytes()
    num_items = int.from_bytes(data[:4], "little")
    first = 4 * (num_items + 2)
    ends = [first + 10 * number for number in range(num_items + 1)]
    with_items = struct.pack(f"<{num_items + 2}I", num_items, *ends) + bytes(10 * num_items) + data[first:]
    assert samples_in(reader_of("rows"), with_items) == samples_in(reader_of("rows"), data)


def test_chunks_that_are_compressed_twice_are_refused() -> None:
    import zstandard

    (path,) = (MADE / "batch").glob("*.bin")
    data = zstandard.compress(path.read_bytes())
    with pytest.raises(ShardError, match="is itself compressed"):
        shoal.formats.Compressed(reader_of("batch"), "zst").scan(
            lambda first, end: data[first:end], len(data), shard="a.bin"
        )


def test_allowed_pickles_are_read_in_chunks_that_are_compressed_as_wholes(tmp_path: Path) -> None:
    import zstandard

    item = struct.pack("<I", 5) + b"\x80\x04K\x07."
    chunk = struct.pack("<3I", 1, 12, 12 + len(item)) + item
    (tmp_path / "chunk-0-0.zstd.bin").write_bytes(zstandard.compress(chunk))
    config = {"data_format": ["pickle"], "data_spec": ONE_LEAF, "compression": "zstd", "compression_level": None}
    index = {"config": config, "chunks": [{"filename": "chunk-0-0.zstd.bin", "chunk_bytes": 21, "chunk_size": 1}]}
    (tmp_path / "index.json").write_text(json.dumps(index))
    assert list(shoal.open(tmp_path, format=LitData(index, allow_pickle=True))) == [{"item": 7}]
    with pytest.raises(UsageError, match="can run any code"):
        list(shoal.open(tmp_path))


def nested(depth: int) -> bytes:
    one = b"\x05" + struct.pack("<I", 1) + struct.pack("<I", 1) + b"k"
    return one * depth + b"\x0b"


def test_nested_leaves_that_lie_are_refused() -> None:
    assert json_value(nested(3)) == {"k": {"k": {"k": None}}}
    for data in (
        b"",
        b"[1",
        b"\x1f",
        b"\x01\xff\xff\xff\xff",
        b"\x02\xff\xff\xff\x1f" + bytes(64),
        b"\x06\xff\xff\xff\xff\0\0\0\0",
        b"\x06\xff\xff\xff\xff" + struct.pack("<I", 1) + bytes(4) + b"\x10" * 5,
        b"\x06\1\0\0\0\1\0\0\0\1\0\0\0k\x0b",
        b"\x07\1\0\0\0\xff",
        b"\x08\0",
        b"\x0b\x0b",
    ):
        with pytest.raises(ValueError, match=r".+"):
            json_value(data)
    reader = LitData({"config": {"data_format": ["json"], "data_spec": ONE_LEAF}})
    deep = nested(50_000)
    item = struct.pack("<I", len(deep)) + deep
    with pytest.raises(ShardError, match="leaf 0 is not a valid json"):
        reader.parse(item, Span("a", 0, 1)).sample(0)
