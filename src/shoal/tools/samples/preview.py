"""Show the values of samples as text and as JSON.

Data may hold terminal commands, so everything unprintable is escaped.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.figures import format_bytes
from shoal.formats.decoding.images import IMAGE_SUFFIXES
from shoal.pack.inputs.sample_fields import SampleFields

# A preview reads at most this many characters or bytes of a field: wider than any terminal.
_MOST_SHOWN = 4096
_MOST_NUMBERS = 100  # of an array


def printable(text: str) -> str:
    r"""Escape unprintable characters: control characters, bad UTF-8, invisible directions.

    >>> print(printable("a\nb\x1b[31m\u202e"))
    a\nb\x1b[31m\u202e
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def clipped(text: str, columns: int) -> str:
    """Cut a text to ``columns`` characters, with an ellipsis.

    >>> clipped("a long story", 7)
    'a long…'
    """
    return text if len(text) <= columns else (text[: columns - 1].rstrip() + "…") * (columns > 0)


def size_of(value: Any) -> str:
    """Return the size of a value as text.

    >>> size_of(b"0123"), size_of("ü"), size_of([1, 2]), size_of(7), size_of(np.int8(7))
    ('4 B', '2 B', 'list of 2', 'int', 'int8')
    """
    if isinstance(value, bytes):
        return format_bytes(len(value))
    if isinstance(value, str):
        return format_bytes(len(value.encode("utf-8", "surrogatepass")))
    if isinstance(value, Mapping | list | tuple):
        return f"{type(value).__name__} of {len(value):,}"
    if isinstance(value, np.generic):
        return str(value.dtype)
    if hasattr(value, "nbytes"):
        return format_bytes(int(value.nbytes))
    return "null" if value is None else type(value).__name__


def preview(name: str, value: Any, *, columns: int) -> str:
    r"""Return the beginning of a value as a printable line, and a description of binary data.

    >>> preview("txt", b"one\ntwo", columns=40), preview("jpg", b"\xff\xd8", columns=40)
    ('one\\ntwo', '(image)')
    >>> preview("tokens", np.arange(7, 9, dtype=np.uint16), columns=40)
    'uint16 array of shape (2,): 7 8'
    """
    if isinstance(value, bytes | memoryview):
        value = bytes(value[: 2 * _MOST_SHOWN])
        if name.rpartition(".")[2].lower() in IMAGE_SUFFIXES:
            return "(image)"
        text = _as_text(value[:_MOST_SHOWN], is_all=len(value) <= _MOST_SHOWN)
        return "(binary)" if text is None else clipped(printable(text), columns)
    if isinstance(value, str):
        return clipped(printable(value[:_MOST_SHOWN]), columns)
    if isinstance(value, np.generic):
        return clipped(str(_scalar(value)), columns)
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        described = _array_words(value)
        return described + clipped(_first_numbers(value), max(0, columns - len(described)))
    if (picture := _picture(value)) is not None:
        return f"{picture['mode']} image of {picture['width']} x {picture['height']}"
    if value is None or isinstance(value, bool | int | float | Mapping | list | tuple):
        text = json.dumps(value, ensure_ascii=False, default=_json_default)
        return clipped(printable(text), columns)
    return clipped(printable(repr(value)), columns)


def _array_words(array: Any) -> str:
    return f"{array.dtype} array of shape {tuple(array.shape)}"


def _first_numbers(array: Any) -> str:
    """Return the first numbers of a one-dimensional array, after a colon; "" for other arrays."""
    if len(array.shape) != 1 or not hasattr(array[:0], "tolist"):
        return ""
    values = array[:_MOST_NUMBERS].tolist()
    if not values or not all(isinstance(value, bool | int | float) for value in values):
        return ""
    texts = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
    return f": {' '.join(texts)}" + (" ..." if len(array) > _MOST_NUMBERS else "")


def field_counts_text(fields: SampleFields) -> str:
    """Return the number of samples with each field, as text."""
    return ", ".join(f"{printable(name)} {count:,}" for name, count in fields.counts.items())


def without_usual_text(fields: SampleFields) -> str:
    """Return the first samples without a usual field, as text."""
    names = list(map(printable, fields.first_without_usual))
    return ", ".join([*names, *(["..."] if fields.num_without_usual > len(names) else [])])


def json_value(value: Any) -> Any:
    """Convert a value to JSON: binary data to ``{"base64": ...}``, arrays and pictures to their description."""
    if isinstance(value, np.generic):
        value = _scalar(value)
    if isinstance(value, bytes):
        text = _as_text(value, is_all=True)
        return {"base64": base64.b64encode(value).decode("ascii")} if text is None else text
    if isinstance(value, str):
        # Lone surrogates stand for bytes that are not UTF-8; surrogates cannot be written.
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, Mapping):
        return {str(json_value(str(key))): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return {"dtype": str(value.dtype), "shape": list(value.shape), "values": json_value(value.tolist())}
    picture = _picture(value)
    return value if picture is None else {"image": picture}


def _scalar(value: Any) -> Any:
    """Convert a numpy scalar to a number, or a time to text."""
    plain = value.item()
    return plain if value.dtype.kind in "biuf" else str(value)


def _json_default(value: Any) -> Any:
    if isinstance(value, np.generic):
        return _scalar(value)
    if isinstance(value, bytes | memoryview):
        return f"{len(value):,} bytes"
    return _array_words(value) if hasattr(value, "dtype") and hasattr(value, "shape") else repr(value)


def _picture(value: Any) -> dict[str, Any] | None:
    """Return the mode and size of a Pillow picture, without importing Pillow; None for other values."""
    names = ("mode", "width", "height")
    return {name: getattr(value, name) for name in names} if all(hasattr(value, name) for name in names) else None


def _as_text(data: bytes, *, is_all: bool) -> str | None:
    """Decode UTF-8 without NUL, dropping a cut character at the end of a part; None for other bytes."""
    if b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if is_all or error.start < len(data) - 3:
            return None
        return data[: error.start].decode("utf-8")
