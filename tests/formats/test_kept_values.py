"""What becomes of values in columns of a type that is not theirs: they are kept, or refused, and never cut off."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.formats.tables.rows_to_columns import RowRefusedError, table_of_rows
from shoal.formats.writing.written_formats import encoder_named

pa = pytest.importorskip("pyarrow")

WHOLE, DAY, MOMENT = pa.int64(), pa.date32(), pa.timestamp("us")
INNER = pa.struct([("a", WHOLE)])
NOON = datetime(2020, 1, 1, 12)  # noqa: DTZ001  # without a zone, as that is the question


def array_of(value: dict[str, int]) -> Any:
    found = np.empty(1, dtype=object)
    found[0] = value
    return found


def table_of(values: list[Any], kind: Any) -> Any:
    schema = None if kind is None else pa.schema([("x", kind)])
    return table_of_rows([{"x": value} for value in values], schema, format_name="parquet")


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        (WHOLE, 1.5, "1.5 is not a whole number"),
        (WHOLE, np.float32(1.5), "is not a whole number"),
        (WHOLE, Decimal("1.5"), "is not a whole number"),
        (pa.uint8(), 0.5, "is not a whole number"),
        (pa.list_(WHOLE), [1, 1.5], "1.5 is not a whole number"),
        (pa.list_(WHOLE, 2), (1, 1.5), "1.5 is not a whole number"),
        (pa.large_list(WHOLE), np.array([1.5]), "1.5 is not a whole number"),
        (pa.list_(pa.list_(WHOLE)), [[1], [2.5]], "2.5 is not a whole number"),
        (pa.struct([("a", pa.struct([("b", WHOLE)]))]), {"a": {"b": 1.5}}, "1.5 is not a whole number"),
        (pa.list_(pa.struct([("b", WHOLE)])), [{"b": 1.5}], "1.5 is not a whole number"),
        (DAY, NOON, "is more than a date"),
        (pa.list_(DAY), [NOON], "is more than a date"),
        (pa.timestamp("s"), NOON + timedelta(microseconds=5), "is not a whole number of s"),
        (pa.duration("ms"), timedelta(microseconds=5), "is not a whole number of ms"),
        (pa.time32("s"), time(1, 2, 3, 4), "is not a whole number of s"),
        (MOMENT, NOON.replace(tzinfo=UTC), "has a time zone"),
        (pa.timestamp("us", "UTC"), NOON, "has no time zone"),
        (DAY, 0, "0 is a number"),
        (MOMENT, -1, "-1 is a number"),
        (pa.time64("us"), np.int8(3), "is a number"),
        (pa.duration("us"), 0.5, "0.5 is a number"),
        (pa.list_(MOMENT), [NOON, 5], "5 is a number"),
        (pa.list_(INNER), ({"b": 2},), "there is no field 'b'"),
        (pa.list_(INNER), array_of({"a": 1, "b": 2}), "there is no field 'b'"),
        (pa.map_(pa.string(), INNER), {"k": {"b": 2}}, "there is no field 'b'"),
        (pa.map_(pa.string(), WHOLE), [("k", 1.5)], "1.5 is not a whole number"),
        (pa.map_(WHOLE, pa.string()), [(1.5, "k")], "1.5 is not a whole number"),
        (pa.list_(pa.binary()), ["x"], "text among bytes"),
        (pa.struct([("a", pa.large_binary())]), {"a": "x"}, "text among bytes"),
    ],
)
def test_what_would_be_cut_off_is_refused(kind: Any, value: Any, why: str) -> None:
    for before in ([], [None, None, None]):
        with pytest.raises(RowRefusedError, match=why) as caught:
            table_of([*before, value], kind)
        assert caught.value.number == len(before)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (WHOLE, 2.0),
        (pa.list_(WHOLE), np.array([2.0, -3.0])),
        (pa.list_(WHOLE), np.array([2, 3], np.int8)),
        (DAY, date(2020, 1, 1)),
        (pa.timestamp("s"), NOON),
        (pa.timestamp("us", "UTC"), NOON.replace(tzinfo=UTC)),
        (pa.list_(pa.binary()), [b"x", None]),
        (pa.float32(), 0.5),
        (pa.duration("ns"), np.timedelta64(5, "ns")),
        (pa.duration("s"), timedelta(seconds=5)),
        (INNER, None),
        (pa.map_(pa.string(), WHOLE), [("k", 1), ("k", None)]),
    ],
)
def test_what_is_kept_is_not_refused(kind: Any, value: Any) -> None:
    column = table_of([None, value], kind).column("x")
    found = np.timedelta64(column[1].value, "ns") if isinstance(value, np.timedelta64) else column.to_pylist()[1]
    assert np.array_equal(found, value) if isinstance(value, np.ndarray) else found == value


@pytest.mark.parametrize(
    "values", [[date(2020, 1, 1), NOON], [date(2020, 1, 1), 0], [NOON, NOON.replace(tzinfo=UTC)], [[b"a"], ["b"]]]
)
def test_values_of_two_kinds_do_not_become_one(values: list[Any]) -> None:
    with pytest.raises(RowRefusedError) as caught:
        table_of(values, None)
    assert caught.value.number == 1


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_a_fraction_that_comes_after_the_columns_were_found_is_refused(name: str) -> None:
    shard = encoder_named(name).begin()
    encoder = encoder_named(name)
    with pytest.raises(RowRefusedError, match=r"cannot hold 0\.5"):
        for value in [1] * 9 + [0.5]:
            shard.add(encoder.record({"x": value, "text": "t" * (1 << 20)}))


@given(st.lists(st.integers(-(2**40), 2**40) | st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8))
def test_numbers_are_equal_or_refused(values: list[float]) -> None:
    for kind in (None, WHOLE, pa.float64()):
        try:
            assert table_of(values, kind).column("x").to_pylist() == values
        except RowRefusedError:
            assert kind is WHOLE
            assert any(value != int(value) for value in values)
