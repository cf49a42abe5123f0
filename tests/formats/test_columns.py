"""Parquet and Arrow shards against what pyarrow gives for whole files."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import ShardError
from shoal.formats.shard_format import ColumnRecords, Format, Records, Span
from shoal.formats.tables.arrow import Arrow
from shoal.formats.tables.arrow_values import getter_of, value_in
from shoal.formats.tables.parquet import Parquet
from shoal.formats.tables.table_rows import partition_fields
from shoal.index.shard_scan import ShardScan
from shoal.testing.known_shards import same

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def parquet_of(table: Any, rows: int, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=rows, **options)
    return out.getvalue()


def stream_of(table: Any, rows: int, **options: Any) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return out.getvalue()


def file_of(table: Any, rows: int, **options: Any) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_file(out, table.schema, **options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return out.getvalue()


WRITERS: dict[str, tuple[Callable[..., bytes], Format]] = {
    "parquet": (parquet_of, Parquet()),
    "arrow stream": (stream_of, Arrow()),
    "arrow file": (file_of, Arrow()),
}
writers = pytest.mark.parametrize(("write", "reader"), WRITERS.values(), ids=WRITERS)


def scan(data: bytes, reader: Format, shard: str = "a.parquet") -> ShardScan:
    return reader.scan(lambda first, end: data[first:end], len(data), shard=shard)


def pieces(
    data: bytes,
    reader: Format,
    found: ShardScan,
    first: int,
    end: int,
    shard: str = "a.parquet",
) -> Records:
    assert found.piece_samples is not None
    begin, stop = int(found.sample_starts[first]), int(found.sample_starts[end])
    num_samples = int(found.piece_samples[first:end].sum())
    return reader.parse(data[begin:stop], Span(shard, begin, num_samples, None, found.head))


def as_python(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(st.characters(codec="utf-8"), max_size=6)),
    (pa.large_binary(), st.binary(max_size=6)),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", "c"])),
    (pa.list_(pa.int32()), st.lists(st.integers(-9, 9), max_size=4)),
    (pa.list_(pa.float32(), 2), st.lists(st.sampled_from([0.5, -2.0]), min_size=2, max_size=2)),
    (pa.list_(pa.list_(pa.int8())), st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2)),
    (
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        st.fixed_dictionaries({"x": st.integers(0, 9), "y": st.just("z")}),
    ),
    (pa.timestamp("us"), st.datetimes(dt.datetime(1970, 1, 1), dt.datetime(2100, 1, 1))),  # noqa: DTZ001
    (pa.decimal128(10, 2), st.integers(-999, 999).map(lambda cents: decimal.Decimal(cents) / 100)),
    (pa.map_(pa.string(), pa.int32()), st.lists(st.tuples(st.text("ab", max_size=2), st.integers(0, 9)), max_size=2)),
]


@st.composite
def tables(draw: st.DrawFn) -> Any:
    num_rows = draw(st.integers(0, 12))
    columns = {}
    for number in range(draw(st.integers(1, 4))):
        kind, values = draw(st.sampled_from(KINDS))
        values = values if draw(st.booleans()) else st.none() | values
        columns[f"c{number}"] = pa.array(draw(st.lists(values, min_size=num_rows, max_size=num_rows)), kind)
    return pa.table(columns)


@writers
@given(table=tables(), rows=st.integers(1, 5), data=st.data())
def test_rows_are_those_of_the_table(
    write: Callable[..., bytes],
    reader: Format,
    table: Any,
    rows: int,
    data: st.DataObject,
) -> None:
    written = write(table, rows)
    found = scan(written, reader)
    assert found.num_samples == table.num_rows
    assert found.piece_samples is not None
    num_pieces = len(found.piece_samples)
    first = data.draw(st.integers(0, num_pieces))
    end = data.draw(st.integers(first, num_pieces))
    if first == end:
        return
    records = pieces(written, reader, found, first, end)
    before = int(found.piece_samples[:first].sum())
    expected = table.slice(before, len(records)).to_pylist()
    assert [{k: as_python(v) for k, v in records.sample(n).items()} for n in range(len(records))] == expected
    assert records.layout_crcs().tolist() == found.layout_crcs[first:end].tolist()


@writers
def test_only_what_describes_a_shard_is_read(write: Callable[..., bytes], reader: Format) -> None:
    table = pa.table({"x": np.random.default_rng(0).random(200_000)})
    data = write(table, 50_000)
    num_read = 0

    def read(first: int, end: int) -> bytes:
        nonlocal num_read
        num_read += end - first
        return data[first:end]

    assert reader.scan(read, len(data), shard="a").num_samples == 200_000
    assert num_read < 100_000 < len(data)


def test_lists_of_numbers_are_arrays_of_their_own() -> None:
    table = pa.table({"tokens": pa.array([[1, 2], [3], []], pa.list_(pa.uint16()))})
    data = parquet_of(table.slice(1), 5)
    sample = pieces(data, Parquet(), scan(data, Parquet()), 0, 1).sample(0)
    assert sample["tokens"].dtype == np.uint16
    assert sample["tokens"].base is None


@pytest.mark.parametrize("write", [parquet_of, stream_of])
def test_columns_of_numbers_are_those_of_the_samples(write: Callable[..., bytes]) -> None:
    reader = Parquet() if write is parquet_of else Arrow()
    numbers = np.arange(24, dtype=np.uint16)
    table = pa.table(
        {
            "x": pa.array(range(12), pa.int32()),
            "fixed": pa.FixedSizeListArray.from_arrays(pa.array(numbers), 2),
            "equal": pa.array(numbers.reshape(12, 2).tolist(), pa.list_(pa.float32())),
        }
    ).slice(2)
    data = write(table, 4)
    records = pieces(data, reader, scan(data, reader), 0, 2)
    assert isinstance(records, ColumnRecords)
    columns = records.columns()
    assert columns is not None
    assert [kind.how for _, kind in columns.kinds] == ["number", "array", "array"]
    assert [kind.dtype for _, kind in columns.kinds] == [np.int32, np.uint16, np.float32]
    for number in range(len(records)):
        sample = records.sample(number)
        row = {name: value_in(kind, array, number) for (name, kind), array in zip(*columns, strict=True)}
        assert all(map(same, row.values(), sample.values()))
    for values in ([1, None], [[1], [1, 2]], [[1], [None]], ["a", "b"], [[[1]], [[2]]]):
        other = write(pa.table({"x": values}), 5)
        found = pieces(other, reader, scan(other, reader), 0, 1)
        assert isinstance(found, ColumnRecords)
        columns = found.columns()
        assert columns is not None
        assert columns.kinds[0][1].how == "cells"


def test_chosen_columns() -> None:
    data = parquet_of(pa.table({"a": [1, 2], "b": ["x", "y"]}), 5)
    reader = Parquet(columns=["b"])
    assert pieces(data, reader, scan(data, reader), 0, 1).sample(1) == {"b": "y"}
    other = Parquet(columns=["z"])
    with pytest.raises(ShardError, match="there is no column 'z'; the columns are a, b"):
        pieces(data, other, scan(data, other), 0, 1)


def test_directories_give_fields() -> None:
    assert partition_fields("a/year=2024/x.parquet") == {"year": "2024"}
    data = parquet_of(pa.table({"a": [1], "year": [1999]}), 5)
    shard = "year=2024/kind=cat/0.parquet"
    assert pieces(data, Parquet(), scan(data, Parquet()), 0, 1, shard).sample(0) == {
        "a": 1,
        "year": 1999,
        "kind": "cat",
    }


def test_dictionaries_that_change_are_refused() -> None:
    out = io.BytesIO()
    kind = pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema([("d", kind)])
    with pa.ipc.new_stream(out, schema) as writer:
        for values in (["a", "b"], ["c"]):
            writer.write_batch(pa.record_batch([pa.array(values, kind)], schema))
    with pytest.raises(ShardError, match="a dictionary lies at bytes"):
        scan(out.getvalue(), Arrow())


@writers
@settings(max_examples=40)
@given(cut=st.floats(0, 1, exclude_max=True))
def test_what_is_cut_short_is_refused(write: Callable[..., bytes], reader: Format, cut: float) -> None:
    data = write(pa.table({"a": list(range(50)), "s": ["text"] * 50}), 10)
    whole = scan(data, reader)
    part = data[: int(cut * len(data))]
    with contextlib.suppress(ShardError):
        found = scan(part, reader)
        # A stream may end after any message: what is there is then whole.
        assert isinstance(reader, Arrow)
        assert found.num_samples <= whole.num_samples
        for number in range(len(found.sample_starts) - 1):
            pieces(part, reader, found, number, number + 1)


@writers
@settings(max_examples=60)
@given(flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), min_size=1, max_size=3))
def test_damage_is_an_error_or_changes_nothing_else(
    write: Callable[..., bytes],
    reader: Format,
    flips: list[tuple[float, int]],
) -> None:
    data = bytearray(write(pa.table({"a": list(range(50)), "s": ["text"] * 50}), 10))
    for place, bit in flips:
        data[int(place * len(data))] ^= 1 << bit
    with contextlib.suppress(ShardError):
        found = scan(bytes(data), reader)
        for number in range(len(found.sample_starts) - 1):
            with contextlib.suppress(ShardError):
                records = pieces(bytes(data), reader, found, number, number + 1)
                for row in range(len(records)):
                    records.sample(row)


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1" + bytes(20), bytes(20) + b"\xff\xff\xff\x7fPAR1", b"ARROW1\0\0"]
)
def test_other_files_are_refused(data: bytes) -> None:
    for reader in (Parquet(), Arrow()):
        with pytest.raises(ShardError):
            scan(data, reader)


@given(
    values=st.lists(st.none() | st.binary(max_size=9), max_size=12),
    name=st.sampled_from(["binary", "large_binary", "string", "large_string"]),
    first=st.integers(0, 3),
)
def test_bytes_and_text_are_those_of_pyarrow(values: list[bytes | None], name: str, first: int) -> None:
    pa = pytest.importorskip("pyarrow")
    plain = pa.array(values, pa.large_binary() if "large" in name else pa.binary())
    array = pa.Array.from_buffers(getattr(pa, name)(), len(plain), plain.buffers(), plain.null_count).slice(first)
    get = getter_of(array)
    for row in range(len(array)):
        assert same(_value_or_error(get, row), _value_or_error(lambda number: array[number].as_py(), row))


def _value_or_error(get: Callable[[int], Any], row: int) -> Any:
    try:
        return get(row)
    except UnicodeDecodeError as error:
        return str(error)
