"""Checks for what pyarrow would silently drop: fractions of numbers, times of dates, time zones, late struct fields.

The check of a column is created once, and is None for types that lose nothing, such as text and floating numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np

Check = Callable[[Sequence[Any]], None]
"""A function that raises `ValueError` if one of these values would not be stored exactly."""

_FRACTIONAL = (float, np.floating, Decimal)
_TIMES = (datetime, time, timedelta)
_NUMBERS = (int, *_FRACTIONAL, np.bool_, np.unsignedinteger, *(np.dtype(f"i{size}").type for size in (1, 2, 4, 8)))


def check_of(pa: Any, kind: Any) -> Check | None:
    """Return the check of values that become a column of type ``kind``; None if all accepted values are kept."""
    types = pa.types
    if types.is_struct(kind):
        return _each_field({field.name: check_of(pa, field.type) for field in kind}, str(kind))
    if types.is_map(kind):
        return _each_pair(check_of(pa, kind.key_type), check_of(pa, kind.item_type))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        check = check_of(pa, kind.value_type)
        return None if check is None else _each_list(check, kinds="iu" if check is _check_whole else "")
    if types.is_integer(kind):
        return _check_whole
    if types.is_date(kind):
        return _check_date
    if types.is_temporal(kind):
        return _check_time(kind)
    return _check_bytes if types.is_binary(kind) or types.is_large_binary(kind) else None


def ticks(value: Any, kind: Any) -> int:
    """Convert a time to the number that a column of this type stores.

    Raises
    ------
    ValueError
        It is no whole number of the column's unit.
    """
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
    is_moment = isinstance(value, np.datetime64)
    found = value.astype(f"{'datetime64' if is_moment else 'timedelta64'}[{unit}]")
    if found != value:
        msg = f"{value!r} is no whole number of {unit}"
        raise ValueError(msg)
    return int(found.astype(np.int64))


def _each_field(inner: dict[str, Check | None], kind: str) -> Check:
    """Return the check of structs; fields that the type does not have would be left out."""
    names = inner.keys()

    def check(values: Sequence[Any]) -> None:
        rows = [value for value in values if isinstance(value, dict)]
        for row in rows:
            if not row.keys() <= names:
                msg = f"there is no field {next(name for name in row if name not in names)!r} in {kind}"
                raise ValueError(msg)
        for name, check_field in inner.items():
            if check_field is not None:
                check_field([row[name] for row in rows if name in row])

    return check


def _each_pair(keys: Check | None, items: Check | None) -> Check | None:
    """Return the check of maps, given as dicts or as lists of pairs."""
    if keys is None and items is None:
        return None

    def check(values: Sequence[Any]) -> None:
        for value in values:
            pairs = list(value.items() if isinstance(value, dict) else [] if value is None else value)
            for place, inner in enumerate((keys, items)):
                if inner is not None:
                    inner([pair[place] for pair in pairs])

    return check


def _each_list(inner: Check, *, kinds: str) -> Check:
    """Return the check of lists; arrays of dtypes of these ``kinds`` need none."""

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
    return any(issubclass(met, kinds) for met in set(map(type, values)))


def _check_whole(values: Sequence[Any]) -> None:
    try:
        # Only Python integers have a Python integer as sum: a third of the time of checking each type.
        with np.errstate(over="ignore"):  # numpy's may overflow; their sum is never a Python integer
            if type(sum(values)) is int:
                return
    except (TypeError, ArithmeticError):
        pass  # None among them, for instance
    if not _has(values, _FRACTIONAL):
        return
    for value in values:
        if isinstance(value, _FRACTIONAL) and value != int(value):
            msg = f"{value!r} is no whole number"
            raise ValueError(msg)


def _check_date(values: Sequence[Any]) -> None:
    if not _has(values, (datetime, *_NUMBERS)):
        return
    for value in values:
        _refuse_number(value)
        if isinstance(value, datetime) and (value.time() != time() or value.tzinfo is not None):
            msg = f"{value!r} is more than a date"
            raise ValueError(msg)


def _check_time(kind: Any) -> Check:
    has_zone, is_coarse = getattr(kind, "tz", None) is not None, getattr(kind, "unit", "us") in ("s", "ms")

    def check(values: Sequence[Any]) -> None:
        if not _has(values, (*_TIMES, *_NUMBERS)):
            return
        for value in values:
            _refuse_number(value)
            if isinstance(value, datetime) and (value.tzinfo is not None) != has_zone:
                has, column = ("no", "one") if has_zone else ("a", "none")
                msg = f"{value!r} has {has} time zone, and the column has {column}"
                raise ValueError(msg)
            if is_coarse and isinstance(value, _TIMES):
                ticks(value, kind)

    return check


def _refuse_number(value: Any) -> None:
    """Raise for a number, which would count as days since 1970, or microseconds."""
    if isinstance(value, _NUMBERS):
        msg = f"{value!r} is a number, and no time"
        raise ValueError(msg)  # noqa: TRY004  # said as of any other value


def _check_bytes(values: Sequence[Any]) -> None:
    if _has(values, (str,)):
        msg = "a text among bytes would become bytes"
        raise ValueError(msg)
