"""Conversion of rows to table columns: rows are copied on arrival, converted in groups, and named in errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.formats.shard_format import Sample
from shoal.formats.tables.lossless import check_of, ticks
from shoal.formats.tables.pyarrow_library import arrow_library
from shoal.formats.writing.encoder import check_names

_MOST_DEEP = 32  # a list is two levels of a Parquet schema, and readers accept 100
_NUMBERS = frozenset((bool, int, float, type(None)))
_HINT = "give all samples the same fields and types, or options={'schema': ...}"


class RowRefusedError(UsageError):
    """A row that does not fit this table: its ``place`` among the given rows, and the reason."""

    place = 0


def own_row(sample: Sample) -> tuple[Sample, int]:
    """Copy a row, so that the caller may change it afterwards, and return about how many bytes it has in memory.

    Raises
    ------
    UsageError
        A field's name is not text, or a value contains itself.
    """
    row: Sample = {}
    num_bytes = 8
    check_names(sample)
    for name, value in sample.items():
        row[name], value_bytes = _own(value, 0)
        num_bytes += value_bytes
    return row, num_bytes


def _own(value: Any, depth: int) -> tuple[Any, int]:
    if isinstance(value, str):
        return value, 4 + (len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass")))
    if isinstance(value, bytes):
        return value, len(value) + 4
    if isinstance(value, bytearray | memoryview):
        return bytes(value), len(value) + 4
    if isinstance(value, np.ndarray):
        return value.copy(), int(value.nbytes) + 4
    if depth > _MOST_DEEP:
        msg = f"a value has lists in lists {_MOST_DEEP} deep"
        raise UsageError(msg, hint="a column holds nothing as deep, and nothing that holds itself")
    if isinstance(value, list | tuple):
        if set(map(type, value)) <= _NUMBERS:  # for a long list, nearly all the work
            return value[:], 8 * len(value) + 4
        pairs = [_own(element, depth + 1) for element in value]
        elements = [element for element, _ in pairs]  # pairs of a map are tuples
        return tuple(elements) if isinstance(value, tuple) else elements, sum(size for _, size in pairs) + 4
    if isinstance(value, dict):
        owned = {name: _own(element, depth + 1) for name, element in value.items()}
        return {name: element for name, (element, _) in owned.items()}, sum(size for _, size in owned.values())
    return value, 8


def table_of_rows(rows: Sequence[Mapping[str, Any]], schema: Any, *, format_name: str) -> Any:
    """Convert rows to a table of ``schema``; if that is None, of a schema that holds them all.

    Raises
    ------
    RowRefusedError
        A row does not fit; reported is the first.
    """
    pa = arrow_library(format_name)
    if schema is None:
        names = list(dict.fromkeys(name for row in rows for name in row))
        if rows and not names:
            raise row_refused(0, rows[0], "it has no field, and a table of no columns has no rows")
        arrays = [_column(pa, rows, name, None) for name in names]
        return _made(pa, lambda: pa.Table.from_arrays(arrays, names=names).combine_chunks(), rows, names)
    known = set(schema.names)
    if rows and not known:
        raise row_refused(0, rows[0], "a schema of no columns holds no rows")
    for place, row in enumerate(rows):
        if not row.keys() <= known:
            unknown = next(name for name in row if name not in known)
            why = f"there is no column {unknown!r} in the shard ({_in_words(schema)})"
            how = f"options={{'schema': schema}} with a pyarrow.schema that has {unknown!r} too"
            raise row_refused(
                place, row, why, hint=f"give all samples the same fields; or all columns beforehand, {how}"
            )
    return pa.Table.from_arrays([_column(pa, rows, field.name, field.type) for field in schema], schema=schema)


def _made(pa: Any, make: Any, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Any:
    """Build the table; only bad names can make this fail."""
    try:
        return make()
    except (*_refusals(pa),) as error:
        place = next(place for place, row in enumerate(rows) if any(not _is_text(name) for name in row))
        raise row_refused(place, rows[place], f"one of the names {names!r} is no text: {error}") from None


def _column(pa: Any, rows: Sequence[Mapping[str, Any]], name: str, kind: Any) -> Any:
    values = [row.get(name) for row in rows]
    try:
        return _array(pa, values, kind)
    except (*_refusals(pa),) as error:
        place, reason = _first_refused(pa, values, kind, error)
        what = f"the column {name!r}" if kind is None else f"the column {name!r}, which is {kind},"
        raise row_refused(place, rows[place], f"{what} cannot hold {values[place]!r:.60}: {reason}") from None


def _array(pa: Any, values: list[Any], kind: Any) -> Any:
    """Convert the values with pyarrow, which takes only flat arrays, and nothing unordered."""
    for value in values:
        if isinstance(value, np.ndarray) and value.ndim != 1:
            msg = f"an array of shape {value.shape} is no value of a column"
            raise ValueError(msg)
        if isinstance(value, set | frozenset):
            msg = "a set has no order, and a list has"
            raise ValueError(msg)  # noqa: TRY004  # said as of any other value
    array = _converted(pa, values, kind)
    if (check := check_of(pa, array.type)) is not None:
        check(values)
    return array


def _converted(pa: Any, values: list[Any], kind: Any) -> Any:
    if any(isinstance(value, np.datetime64 | np.timedelta64) for value in values) and kind is not None:
        # Mixed with datetimes: moments in nanoseconds are read as numpy's, and pyarrow takes no mixture.
        numbers = [None if value is None else ticks(value, kind) for value in values]
        return pa.array(numbers, type=pa.int64() if kind.bit_width == 64 else pa.int32()).cast(kind)
    try:
        return pa.array(values, type=kind)
    except OverflowError:
        if kind is not None:
            raise
        return pa.array(values, type=pa.uint64())
    except TypeError:
        if not {type(value) for value in values} <= {np.datetime64, np.timedelta64, type(None)}:
            raise
        return pa.array(np.array(values))  # pyarrow takes days only as an array


def _first_refused(pa: Any, values: list[Any], kind: Any, error: Exception) -> tuple[int, Exception]:
    """Return the first value that does not fit a column with those before it, and why; O(log) conversions."""
    low, high, found = 0, len(values), error  # the first `low` fit together, the first `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _array(pa, values[:middle], kind)
            low = middle
        except (*_refusals(pa),) as refused:
            high, found = middle, refused
    return high - 1, found


def _refusals(pa: Any) -> tuple[type[Exception], ...]:
    return pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError


def row_refused(place: int, row: Mapping[str, Any], why: str, *, hint: str = _HINT) -> RowRefusedError:
    """Return the error of a row, named by its key if it has one."""
    key = row.get("__key__", row.get("key"))
    named = f"the sample {key!r:.80}: " if isinstance(key, str | int) else ""
    error = RowRefusedError(f"{named}{why}", hint=hint)
    error.place = place
    return error


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _in_words(schema: Any) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
