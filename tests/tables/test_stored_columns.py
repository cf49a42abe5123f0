"""Columns of files as columns of a table, for slices, missing values and dictionaries."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from shoal.tables.stored_columns import column_as, missing_column, repeated
from shoal.tables.table_columns import Stored, column_of, columns_of, constant, constant_text

TYPES = [
    pa.int8(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.binary(3), pa.date32(), pa.time64("us"),
    pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.decimal128(9, 2), pa.list_(pa.int64()),
    pa.map_(pa.string(), pa.struct([("a", pa.list_(pa.decimal128(3, 1)))])), pa.struct([("a", pa.int8())]),
]  # fmt: skip


def by_name(field: Any) -> Stored:
    return Stored(None, (field.name,))


def column(kind: pa.DataType) -> Any:
    (only,) = columns_of(pa.schema([("c", kind)]), by_name)
    return column_of(json.loads(json.dumps(only.as_json())))


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_column_survives_as_json(kind: pa.DataType) -> None:
    assert column(kind).arrow_type == pa.array([], kind).cast(column(kind).arrow_type).type
    assert pa.field("c", column(kind).arrow_type).equals(pa.field("c", kind)) or pa.types.is_nested(kind)
    assert missing_column(column(kind), 3).null_count == 3


def test_large_types_and_views_are_plain_types() -> None:
    kind = pa.large_list(pa.struct([("s", pa.large_string()), ("b", pa.binary_view())]))
    assert column(kind).arrow_type.value_type == pa.struct([("s", pa.string()), ("b", pa.binary())])


@pytest.mark.parametrize(
    ("value", "kind"),
    [(-7, pa.int8()), (0.1, pa.float64()), (float("inf"), pa.float32()), (True, pa.bool_()), ("a b", pa.string()),
     (b"\x00\xff", pa.binary()), (b"abc", pa.binary(3)), (20000, pa.date32()), (12345, pa.time64("us")),
     (1234567, pa.timestamp("us", "UTC")), (None, pa.date32())],
)  # fmt: skip
def test_a_constant_survives_as_text(value: Any, kind: pa.DataType) -> None:
    scalar = pa.scalar(value, kind)
    assert constant(json.loads(json.dumps(constant_text(scalar))), kind).equals(scalar)
    assert repeated(constant_text(scalar), column(kind), 2).to_pylist() == [scalar.as_py()] * 2


def test_nested_values_are_found_by_name_in_slices_with_missing_values() -> None:
    stored = pa.array(
        [
            {"b": 1, "l": [{"x": 1, "y": "a"}, None], "m": [("k", {"v": 1})]},
            None,
            {"b": None, "l": None, "m": None},
            {"b": 4, "l": [], "m": [("a", None), ("b", {"v": 2})]},
        ],
        pa.struct(
            [("b", pa.int32()), ("l", pa.list_(pa.struct([("x", pa.int8()), ("y", pa.string())]))),
             ("m", pa.map_(pa.string(), pa.struct([("v", pa.int16())])))]
        ),
    )  # fmt: skip
    wanted = column(
        pa.struct(
            [("m", pa.map_(pa.string(), pa.struct([("w", pa.string()), ("v", pa.int64())]))),
             ("l", pa.list_(pa.struct([("y", pa.string()), ("z", pa.bool_())]))), ("b", pa.int64())]
        )
    )  # fmt: skip
    expected = [
        {"m": [("k", {"w": None, "v": 1})], "l": [{"y": "a", "z": None}, None], "b": 1},
        None,
        {"m": None, "l": None, "b": None},
        {"m": [("a", None), ("b", {"w": None, "v": 2})], "l": [], "b": 4},
    ]
    for begin in range(4):
        for stop in range(begin, 5):
            shown = column_as(wanted, stored.slice(begin, stop - begin), by_id=False)
            shown.validate(full=True)
            assert shown.to_pylist() == expected[begin:stop]
    chunks = pa.chunked_array([stored.slice(1), stored.slice(0, 1)])
    assert column_as(wanted, chunks, by_id=False).to_pylist() == [*expected[1:], expected[0]]
    assert len(column_as(wanted, pa.chunked_array([], stored.type), by_id=False)) == 0


def test_values_are_cast_only_if_they_fit() -> None:
    small = pa.array([1, None, 2], pa.int8())
    assert column_as(column(pa.float64()), small.dictionary_encode(), by_id=False).to_pylist() == [1.0, None, 2.0]
    with pytest.raises(pa.ArrowInvalid):
        column_as(column(pa.int8()), pa.array([1000]), by_id=False)
    same = pa.array(["a"], pa.large_string())
    assert column_as(column(pa.string()), same, by_id=False) is same


def test_a_field_with_another_id_is_another_column() -> None:
    kind = pa.struct([pa.field("a", pa.int8(), metadata={"PARQUET:field_id": "1"})])
    stored = pa.array([{"a": 5}], kind)
    inside = [{"name": "a", "type": "int8", "id": 2}, {"name": "b", "type": "int8", "id": 1}]
    wanted = column_of({"name": "c", "type": "struct", "columns": inside})
    assert column_as(wanted, stored, by_id=True).to_pylist() == [{"a": None, "b": 5}]
