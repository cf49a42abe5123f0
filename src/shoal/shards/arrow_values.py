"""One value of Arrow as samples have it: Python's, as pyarrow makes it, and numpy's for times it cannot hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from shoal.shards.arrow_library import arrow_library

__all__ = ["python_value", "python_values"]


def python_value(scalar: Any) -> Any:
    """What pyarrow makes of a scalar; a moment of nanoseconds, or of the year 36812, is numpy's.

    Python's datetime counts microseconds and ends with the year 9999. A time of the day that it cannot hold is the
    time since midnight.

    Raises
    ------
    ValueError
        The value is none of its type (text that is not UTF-8).
    """
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return _without_python_times(arrow_library("Arrow"), scalar)


def python_values(array: Any) -> list[Any]:
    """The values of an array, each as `python_value` has it."""
    try:
        values: list[Any] = array.to_pylist()
    except (ValueError, OverflowError):
        values = [python_value(scalar) for scalar in array]
    return values


def _without_python_times(pa: Any, scalar: Any) -> Any:
    kind, types = scalar.type, pa.types
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
    if types.is_dictionary(kind) or isinstance(kind, pa.BaseExtensionType):
        return python_value(scalar.value)
    if types.is_nested(kind) and not types.is_union(kind):
        return [python_value(item) for item in scalar.values]
    return scalar.as_py()  # which raises again
