"""Encoding of MDS column values to bytes, the inverse of `shoal.formats.mds.decode_values`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.formats.lines.json_values import check_keys, plain_number
from shoal.formats.mds.decode_values import StoredValue, array_of, fixed_bytes_of

_ARRAY_NUMBERS: Mapping[str, int] = {
    "uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "uint32": 32, "int32": 33, "float32": 34,
    "uint64": 64, "int64": 65, "float64": 66,
}  # fmt: skip
_SHAPE_TYPES = ("<u1", "<u2", "<u4", "<u8")


def encoding_for(value: Any) -> str:
    """Return the encoding of a column whose first value is this.

    >>> encoding_for(3), encoding_for(np.zeros((2, 3), np.float32)), encoding_for({"a": 1})
    ('int', 'ndarray', 'json')
    """
    if isinstance(value, np.ndarray):
        return "ndarray"
    if isinstance(value, np.generic):
        return str(value.dtype) if str(value.dtype) in _ARRAY_NUMBERS else "json"
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes"
    if isinstance(value, str):
        return "str"
    if isinstance(value, int) and not isinstance(value, bool):
        return "int"
    return "float64" if isinstance(value, float) else "json"


def is_written(encoding: str) -> bool:
    """Return True if values can be written in this encoding; others are only read.

    >>> is_written("ndarray:int8:3"), is_written("pil")
    (True, False)
    """
    return array_of(encoding) is not None or encoding.startswith("ndarray") or encoding in _ENCODERS


def encode_value(encoding: str, value: Any) -> bytes:
    """Encode a value.

    Raises
    ------
    ValueError
        It does not fit this encoding.
    UsageError
        This encoding is not written.
    """
    if isinstance(value, StoredValue):
        return value
    known = array_of(encoding)
    if known is not None and not known[1] and encoding != "ndarray":
        return _scalar(known[0], value)
    if encoding.startswith("ndarray"):
        return _ndarray(encoding, np.asarray(value))
    if encoding not in _ENCODERS:
        msg = f"MDS columns of encoding {encoding!r} are read and not written"
        raise UsageError(msg, hint="write images as they are, with the encoding jpeg or png; never pickles")
    try:
        return _ENCODERS[encoding](value)
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None


def _scalar(kind: np.dtype[Any], value: Any) -> bytes:
    if value is None or isinstance(value, str | bytes | bool) or np.ndim(value):  # numpy turns None into NaN
        msg = f"{type(value).__name__} is no {kind.name}"
        raise ValueError(msg)
    try:
        with np.errstate(over="ignore"):
            found = np.array([value], dtype=kind)
    except (OverflowError, TypeError) as error:
        raise ValueError(str(error)) from None
    plain, stored = value.item() if isinstance(value, np.ndarray | np.generic) else value, found[0].item()
    # A floating number is rounded to the nearest, but not to infinity; an integer must be stored exactly.
    is_whole = kind.kind in "iu" or isinstance(plain, int)
    if stored != plain if is_whole else math.isinf(stored) and not math.isinf(plain):
        msg = f"{value!r} is no {kind.name}"
        raise ValueError(msg)
    return found.tobytes()


def _ndarray(encoding: str, value: np.ndarray[Any, Any]) -> bytes:
    """Encode an array; type and shape precede it where the encoding does not give them."""
    parts = encoding.split(":")
    name = str(value.dtype)
    if name not in _ARRAY_NUMBERS or (len(parts) > 1 and parts[1] != name):
        msg = f"an array of {name}, and the column is {encoding}"
        raise ValueError(msg)
    data = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<")).tobytes()
    fixed = fixed_bytes_of(encoding)
    if fixed is not None:
        if value.shape != tuple(map(int, parts[2].split(","))):
            msg = f"an array of shape {value.shape}, and the column is {encoding}"
            raise ValueError(msg)
        return data
    return (b"" if len(parts) > 1 else bytes([_ARRAY_NUMBERS[name]])) + _shape(value.shape) + data


def _shape(shape: tuple[int, ...]) -> bytes:
    """Encode a shape: the number of sizes and their width in one byte, then the sizes."""
    largest = max(shape, default=0)
    word = next(place for place, kind in enumerate(_SHAPE_TYPES) if largest <= np.iinfo(kind).max)
    if len(shape) > 63:
        msg = f"an array of {len(shape)} dimensions"
        raise ValueError(msg)
    return bytes([len(shape) << 2 | word]) + np.array(shape, dtype=_SHAPE_TYPES[word]).tobytes()


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        msg = f"{type(value).__name__} is no bytes"
        raise ValueError(msg)  # noqa: TRY004  # values that are wrong, whatever their type
    return bytes(value)


def _text(value: Any) -> bytes:
    if not isinstance(value, str):
        msg = f"{type(value).__name__} is no text"
        raise ValueError(msg)  # noqa: TRY004  # the same
    return value.encode("utf-8")


def _said(*kinds: type) -> Callable[[Any], bytes]:
    """Return an encoder of numbers as text."""

    def encode(value: Any) -> bytes:
        if not isinstance(value, kinds) or isinstance(value, bool):
            msg = f"{type(value).__name__} is no {kinds[0].__name__}"
            raise ValueError(msg)  # noqa: TRY004  # the same
        return str(value).encode()

    return encode


def _json(value: Any) -> bytes:
    data = json.dumps(value, default=plain_number).encode()
    if b"{" in data:
        check_keys(value)
    return data


_ENCODERS: Mapping[str, Callable[[Any], bytes]] = {
    "bytes": _bytes,
    "str": _text,
    "json": _json,
    "jpeg": _bytes,  # files as they are
    "png": _bytes,
    "str_int": _said(int),
    "str_float": _said(float),
    "str_decimal": _said(Decimal),
}
