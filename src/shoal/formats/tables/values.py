"""Conversion of Arrow values to those of samples: Python's, and numpy's for times that Python cannot represent.

Python's datetime counts microseconds and ends with the year 9999. What pyarrow converts nanoseconds to depends on
whether pandas is installed (its types, and times of the day truncated to microseconds), so that is done here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from shoal.formats.tables.pyarrow_library import arrow_library


def python_value(scalar: Any) -> Any:
    """Convert a scalar like pyarrow, but a moment between two microseconds, or in the year 36812, to numpy's type.

    A time of the day that Python cannot represent becomes the time since midnight.

    Raises
    ------
    ValueError
        The value is invalid for its type (text that is not UTF-8).
    """
    if not _has_nanoseconds(scalar.type):
        try:
            return scalar.as_py()
        except (ValueError, OverflowError):
            pass
    return _without_python_times(arrow_library("Arrow"), scalar)


def python_values(array: Any) -> list[Any]:
    """Convert the values of an array, each as `python_value` does."""
    try:
        if _has_nanoseconds(array.type):
            array = _coarser(array)
        values: list[Any] = array.to_pylist()
    except (ValueError, OverflowError):
        values = [python_value(scalar) for scalar in array]
    return values


def _coarser(array: Any) -> Any:
    """Cast an array to microseconds; `ValueError` if that would lose something, or the times are nested."""
    pa = arrow_library("Arrow")
    if not pa.types.is_temporal(array.type):
        raise ValueError
    return array.cast(_in_microseconds(pa, array.type))


def _without_python_times(pa: Any, scalar: Any) -> Any:
    kind, types = scalar.type, pa.types
    if not scalar.is_valid:
        return None
    if types.is_temporal(kind) and _has_nanoseconds(kind) and scalar.value % 1000 == 0:
        return scalar.cast(_in_microseconds(pa, kind)).as_py()
    if types.is_timestamp(kind):
        return np.datetime64(scalar.value, kind.unit)
    if types.is_duration(kind) or types.is_time(kind):
        return np.timedelta64(scalar.value, kind.unit)
    if types.is_date(kind):
        return np.datetime64(scalar.value, "D" if types.is_date32(kind) else "ms")
    if types.is_struct(kind):
        return {kind.field(place).name: python_value(scalar[place]) for place in range(kind.num_fields)}
    if types.is_map(kind):
        return [(python_value(pair[0]), python_value(pair[1])) for pair in scalar.values]
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind) or isinstance(kind, pa.BaseExtensionType):
        return python_value(scalar.value)
    if types.is_nested(kind) and not types.is_union(kind):
        return [python_value(item) for item in scalar.values]
    return scalar.as_py()  # which raises again


@lru_cache(maxsize=1024)
def _has_nanoseconds(kind: Any) -> bool:
    """Return True if values of a type hold times counted in nanoseconds, at any depth."""
    pa = arrow_library("Arrow")
    if pa.types.is_temporal(kind):
        return getattr(kind, "unit", "") == "ns"
    if isinstance(kind, pa.BaseExtensionType):
        return _has_nanoseconds(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _has_nanoseconds(kind.value_type)
    return any(_has_nanoseconds(kind.field(place).type) for place in range(kind.num_fields))


def _in_microseconds(pa: Any, kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")
