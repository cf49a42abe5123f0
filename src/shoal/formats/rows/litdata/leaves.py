"""The leaves of LitData items: decoding of bytes to values, as LitData's writer encoded them.

``json`` leaves are nested lists and dicts in tags of LitData's own, or JSON text. A value is a byte for its kind, a
``u32`` count if it has parts, and the parts; all numbers are little-endian. Values of lists of dicts with equal keys
have tags of another range, and the keys come once, before them. Older versions wrote JSON text, whose first byte is
none of these tags.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.decoding.json_text import parse_json
from shoal.formats.decoding.pickles import unpickler
from shoal.formats.rows.mds.encodings import decoder_of

_ARRAY_TYPES = dict(enumerate((
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", "bool",
)))  # fmt: skip
_TENSOR_TYPES = {
    **dict.fromkeys((0, 1), "float32"), **dict.fromkeys((2, 3), "float64"), **dict.fromkeys((4, 5), "complex64"),
    **dict.fromkeys((6, 7), "complex128"), **dict.fromkeys((8, 9), "float16"), 11: "uint8", 12: "int8",
    **dict.fromkeys((13, 14), "int16"), **dict.fromkeys((15, 16), "int32"), **dict.fromkeys((17, 18), "int64"),
    19: "bool", 20: "uint16",
}  # fmt: skip  # 10 is bfloat16, which numpy does not have
# Files in their own formats; LitData decodes each with another package.
_FILES = ("file", "tiff", "tifffile", "video", "audio", "nifti", "mesh", "pdf")
_IMAGES = {"pil": "pil", "jpeg": "jpeg", "image": "jpeg", "jpeg_array": "jpeg_array"}


def leaf_decoder(leaf: str, *, allow_pickle: bool) -> Callable[[bytes], Any]:
    """Return the decoder of a leaf of this kind; it raises ValueError if the bytes are invalid.

    Raises `UsageError` if the kind is not read, or is ``pickle`` and pickles are not allowed.
    """
    kind = leaf.partition(":")[0]
    if kind == "pickle":
        return unpickler("a leaf of pickles", allow_pickle=allow_pickle, how="LitData(index, allow_pickle=True)")
    if (dtype := array_type(leaf)) is not None:
        return lambda data: np.frombuffer(data, dtype).copy()
    if kind in _IMAGES:
        return decoder_of(_IMAGES[kind], allow_pickle=False)
    if kind in _DECODERS:
        return _DECODERS[kind]
    msg = f"these chunks have leaves of the kind {leaf!r}, which shoal does not read"
    known = [*_DECODERS, "no_header_numpy", "no_header_tensor", *_IMAGES, "pickle"]
    raise UsageError(msg, hint=f"it reads {', '.join(known)}")


def array_type(leaf: str) -> np.dtype[Any] | None:
    """Return the dtype of a leaf that is a plain array of numbers; None for any other leaf.

    >>> array_type("no_header_tensor:16"), array_type("int")
    (dtype('int32'), None)
    """
    kind, _, number = leaf.partition(":")
    types = {"no_header_numpy": _ARRAY_TYPES, "no_header_tensor": _TENSOR_TYPES}.get(kind, {})
    name = types.get(int(number)) if number.isdecimal() else None
    return None if name is None else np.dtype(name)


def _shaped(word: str, types: dict[int, str], data: bytes) -> NDArray[Any]:
    kind, rank = np.frombuffer(data, word, count=2).tolist()
    if kind not in types:
        raise ValueError(f"array type {kind} does not exist")
    shape = np.frombuffer(data, word, count=rank, offset=8).tolist() if rank else []
    return np.frombuffer(data[8 + 4 * rank :], types[kind]).reshape(shape).copy()


def _unpacked(layout: str, data: bytes) -> Any:
    if len(data) != struct.calcsize(layout):
        raise ValueError(f"{len(data)} bytes")
    return struct.unpack(layout, data)[0]


_JSON, _TEXTS, _INTS, _FLOATS, _BOOLS, _DICT, _RECORDS, _TEXT, _INT, _FLOAT, _BOOL, _NONE = range(12)
_OF_RECORDS = {0x10: _NONE, 0x11: _TEXT, 0x12: _INT, 0x13: _FLOAT, 0x14: _BOOL}
_LAYOUTS = {_INT: "<q", _FLOAT: "<d", _BOOL: "?"}
_LAST_TAG = 0x20


def json_value(data: bytes) -> Any:
    r"""Return the value in these bytes.

    >>> json_value(b"\x05\x01\0\0\0\x01\0\0\0k" + b"\x04\x02\0\0\0\x01\x00"), json_value(b'{"k": [1.5]}')
    ({'k': [True, False]}, {'k': [1.5]})

    Raises `ValueError` if the bytes are invalid. Memory: at most a few times the number of bytes.
    """
    if not data or data[0] > _LAST_TAG:
        return parse_json(data)
    reader = _Reader(data)
    value = reader.value()
    if reader.position != len(data):
        raise ValueError(f"a value ends at byte {reader.position} of {len(data)}")
    return value


class _Reader:
    """A reader that takes values off the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self._data, self.position = data, 0

    def value(self) -> Any:
        """Read the next value, of any kind."""
        tag = self._taken(1)[0]
        if tag == _JSON:
            return json.loads(self._taken(self._count()))
        if tag == _TEXTS:
            return [self._text() for _ in range(self._count(least_bytes=4))]
        if tag in (_INTS, _FLOATS):
            words = self._taken(8 * self._count(least_bytes=8))
            return np.frombuffer(words, "<i8" if tag == _INTS else "<f8").tolist()
        if tag == _BOOLS:
            return [byte != 0 for byte in self._taken(self._count())]
        if tag == _DICT:
            return {self._text(): self.value() for _ in range(self._count(least_bytes=5))}
        if tag == _RECORDS:
            return self._records()
        return self._single(tag)

    def _records(self) -> list[dict[str, Any]]:
        num_rows = self._count()
        num_keys = self._count(least_bytes=4)
        keys = [self._text() for _ in range(num_keys)]
        if num_rows and not num_keys:
            raise ValueError(f"{num_rows} records have no keys")
        self._check(num_rows, num_keys)
        return [{key: self._single(_OF_RECORDS.get(self._taken(1)[0], -1)) for key in keys} for _ in range(num_rows)]

    def _single(self, tag: int) -> Any:
        """Read a value without parts."""
        if tag == _TEXT:
            return self._text()
        if tag in _LAYOUTS:
            return _unpacked(_LAYOUTS[tag], self._taken(struct.calcsize(_LAYOUTS[tag])))
        if tag == _NONE:
            return None
        raise ValueError(f"the value at byte {self.position - 1} is of an unknown kind")

    def _text(self) -> str:
        return self._taken(self._count()).decode("utf-8")

    def _count(self, *, least_bytes: int = 1) -> int:
        """Read a count of parts of at least ``least_bytes`` each."""
        count = int.from_bytes(self._taken(4), "little")
        self._check(count, least_bytes)
        return count

    def _check(self, count: int, least_bytes: int) -> None:
        left = len(self._data) - self.position
        if count * least_bytes > left:
            raise ValueError(f"{count} parts should follow at byte {self.position}, but only {left} bytes are left")

    def _taken(self, num_bytes: int) -> bytes:
        self._check(num_bytes, 1)
        self.position += num_bytes
        return self._data[self.position - num_bytes : self.position]


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("str", "text"), bytes.decode),
    **dict.fromkeys(("bytes", *_FILES), bytes),
    "json": json_value,
    "bool": partial(_unpacked, "?"),
    "int": partial(_unpacked, "<q"),
    "float": partial(_unpacked, "<d"),
    "numpy": partial(_shaped, "<u4", _ARRAY_TYPES),
    "tensor": partial(_shaped, ">u4", _TENSOR_TYPES),
}
