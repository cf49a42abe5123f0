"""Samples as text that a state can hold: JSON for their structure, base64 for their bytes.

Loading the text runs no code, unlike pickle: a checkpoint that runs code cannot be shared. Every value is restored with
its type, or refused when saving: a resumed run delivers the samples that were taken.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.errors import StateError, UsageError

_MARK = "!"  # key of every JSON object that encodes a type unknown to JSON
_NUMPY_KINDS = "biufcSUmM"


def kept(values: Sequence[Any]) -> str:
    """Return values as a compressed text of at most about 4/3 of their bytes; `UsageError` for an unknown type.

    >>> restored(kept([{"x": b"ab", "y": (1, 2.5)}]))
    [{'x': b'ab', 'y': (1, 2.5)}]
    """
    text = json.dumps([_encoded(value, "the sample") for value in values], separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode("utf-8", "surrogatepass"), 1)).decode()


def restored(text: Any) -> list[Any]:
    """Return the values in a text from `kept`; raises `StateError` for any other text."""
    try:
        values = json.loads(zlib.decompress(base64.b64decode(text, validate=True)).decode("utf-8", "surrogatepass"))
        return [_decoded(value) for value in values]
    except (TypeError, ValueError, KeyError, zlib.error, RecursionError) as error:
        msg = f"the contents in the state cannot be read: {type(error).__name__}: {error}"
        raise StateError(msg, hint="the state was changed or cut short after it was saved") from None


def _encoded(value: Any, where: str) -> Any:
    """Return a value as JSON types; ``where`` names it in errors."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind in (bytes, bytearray):
        return {_MARK: kind.__name__, "v": _text(value)}
    if kind is list:
        return [_encoded(item, where) for item in value]
    if kind is tuple:
        return {_MARK: "tuple", "v": [_encoded(item, where) for item in value]}
    if kind is dict:
        if all(type(name) is str for name in value) and _MARK not in value:
            return {name: _encoded(item, f"its field {name!r}") for name, item in value.items()}
        pairs = [[_encoded(name, where), _encoded(item, f"its field {name!r}")] for name, item in value.items()]
        return {_MARK: "dict", "v": pairs}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _NUMPY_KINDS:
        array = np.ascontiguousarray(value)
        name = "array" if kind is np.ndarray else "scalar" if kind is value.dtype.type else ""
        if name:
            shape = list(value.shape)
            return {_MARK: name, "dtype": value.dtype.str, "shape": shape, "v": _text(array.tobytes())}
    msg = f"state_dict(contents=True) keeps the samples in the buffer, and {where} is of type {kind.__name__}"
    hint = "None, numbers, texts, bytes, lists, tuples, dicts and numpy arrays of these can be kept"
    raise UsageError(msg, hint=f"{hint}: let the source return such values, and convert them in a map()")


def _decoded(encoded: Any) -> Any:
    if isinstance(encoded, list):
        return [_decoded(item) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    if _MARK not in encoded:
        return {name: _decoded(item) for name, item in encoded.items()}
    name, value = encoded[_MARK], encoded["v"]
    if name == "tuple":
        return tuple(_decoded(item) for item in value)
    if name == "dict":
        return {_decoded(key): _decoded(item) for key, item in value}
    data = base64.b64decode(value, validate=True)
    if name == "bytes":
        return data
    if name == "bytearray":
        return bytearray(data)
    if name in ("array", "scalar"):
        dtype = np.dtype(encoded["dtype"])
        if dtype.kind not in _NUMPY_KINDS:
            raise ValueError(f"no array of {dtype} is kept")
        array = np.frombuffer(data, dtype=dtype).reshape(encoded["shape"]).copy()
        return array if name == "array" else array[()]
    raise ValueError(f"there is no {name!r}")


def _text(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()
