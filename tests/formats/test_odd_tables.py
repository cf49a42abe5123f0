"""Tables that other tools write and that Python, or a dict, or pyarrow has no room for."""

from __future__ import annotations

import io
from datetime import date, datetime, time, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import ShardError, UsageError
from shoal.formats.tables.table_rows import partition_fields

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = [
    pytest.mark.usefixtures("_cache_of_its_own"),
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
]


@pytest.fixture
def _cache_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


def written(path: Path, table: Any, *, rows: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=rows)
    return path


def odd_times() -> dict[str, tuple[Any, list[Any]]]:
    """Arrays of times, some beyond the range of Python's datetime, and the values that samples have."""
    nanoseconds, far, begin = [5, None, 1001], np.datetime64(2**40, "s"), datetime.fromisoformat("1970-01-01")
    of = pa.array(nanoseconds, pa.int64())
    when = [np.datetime64(5, "ns"), None, np.datetime64(1001, "ns")]
    since = [np.timedelta64(5, "ns"), None, np.timedelta64(1001, "ns")]
    return {
        "moment": (of.cast(pa.timestamp("ns")), when),
        "moment in a zone": (of.cast(pa.timestamp("ns", "Europe/Berlin")), when),
        "duration": (of.cast(pa.duration("ns")), since),
        "time of day": (of.cast(pa.time64("ns")), since),
        "far": (pa.array([2**40, None, 2**40]).cast(pa.timestamp("s")), [far, None, far]),
        "far day": (pa.array([2**30] * 3, pa.int32()).cast(pa.date32()), [np.datetime64(2**30, "D")] * 3),
        "list": (pa.array([[5], None, [1001]], pa.list_(pa.timestamp("ns"))), [[when[0]], None, [when[2]]]),
        "struct": (pa.array([{"a": 5, "b": "x"}] * 3, pa.struct([("a", pa.timestamp("ns")), ("b", pa.string())])),
                   [{"a": when[0], "b": "x"}] * 3),
        "map": (pa.array([[("x", 5)]] * 3, pa.map_(pa.string(), pa.duration("ns"))), [[("x", since[0])]] * 3),
        "dictionary": (of.cast(pa.timestamp("ns")).dictionary_encode(), when),
        "whole microseconds": (pa.array([5000, None, 1000]).cast(pa.timestamp("ns")),
                               [begin + timedelta(microseconds=5), None, begin + timedelta(microseconds=1)]),
        "whole time of day": (pa.array([5000, None, 1000]).cast(pa.time64("ns")),
                              [time(microsecond=5), None, time(microsecond=1)]),
        "list of whole ones": (pa.array([[5000], [None], None], pa.list_(pa.duration("ns"))),
                               [[timedelta(microseconds=5)], [None], None]),
    }  # fmt: skip


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("name", odd_times())
def test_times_that_python_cannot_hold_are_those_of_numpy(name: str, suffix: str, tmp_path: Path) -> None:
    array, expected = odd_times()[name]
    ds = shoal.open(written(tmp_path / f"a.{suffix}", pa.table({"x": array})))
    values = [sample["x"] for sample in ds]
    assert values == expected
    assert kinds(values) == kinds(expected)  # whether or not pandas is installed, whose times are equal to these
    for kind in (None, "python", "numpy", *(("torch",) if find_spec("torch") else ())):
        batch = next(iter((ds if kind is None else ds.format(kind)).batch(3)))
        if name == "struct" and kind != "python":
            assert batch["x"] == {field: [value[field] for value in expected] for field in expected[0]}
        else:
            assert list(batch["x"]) == expected
    assert next(iter(ds.format("arrow").batch(3)))["x"].null_count == array.null_count


def kinds(value: Any) -> Any:
    """The types of all that a value holds."""
    if isinstance(value, list | tuple):
        return [kinds(item) for item in value]
    return [kinds(item) for item in value.values()] if isinstance(value, dict) else type(value)


def test_text_that_is_none_stays_an_error(tmp_path: Path) -> None:
    damaged = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"))
    ds = shoal.open(written(tmp_path / "a.parquet", pa.table({"x": damaged})))
    for read in (ds, ds.batch(1)):
        with pytest.raises(ShardError, match="'x'"):
            next(iter(read))


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_two_columns_of_one_name_are_refused(suffix: str, tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1, 2]), pa.array(["a", "b"])], names=["x", "x"])
    ds = shoal.open(written(tmp_path / f"a.{suffix}", table))
    for read in (ds, ds.batch(2), ds.columns("x")):
        with pytest.raises(ShardError, match="two columns have the name 'x'"):
            next(iter(read))


def test_dictionaries_inside_of_structs_are_read_of_several_row_groups(tmp_path: Path) -> None:
    words = pa.array(["a", "b", "a", "c"]).dictionary_encode()
    table = pa.table({"x": pa.StructArray.from_arrays([words], names=["q"])})
    ds = shoal.open(written(tmp_path / "a.parquet", table))
    assert list(ds) == table.to_pylist()
    assert next(iter(ds.batch(4)))["x"] == {"q": ["a", "b", "a", "c"]}


@pytest.mark.parametrize("format", [None, "python", "numpy", "torch", "arrow"])
def test_structs_are_the_same_by_columns_and_by_samples(format: str | None, tmp_path: Path) -> None:  # noqa: A002
    if format == "torch":
        pytest.importorskip("torch")
    rows = [{"x": {"a": number, "b": {"c": [number] * (number % 3), "d": None if number == 5 else "t"}}}
            for number in range(9)]  # fmt: skip
    ds = shoal.open(written(tmp_path / "a.parquet", pa.Table.from_pylist(rows)))
    ds = ds if format is None else ds.format(format)
    gathered, made = list(ds.batch(4)), list(ds.map(dict).batch(4))
    if format == "arrow":
        assert [batch.to_pylist() for batch in gathered] == [batch.to_pylist() for batch in made]
        return
    assert repr(gathered) == repr(made)
    first = gathered[0]["x"]
    if format == "python":
        assert first == [row["x"] for row in rows[:4]]
        return
    assert first["a"].tolist() == [0, 1, 2, 3]
    assert [len(values) for values in first["b"]["c"]] == [0, 1, 2, 0]
    assert first["b"]["d"] == ["t"] * 4


def test_rows_without_a_partition_have_none(tmp_path: Path) -> None:
    assert partition_fields("year=__HIVE_DEFAULT_PARTITION__/kind=a%20b/x.parquet") == {"year": None, "kind": "a b"}
    written(tmp_path / "d" / "year=2024" / "a.parquet", pa.table({"x": [1]}))
    written(tmp_path / "d" / "year=__HIVE_DEFAULT_PARTITION__" / "a.parquet", pa.table({"x": [2]}))
    ds = shoal.open(tmp_path / "d")
    assert list(ds) == [{"x": 1, "year": "2024"}, {"x": 2, "year": None}]
    assert next(iter(ds.batch(2)))["year"] == ["2024", None]
    assert next(iter(ds.format("arrow").batch(2)))["year"].to_pylist() == ["2024", None]


def interval_stream(unit: int) -> bytes:
    """A column of intervals of another unit than pyarrow can make: months (0), or days and milliseconds (1)."""
    data = bytearray(written_stream(pa.table({"a": [1, 2], "m": pa.array([(1, 2, 3), None], INTERVAL)})))
    # In the flatbuffer of the schema the unit is the only number 2 that names one.
    for place in range(8, 8 + int.from_bytes(data[4:8], "little")):
        changed = bytes(data[:place]) + bytes([unit]) + bytes(data[place + 1 :])
        try:
            kind = str(pa.ipc.open_stream(changed).schema.field("m").type)
        except (pa.ArrowException, KeyError, OSError, ValueError):
            continue
        if data[place] == 2 and kind in ("month_interval", "day_time_interval"):
            return changed
    raise AssertionError


INTERVAL = pa.month_day_nano_interval()


def written_stream(table: Any) -> bytes:
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


@pytest.mark.parametrize("unit", [0, 1])
def test_intervals_that_pyarrow_has_no_values_of_are_named_and_may_be_left_out(unit: int, tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(interval_stream(unit))
    ds = shoal.open(tmp_path)
    for read in (lambda: list(ds), lambda: list(ds.batch(2)), lambda: ds[1]):
        with pytest.raises(ShardError, match=r"a\.arrow: column 'm' is of the type (month|day_time)_interval"):
            read()
    assert [batch["a"].tolist() for batch in ds.columns("a").batch(2)] == [[1, 2]]


def test_dates_in_milliseconds_that_are_no_whole_days_are_the_days_they_are_in(tmp_path: Path) -> None:
    day = 86_400_000
    numbers = pa.py_buffer(np.array([day, day + 1, -1], np.int64))
    dates = pa.Array.from_buffers(pa.date64(), 3, [None, numbers])
    (tmp_path / "a.arrow").write_bytes(written_stream(pa.table({"d": dates})))
    ds = shoal.open(tmp_path)
    expected = [date(1970, 1, 2), date(1970, 1, 2), date(1969, 12, 31)]
    assert [row["d"] for row in ds] == expected
    assert next(iter(ds.batch(3)))["d"] == expected


def test_times_beyond_a_day_are_refused_in_samples_as_in_batches(tmp_path: Path) -> None:
    times = pa.Array.from_buffers(pa.time32("s"), 2, [None, pa.py_buffer(np.array([90_000, 5], np.int32))])
    table = pa.table({"n": [1, 2], "t": times})
    (tmp_path / "a.arrow").write_bytes(written_stream(table))
    pq.write_table(table, tmp_path / "b.parquet")
    for name in ("a.arrow", "b.parquet"):
        ds = shoal.open(tmp_path / name)
        for read in (lambda ds=ds: list(ds), lambda ds=ds: list(ds.batch(2))):
            with pytest.raises(ShardError, match=r"column 't': .*not within the acceptable range") as caught:
                read()
            assert caught.value.byte is not None


def test_lists_of_no_numbers_are_batches_of_arrow(tmp_path: Path) -> None:
    """pyarrow ended the process where such a list had a fixed size."""
    table = pa.table({"n": [1, 2], "x": pa.array([[], []], pa.list_(pa.int32(), 0))})
    (tmp_path / "a.arrow").write_bytes(written_stream(table))
    (batch,) = shoal.open(tmp_path).format("arrow").batch(2)
    assert batch.schema.field("x").type == pa.list_(pa.int32(), 0)
    assert batch.column("x").to_pylist() == [[], []]


@pytest.mark.parametrize("kind", ["stream", "file"])
@pytest.mark.parametrize("version", ["V4", "V5"])
def test_messages_of_arrow_before_0_15_are_read(kind: str, version: str, tmp_path: Path) -> None:
    words = pa.array([f"word {number % 7}" for number in range(100)]).dictionary_encode()
    table = pa.table({"n": range(100), "w": words, "x": [[number / 3] * (number % 3) for number in range(100)]})
    versions = {"V4": pa.ipc.MetadataVersion.V4, "V5": pa.ipc.MetadataVersion.V5}
    options = pa.ipc.IpcWriteOptions(use_legacy_format=True, metadata_version=versions[version])
    new = {"stream": pa.ipc.new_stream, "file": pa.ipc.new_file}[kind]
    with new(tmp_path / "a.arrow", table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=15)
    assert b"\xff\xff\xff\xff" not in (tmp_path / "a.arrow").read_bytes()[:12]
    ds = shoal.open(tmp_path)
    assert ds.num_samples == 100
    rows = [{**row, "x": row["x"].tolist()} for row in ds]
    assert rows == table.to_pylist()
    assert sorted(row["n"] for row in ds.shuffle(seed=4, window="1MiB")) == list(range(100))
    check_damaged(tmp_path / "a.arrow")


def check_damaged(path: Path) -> None:
    """A shard cut short anywhere is refused, or read as far as it goes."""
    data = path.read_bytes()
    for end in range(0, len(data), max(1, len(data) // 40)):
        path.write_bytes(data[:end])
        try:
            rows = list(shoal.open(path.parent))
        except (ShardError, UsageError):
            continue
        assert [row["n"] for row in rows] == list(range(len(rows)))
