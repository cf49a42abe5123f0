"""Samples as text that a state can hold: JSON for their structure, base64 for their bytes; loading it runs no code.

Pickle is not used, because a checkpoint that runs code when it is loaded is no checkpoint to share. Every type comes
back as it was, or is refused when saving: a sample that changed on the way would not be the one that was taken.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.errors import StateError, UsageError

_MARK = "!"  # key of every object that stands for something that JSON does not have
_NUMPY_KINDS = "biufcSUmM"


def kept(values: Sequence[Any]) -> str:
    """Return values as a text; 4/3 of the bytes in them, compressed where that helps.

    Raises
    ------
    UsageError
        A value is of a type that cannot be kept.

    Examples
    --------
    >>> restored(kept([{"x": b"ab", "y": (1, 2.5)}]))
    [{'x': b'ab', 'y': (1, 2.5)}]
    """
    text = json.dumps([_told(value, "the sample") for value in values], separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 1)).decode()


def restored(text: Any) -> list[Any]:
    """Return the values of `kept`; raises `StateError` if the text is not one of its."""
    try:
        told = json.loads(zlib.decompress(base64.b64decode(text, validate=True)).decode("utf-8", "surrogatepass"))
        return [_made(each) for each in told]
    except (TypeError, ValueError, KeyError, zlib.error, RecursionError) as error:
        msg = f"the contents in the state cannot be read: {type(error).__name__}: {error}"
        raise StateError(msg, hint="the state was changed or cut short after it was saved") from None


def _told(value: Any, where: str) -> Any:
    """Return a value as JSON types."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (bytes, bytearray):
        return {_MARK: kind.__name__, "v": _text(value)}
    if kind is list:
        return [_told(each, where) for each in value]
    if kind is tuple:
        return {_MARK: "tuple", "v": [_told(each, where) for each in value]}
    if kind is dict:
        if all(type(name) is str for name in value) and _MARK not in value:
            return {name: _told(each, f"its field {name!r}") for name, each in value.items()}
        pairs = [[_told(name, where), _told(each, f"its field {name!r}")] for name, each in value.items()]
        return {_MARK: "dict", "v": pairs}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _NUMPY_KINDS:
        array = np.ascontiguousarray(value)
        name = "array" if kind is np.ndarray else "scalar" if kind is value.dtype.type else ""
        if name:
            shape = list(value.shape)
            return {_MARK: name, "dtype": value.dtype.str, "shape": shape, "v": _text(array.tobytes())}
    msg = f"state_dict(contents=True) keeps the samples in the buffer, and {where} is of type {kind.__name__}"
    hint = "None, numbers, texts, bytes, lists, tuples, dicts and numpy arrays of these can be kept"
    raise UsageError(msg, hint=f"{hint}: let the source give such, and a map() make the rest of it")


def _made(told: Any) -> Any:
    if isinstance(told, list):
        return [_made(each) for each in told]
    if not isinstance(told, dict):
        return told
    if _MARK not in told:
        return {name: _made(each) for name, each in told.items()}
    name, value = told[_MARK], told["v"]
    if name == "tuple":
        return tuple(_made(each) for each in value)
    if name == "dict":
        return {_made(key): _made(each) for key, each in value}
    data = base64.b64decode(value, validate=True)
    if name == "bytes":
        return data
    if name == "bytearray":
        return bytearray(data)
    if name in ("array", "scalar"):
        dtype = np.dtype(told["dtype"])
        if dtype.kind not in _NUMPY_KINDS:
            raise ValueError(f"no array of {dtype} is kept")
        array = np.frombuffer(data, dtype=dtype).reshape(told["shape"]).copy()
        return array if name == "array" else array[()]
    raise ValueError(f"there is no {name!r}")


def _text(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()
