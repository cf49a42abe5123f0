"""Conversion of rows to table columns: rows are copied on arrival, converted in groups, and named in errors.

pyarrow silently drops fractions of numbers, times of dates, time zones and late struct fields; here they are errors.
Types that lose nothing, such as text and floating numbers, need no check.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.formats.shard_format import Sample
from shoal.formats.tables.arrow_types import array_shape, arrow_library, is_list, leaf_type
from shoal.formats.writing.encoder import check_names

_MOST_DEEP = 32  # a list is two levels of a Parquet schema, and readers accept 100
_PYTHON_NUMBERS = frozenset((bool, int, float, type(None)))
_SURROGATE = re.compile("[\ud800-\udfff]")  # UTF-8 has no code for it
_HINT = "give all samples the same fields and types, or options={'schema': ...}"

_FRACTIONAL = (float, np.floating, Decimal)
_TIMES = (datetime, time, timedelta)
_NUMBERS = (int, *_FRACTIONAL, np.bool_, np.unsignedinteger, *(np.dtype(f"i{size}").type for size in (1, 2, 4, 8)))

_Check = Callable[[Sequence[Any]], None]  # raises ValueError if one of these values would not be stored exactly


class RowRefusedError(UsageError):
    """The error of a row that does not fit its table; ``number`` is its position among the rows."""

    number = 0


def own_row(sample: Sample) -> tuple[Sample, int]:
    """Copy a row, so that the caller may change it afterwards, and estimate its bytes in memory.

    Raises `UsageError` if a field's name is not text, or a value contains itself.
    """
    check_names(sample)
    row, num_bytes = _own(dict(sample), -1)
    return row, num_bytes + 8


def _own(value: Any, depth: int) -> tuple[Any, int]:
    if isinstance(value, str):
        return value, 4 + (len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass")))
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), len(value) + 4
    if isinstance(value, np.ndarray):
        return value.copy(), int(value.nbytes) + 4
    if depth > _MOST_DEEP:
        msg = f"a value has lists nested more than {_MOST_DEEP} deep"
        raise UsageError(msg, hint="a column cannot hold deeper values, or values that contain themselves")
    if isinstance(value, list | tuple):
        if set(map(type, value)) <= _PYTHON_NUMBERS:  # for a long list, nearly all the work
            return value[:], 8 * len(value) + 4
        pairs = [_own(element, depth + 1) for element in value]
        elements = [element for element, _ in pairs]  # pairs of a map are tuples
        return tuple(elements) if isinstance(value, tuple) else elements, sum(size for _, size in pairs) + 4
    if isinstance(value, dict):
        owned = {name: _own(element, depth + 1) for name, element in value.items()}
        return {name: element for name, (element, _) in owned.items()}, sum(size for _, size in owned.values())
    return value, 8


def table_of_rows(rows: Sequence[Mapping[str, Any]], schema: Any, *, format_name: str) -> Any:
    """Convert rows to a table of ``schema``; for None, of a schema that fits all rows.

    Raises `RowRefusedError` for the first row that does not fit.
    """
    pa = arrow_library(format_name)
    if schema is None:
        names = list(dict.fromkeys(name for row in rows for name in row))
        if rows and not names:
            raise row_refused(0, rows[0], "it has no fields, and a table without columns has no rows")
        arrays = [_column(pa, rows, name, None) for name in names]
        try:
            return pa.Table.from_arrays(arrays, names=names).combine_chunks()
        except _refusals(pa) as error:  # only bad names can make this fail
            number = next(number for number, row in enumerate(rows) if any(map(_SURROGATE.search, row)))
            raise row_refused(number, rows[number], f"one of the names {names!r} is not valid text: {error}") from None
    known = set(schema.names)
    if rows and not known:
        raise row_refused(0, rows[0], "a schema without columns holds no rows")
    for number, row in enumerate(rows):
        if not row.keys() <= known:
            unknown = next(name for name in row if name not in known)
            columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
            why = f"there is no column {unknown!r} in the shard ({columns})"
            how = f"options={{'schema': schema}} with a pyarrow.schema that has {unknown!r} too"
            hint = f"give all samples the same fields; or all columns beforehand, {how}"
            raise row_refused(number, row, why, hint=hint)
    return pa.Table.from_arrays([_column(pa, rows, field.name, field.type) for field in schema], schema=schema)


def _column(pa: Any, rows: Sequence[Mapping[str, Any]], name: str, kind: Any) -> Any:
    values = [row.get(name) for row in rows]
    try:
        return _array(pa, values, kind)
    except _refusals(pa) as error:
        number, reason = _first_refused(pa, values, kind, error)
        what = f"the column {name!r}" if kind is None else f"the column {name!r}, which is {kind},"
        why = f"{what} cannot hold {values[number]!r:.60}: {reason}"
        raise row_refused(number, rows[number], why) from None


def _array(pa: Any, values: list[Any], kind: Any) -> Any:
    """Convert values with pyarrow and check that nothing is lost."""
    values, kind = _as_fixed_lists(pa, values, kind)
    if any(isinstance(value, set | frozenset) for value in values):
        raise ValueError("a set has no order: give a list")
    array = _converted(pa, values, kind)
    if (check := _check_of(pa, array.type)) is not None:
        check(values)
    return array


def _as_fixed_lists(pa: Any, values: list[Any], kind: Any) -> tuple[list[Any], Any]:
    """Return arrays of several axes as lists, by default of fixed sizes, which readers turn into arrays again."""
    first = next((value for value in values if isinstance(value, np.ndarray) and value.ndim != 1), None)
    if first is None:
        return values, kind
    if kind is None and min(first.shape, default=0) and first.dtype.kind in "biuf":
        kind = pa.from_numpy_dtype(first.dtype.newbyteorder("="))
        for width in reversed(first.shape):
            kind = pa.list_(kind, width)
    shape, leaf = () if kind is None else array_shape(kind), None if kind is None else leaf_type(kind)
    for value in values:
        if isinstance(value, np.ndarray) and (value.shape != shape or pa.from_numpy_dtype(value.dtype) != leaf):
            held = f", only arrays of {leaf} of shape {shape}" if shape else ""
            raise ValueError(f"a column cannot hold an array of {value.dtype} of shape {value.shape}{held}")
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in values], kind


def _converted(pa: Any, values: list[Any], kind: Any) -> Any:
    if any(isinstance(value, np.datetime64 | np.timedelta64) for value in values) and kind is not None:
        # Times in nanoseconds are read as numpy times and others as datetimes, and pyarrow takes no mixture of both.
        numbers = [None if value is None else _ticks(value, kind) for value in values]
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
    """Return the first value that does not fit a column with the values before it, and why; O(log) conversions."""
    low, high, reason = 0, len(values), error  # the first `low` fit together, the first `high` do not
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _array(pa, values[:middle], kind)
            low = middle
        except _refusals(pa) as refused:
            high, reason = middle, refused
    return high - 1, reason


def _refusals(pa: Any) -> tuple[type[Exception], ...]:
    return pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError


def row_refused(number: int, row: Mapping[str, Any], why: str, *, hint: str = _HINT) -> RowRefusedError:
    """Return the error of a row, with the row's key if it has one."""
    key = row.get("__key__", row.get("key"))
    named = f"the sample {key!r:.80}: " if isinstance(key, str | int) else ""
    error = RowRefusedError(f"{named}{why}", hint=hint)
    error.number = number
    return error


def _check_of(pa: Any, kind: Any) -> _Check | None:
    """Return the check of values for a column of type ``kind``; None if pyarrow keeps all accepted values."""
    types = pa.types
    if types.is_struct(kind):
        return _check_fields({field.name: _check_of(pa, field.type) for field in kind}, str(kind))
    if types.is_map(kind):
        return _check_pairs(_check_of(pa, kind.key_type), _check_of(pa, kind.item_type))
    if is_list(kind):
        return _check_lists(_check_of(pa, kind.value_type))
    if types.is_integer(kind):
        return _check_whole
    if types.is_date(kind):
        return _check_date
    if types.is_temporal(kind):
        return _check_times(kind)
    return _check_bytes if types.is_binary(kind) or types.is_large_binary(kind) else None


def _check_fields(inner: dict[str, _Check | None], kind: str) -> _Check:
    """Return the check of structs: pyarrow leaves out fields that the type does not have."""

    def check(values: Sequence[Any]) -> None:
        rows = [value for value in values if isinstance(value, dict)]
        for row in rows:
            if not row.keys() <= inner.keys():
                raise ValueError(f"there is no field {next(name for name in row if name not in inner)!r} in {kind}")
        for name, check_field in inner.items():
            if check_field is not None:
                check_field([row[name] for row in rows if name in row])

    return check


def _check_pairs(keys: _Check | None, items: _Check | None) -> _Check | None:
    """Return the check of maps, which are dicts or lists of pairs."""
    checks = [(side, check) for side, check in enumerate((keys, items)) if check is not None]

    def check(values: Sequence[Any]) -> None:
        for value in values:
            pairs = list(value.items() if isinstance(value, dict) else [] if value is None else value)
            for side, inner in checks:
                inner([pair[side] for pair in pairs])

    return check if checks else None


def _check_lists(inner: _Check | None) -> _Check | None:
    if inner is None:
        return None
    kinds = "iu" if inner is _check_whole else ""  # arrays of these need no check

    def check(values: Sequence[Any]) -> None:
        for value in values:
            if isinstance(value, np.ndarray):
                if value.dtype.kind not in kinds:
                    inner(value.tolist())
            elif isinstance(value, list | tuple):
                inner(value)

    return check


def _has(values: Sequence[Any], kinds: tuple[type, ...]) -> bool:
    """Return True if any value is of these types, so that each must be checked."""
    return any(issubclass(kind, kinds) for kind in set(map(type, values)))


def _check_whole(values: Sequence[Any]) -> None:
    try:
        # Only Python integers have a Python integer as sum: a third of the time of checking each type.
        with np.errstate(over="ignore"):  # numpy's may overflow; their sum is never a Python integer
            if type(sum(values)) is int:
                return
    except (TypeError, ArithmeticError):
        pass  # None among them, for instance
    if _has(values, _FRACTIONAL):
        for value in values:
            if isinstance(value, _FRACTIONAL) and value != int(value):
                raise ValueError(f"{value!r} is not a whole number")


def _check_date(values: Sequence[Any]) -> None:
    if _has(values, (datetime, *_NUMBERS)):
        for value in values:
            _refuse_number(value)
            if isinstance(value, datetime) and (value.time() != time() or value.tzinfo is not None):
                raise ValueError(f"{value!r} is more than a date")


def _check_times(kind: Any) -> _Check:
    has_zone, is_coarse = getattr(kind, "tz", None) is not None, getattr(kind, "unit", "us") in ("s", "ms")

    def check(values: Sequence[Any]) -> None:
        if not _has(values, (*_TIMES, *_NUMBERS)):
            return
        for value in values:
            _refuse_number(value)
            if isinstance(value, datetime) and (value.tzinfo is not None) != has_zone:
                has, column = ("no", "one") if has_zone else ("a", "none")
                raise ValueError(f"{value!r} has {has} time zone, but the column has {column}")
            if is_coarse and isinstance(value, _TIMES):
                _ticks(value, kind)

    return check


def _ticks(value: Any, kind: Any) -> int:
    """Convert a time to the integer that a column of this type stores; ValueError if the number is not whole."""
    unit = getattr(kind, "unit", "D" if kind.bit_width == 32 else "ms")
    if isinstance(value, datetime):
        value = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        value = np.datetime64(value, "us")
    elif isinstance(value, date):
        value = np.datetime64(value, "D")
    elif isinstance(value, timedelta):
        value = np.timedelta64(value, "us")
    elif isinstance(value, time):
        since = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
        value = np.timedelta64(since, "us")
    ticks = value.astype(f"{'datetime64' if isinstance(value, np.datetime64) else 'timedelta64'}[{unit}]")
    if ticks != value:
        raise ValueError(f"{value!r} is not a whole number of {unit}")
    return int(ticks.astype(np.int64))


def _refuse_number(value: Any) -> None:
    """Raise for a number: pyarrow would take it for days since 1970, or microseconds."""
    if isinstance(value, _NUMBERS):
        raise ValueError(f"{value!r} is a number, not a time")  # noqa: TRY004  # all refusals of values are ValueErrors


def _check_bytes(values: Sequence[Any]) -> None:
    if _has(values, (str,)):
        raise ValueError("text among bytes would become bytes")
