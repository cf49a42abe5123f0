"""The types of Arrow, and pyarrow itself, which is imported when a format needs it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.hints import pip_install

_OLDEST = 18  # 17 writes a last row group that is longer than its footer says
_FLOATS = {"halffloat": "f2", "float": "f4", "double": "f8"}


def arrow_library(what: str) -> Any:
    """Return pyarrow. Raises `UsageError`, which names ``what``, if pyarrow is missing or older than tested."""
    try:
        import pyarrow as pa  # noqa: PLC0415  # optional, and slow to import
    except ImportError:
        raise UsageError(f"{what} needs pyarrow, which is not installed", hint=pip_install("pyarrow")) from None
    if _major_version(pa.__version__) < _OLDEST:
        msg = f"{what} needs pyarrow {_OLDEST} or newer, but {pa.__version__} is installed"
        raise UsageError(msg, hint=pip_install("pyarrow", upgrade=True))
    return pa


@cache
def _major_version(version: str) -> int:
    major = version.partition(".")[0]
    return int(major) if major.isdigit() else _OLDEST


def is_list(kind: Any) -> bool:
    """Return True if values are lists of any of Arrow's plain kinds."""
    types = arrow_library("Arrow").types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_number(kind: Any) -> bool:
    """Return True if values are integers or floating numbers."""
    types = arrow_library("Arrow").types
    return bool(types.is_integer(kind) or types.is_floating(kind))


def is_number_list(kind: Any) -> bool:
    """Return True if values are lists of numbers."""
    return is_list(kind) and is_number(kind.value_type)


def array_shape(kind: Any) -> tuple[int, ...]:
    """Return the shape of nested fixed-size lists of numbers or booleans; () for any other type.

    A list of numbers that is not nested gives (): lists of numbers of any size are arrays.

    >>> import pyarrow as pa
    >>> array_shape(pa.list_(pa.list_(pa.int8(), 3), 2)), array_shape(pa.list_(pa.int8(), 3)), array_shape(pa.int8())
    ((2, 3), (), ())
    """
    types, shape, leaf = arrow_library("Arrow").types, [], kind
    while types.is_fixed_size_list(leaf):
        shape.append(leaf.list_size)
        leaf = leaf.value_type
    is_array = types.is_boolean(leaf) or (len(shape) > 1 and is_number(leaf))
    return tuple(shape) if shape and is_array and min(shape) else ()


def leaf_type(kind: Any) -> Any:
    """Return the innermost element type of nested lists; any other type is returned unchanged."""
    while is_list(kind):
        kind = kind.value_type
    return kind


def is_text(kind: Any) -> bool:
    """Return True if values are text, in one buffer."""
    types = arrow_library("Arrow").types
    return bool(types.is_string(kind) or types.is_large_string(kind))


def is_bytes(kind: Any) -> bool:
    """Return True if values are bytes, of any or of a fixed length."""
    types = arrow_library("Arrow").types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def is_binary(kind: Any) -> bool:
    """Return True if values are text or bytes of any length, in one buffer."""
    types = arrow_library("Arrow").types
    return is_text(kind) or bool(types.is_binary(kind) or types.is_large_binary(kind))


def is_numpy_time(kind: Any) -> bool:
    """Return True if numpy has a type for these times."""
    types = arrow_library("Arrow").types
    return bool(types.is_timestamp(kind) or types.is_date(kind) or types.is_duration(kind))


def number_type(kind: Any) -> np.dtype[Any]:
    """Return the numpy type of an Arrow number type."""
    name = str(kind)  # to_pandas_dtype() needs pandas before pyarrow 26
    return np.dtype(_FLOATS.get(name, name))


def plain_type(kind: Any) -> Any:
    """Return the value type of a dictionary; plain text or bytes for views, whose rows pyarrow cannot `take`."""
    pa = arrow_library("Arrow")
    if not pa.types.is_dictionary(kind):
        return kind
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind.value_type, kind.value_type)


def types_inside(kind: Any) -> Iterator[Any]:
    """Yield a type and the types of its fields at any depth."""
    yield kind
    for number in range(kind.num_fields):
        yield from types_inside(kind.field(number).type)
