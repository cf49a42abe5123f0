"""Pieces that are put aside decoded: sample by sample what they are when they are decoded at once."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formats.writers import COMPRESS, tar_of

from shoal.errors import ShardError
from shoal.formats.format_registry import format_named
from shoal.formats.shard_format import Span
from shoal.formats.tables import table_rows
from shoal.index.shard_scan import Buffer

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("zstandard")


class Held:
    """A place in memory."""

    def __init__(self) -> None:
        self.data = bytearray()

    def append(self, data: Buffer, /) -> None:
        self.data += data

    def read(self, first_byte: int, end_byte: int, /) -> bytes:
        return bytes(self.data[first_byte:end_byte])


def plain(sample: dict[str, Any]) -> dict[str, Any]:
    """With lists for arrays, and the type of each, so that samples can be compared."""
    return {
        name: (type(value).__name__, str(value.dtype), value.tolist()) if isinstance(value, np.ndarray) else value
        for name, value in sample.items()
    }


def check(name: str, data: bytes, *, shard: str = "a") -> int:
    """Every piece of a shard, spilled and not; the number of parts."""
    format = format_named(name)  # noqa: A001
    assert format.spilled_as

    def read(first: int, end: int, /) -> bytes:
        assert 0 <= first <= end <= len(data)
        return data[first:end]

    found = format.scan(read, len(data), shard=shard)
    counts = found.piece_samples
    assert counts is not None
    num_parts = 0
    for piece, num_samples in enumerate(counts.tolist()):
        first, end = found.sample_starts[piece : piece + 2].tolist()
        span = Span(shard, first, num_samples, None, found.head)
        whole = format.parse(data[first:end], span)
        space = Held()
        spilled = format.spill(read, end, span, space)
        borders, at_once = spilled.borders.tolist(), spilled.samples_per_part
        assert (spilled.num_samples, borders[-1]) == (num_samples, len(space.data) if at_once > 1 else borders[-1])
        assert len(borders) - 1 == -(-num_samples // at_once)
        head = json.loads(json.dumps(dict(spilled.head)))  # as it is kept
        for part, (begin, stop) in enumerate(pairwise(borders)):
            held = min(at_once, num_samples - part * at_once)
            records = format.parse_part(space.read(begin, stop), Span(shard, begin, held, None, head))
            for number in range(held):
                assert plain(records.sample(number)) == plain(whole.sample(part * at_once + number))
        num_parts += len(borders) - 1
    return num_parts


def lines(num_samples: int) -> bytes:
    return b"".join(json.dumps({"id": i, "text": "word " * (i % 50)}).encode() + b"\n" for i in range(num_samples))


@pytest.mark.parametrize("codec", COMPRESS)
@given(num_samples=st.integers(1, 60), blank=st.booleans(), ended=st.booleans())
@settings(max_examples=10)
def test_lines(codec: str, num_samples: int, blank: bool, ended: bool) -> None:
    data = b"\n \n" * blank + lines(num_samples).replace(b"}\n", b"}\n\n" if blank else b"}\n")
    data = data if ended else data.rstrip(b"\n")
    assert check(f"jsonl.{codec}", COMPRESS[codec](data)) == num_samples


@pytest.mark.parametrize("codec", ["gz", "zst"])
def test_tars(codec: str) -> None:
    members = {f"{i:03d}.{kind}": b"x" * i for i in range(40) for kind in ("txt", "bin")}
    assert check(f"tar.{codec}", COMPRESS[codec](tar_of(members))) == 40


@pytest.mark.parametrize("codec", ["gz", "zst"])
def test_shards_of_several_members(codec: str) -> None:
    tar = tar_of({f"{i:03d}.bin": bytes([i]) * 30_000 for i in range(40)})
    for name, data, step in (("tar", tar, 10 * 30_720), ("jsonl", b'{"a": "bcdefg"}\n' * 20_000, 5_000 * 16)):
        packed = b"".join(COMPRESS[codec](data[at : at + step]) for at in range(0, len(data), step))
        format = format_named(f"{name}.{codec}")  # noqa: A001
        found = format.scan(lambda first, end, packed=packed: packed[first:end], len(packed), shard="a")
        assert len(found.sample_starts) > 2, "several pieces"
        check(f"{name}.{codec}", packed)


VALUES = st.fixed_dictionaries(
    {
        "number": st.none() | st.integers(-(2**60), 2**60),
        "text": st.none() | st.text(max_size=5),
        "ragged": st.none() | st.lists(st.floats(allow_nan=False), max_size=3),
        "pair": st.lists(st.integers(0, 9), min_size=2, max_size=2),
        "nested": st.lists(st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.text(max_size=2)}), max_size=2),
    }
)
SCHEMA = pa.schema(
    {
        "number": pa.int64(),
        "text": pa.dictionary(pa.int32(), pa.string()),
        "ragged": pa.list_(pa.float64()),
        "pair": pa.list_(pa.int16(), 2),
        "nested": pa.list_(pa.struct({"a": pa.int8(), "b": pa.large_string()})),
    }
)


def parquet_of(table: Any, rows: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=rows)
    return sink.getvalue()


def arrow_of(table: Any, rows: int, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression, unify_dictionaries=True)
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


@given(rows=st.lists(VALUES, min_size=1, max_size=30), group=st.integers(1, 30), part=st.integers(1, 3))
@settings(max_examples=20)
def test_tables(rows: list[dict[str, Any]], group: int, part: int) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_rows, "rows_of_part", lambda *_: part)
        for module in ("parquet", "arrow"):
            patch.setattr(f"shoal.formats.tables.{module}.rows_of_part", lambda *_: part)
        expected = sum(-(-min(group, len(rows) - first) // part) for first in range(0, len(rows), group))
        assert check("parquet", parquet_of(table, group), shard="kind=a/part.parquet") == expected
        assert check("arrow", arrow_of(table, group), shard="kind=a/part.arrow") == expected
        check("arrow", arrow_of(table, group, "zstd"))


def test_parts_are_small() -> None:
    table = pa.table({"id": np.arange(4000), "x": pa.FixedSizeListArray.from_arrays(pa.array(np.ones(400_000)), 100)})
    assert 40 < check("parquet", parquet_of(table, 4000)) < 60
    assert 40 < check("arrow", arrow_of(table, 4000)) < 60


def test_of_a_row_group_little_is_read_at_a_time() -> None:
    rng = np.random.default_rng(1)
    table = pa.table({f"c{i}": rng.random(100_000) for i in range(4)})
    data = parquet_of(table, 100_000)
    sizes: list[int] = []

    def read(first: int, end: int, /) -> bytes:
        sizes.append(end - first)
        return data[first:end]

    format = format_named("parquet")  # noqa: A001
    assert format.spilled_as
    found = format.scan(lambda first, end: data[first:end], len(data), shard="a")
    first, end = found.sample_starts.tolist()
    format.spill(read, end, Span("a", first, 100_000, None, found.head), Held())
    assert max(sizes) <= 1 << 20 < len(data) // 3


@pytest.mark.parametrize("name", ["parquet", "arrow", "jsonl.gz", "jsonl.zst"])
def test_what_is_damaged_is_an_error_with_its_shard(name: str) -> None:
    table = pa.table({"id": np.arange(3000), "text": [f"row {i}" for i in range(3000)]})
    data = {"parquet": parquet_of(table, 3000), "arrow": arrow_of(table, 3000)}.get(name)
    if data is None:
        data = COMPRESS[name.partition(".")[2]](lines(3000))
    format = format_named(name)  # noqa: A001
    assert format.spilled_as
    found = format.scan(lambda first, end: data[first:end], len(data), shard="a")
    first, end = found.sample_starts.tolist()
    middle = (first + end) // 2
    cut = data[:middle] + bytes(end - middle) + data[end:]
    span = Span("a", first, found.num_samples, None, found.head)
    for damaged, told in ((cut, span), (data, span._replace(num_samples=2999))):
        if name == "arrow" and damaged is cut:
            continue  # a record batch of numbers has no damage to see
        with pytest.raises(ShardError) as caught:
            format.spill(lambda first, end, damaged=damaged: damaged[first:end], end, told, Held())
        assert caught.value.shard == "a"


def test_what_cannot_be_read_is_no_damage() -> None:
    table = pa.table({"id": np.arange(30)})
    data = parquet_of(table, 30)
    format = format_named("parquet")  # noqa: A001
    assert format.spilled_as
    found = format.scan(lambda first, end: data[first:end], len(data), shard="a")
    first, end = found.sample_starts.tolist()

    class LostError(OSError):
        """Of a store."""

    def lost(_first: int, _end: int, /) -> bytes:
        raise LostError

    class Full(Held):
        """No more room."""

        def append(self, _: Buffer, /) -> None:
            raise ZeroDivisionError

    span = Span("a", first, 30, None, found.head)
    with pytest.raises(LostError):
        format.spill(lost, end, span, Held())
    with pytest.raises(ZeroDivisionError):
        format.spill(lambda first, end: data[first:end], end, span, Full())
