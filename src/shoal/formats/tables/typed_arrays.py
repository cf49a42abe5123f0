"""Conversion of sample values to Arrow arrays of the type that their column is stored in.

A number keeps its type in a sample. A decimal, a time, a map or a struct does not: pyarrow turns `Decimal("1.25")` into
a decimal of three digits, whatever the column had. So batches built from samples look up the type of a field in the
schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.formats.field_columns import Kind
from shoal.formats.tables.arrow_columns import arrow_array, is_list, is_number, number_type, plain_cells, plain_type
from shoal.formats.tables.pyarrow_library import arrow_library


def types_of(schema: Any) -> dict[str, Any]:
    """Return the Arrow type of each column of a schema in batches: for a dictionary, the type of its values."""
    return {field.name: plain_type(field.type) for field in schema}


def is_time(kind: Any) -> bool:
    """Return True if values of an Arrow type are times that numpy has a type for."""
    types = arrow_library("Arrow").types
    return bool(types.is_timestamp(kind) or types.is_date(kind) or types.is_duration(kind))


def typed_array(values: Any, kind: Any) -> Any:
    """Convert the values of a field to an array of this Arrow type; None if one of them does not fit it exactly.

    pyarrow rounds, truncates and encodes when given a type, so its result is compared with the input.

    >>> from decimal import Decimal
    >>> import pyarrow as pa
    >>> typed_array([Decimal("1.25"), None], pa.decimal128(10, 2)).type
    Decimal128Type(decimal128(10, 2))
    >>> typed_array([Decimal("1.257")], pa.decimal128(10, 2)), typed_array(["1.25"], pa.decimal128(10, 2))
    (None, None)
    """
    pa = arrow_library("Arrow")
    if isinstance(values, np.ndarray):
        return _of_numbers(pa, values, kind)
    try:
        array = pa.array([_countable(pa, value, kind) for value in values], kind)
        found = plain_cells(array)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return array if _equal(found, values) else None


def _of_numbers(pa: Any, values: Any, kind: Any) -> Any:
    """Convert stacked values as `typed_array` does."""
    if values.ndim == 2 and is_list(pa, kind) and is_number(pa, kind.value_type):
        if pa.types.is_fixed_size_list(kind) and kind.list_size != values.shape[1]:
            return None
        if values.dtype != number_type(kind.value_type):
            return None
        return arrow_array(Kind("array", values.dtype, values.shape[1:], kind), values)
    found = pa.array(values) if values.ndim == 1 else None
    return found if found is not None and found.type == kind else None


def _countable(pa: Any, value: Any, kind: Any) -> Any:
    """Replace numpy times, which pyarrow does not accept everywhere, by their number of units."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        unit = {pa.date32(): "D", pa.date64(): "ms"}.get(kind) or getattr(kind, "unit", None)
        return int(value.astype(np.int64)) if np.datetime_data(value.dtype)[0] == unit else value
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return {
            name: _countable(pa, item, kind.field(name).type) if kind.get_field_index(name) >= 0 else item
            for name, item in value.items()
        }
    if isinstance(value, list) and pa.types.is_map(kind):
        return [(_countable(pa, key, kind.key_type), _countable(pa, item, kind.item_type)) for key, item in value]
    if isinstance(value, list) and is_list(pa, kind):
        return [_countable(pa, item, kind.value_type) for item in value]
    return value


def _equal(one: Any, other: Any) -> bool:
    """Return True if two values are equal and of one type; NaN is equal to itself."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        same = one.shape == other.shape and one.dtype == other.dtype
        return same and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(value, other[name]) for name, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124  # NaN alone differs from itself
