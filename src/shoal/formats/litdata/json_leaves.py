"""The ``json`` leaves of LitData: nested lists and dicts in tags of its own, or JSON text.

A value is a byte for its kind, a ``u32`` count if it has parts, and the parts; all numbers are little-endian. Values of
lists of dicts with equal keys have tags of another range, and the keys come once, before them. Older versions wrote
JSON text, whose first byte is none of these tags.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

_JSON, _TEXTS, _INTS, _FLOATS, _BOOLS, _DICT, _RECORDS, _TEXT, _INT, _FLOAT, _BOOL, _NONE = range(12)
_OF_RECORDS = {0x10: _NONE, 0x11: _TEXT, 0x12: _INT, 0x13: _FLOAT, 0x14: _BOOL}
_LAST_TAG = 0x20


def json_value(data: bytes) -> Any:
    r"""Return the value in these bytes.

    >>> json_value(b"\x05\x01\0\0\0\x01\0\0\0k" + b"\x04\x02\0\0\0\x01\x00"), json_value(b'{"k": [1.5]}')
    ({'k': [True, False]}, {'k': [1.5]})

    Raises
    ------
    ValueError
        They are invalid; memory stays within a few times their number.
    """
    if not data or data[0] > _LAST_TAG:
        return json.loads(data)
    reader = _Reader(data)
    value = reader.value()
    if reader.position != len(data):
        msg = f"a value ends at byte {reader.position} of {len(data)}"
        raise ValueError(msg)
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
            msg = f"{num_rows} records have no keys"
            raise ValueError(msg)
        self._check(num_rows, num_keys)
        return [{key: self._single(_OF_RECORDS.get(self._taken(1)[0], -1)) for key in keys} for _ in range(num_rows)]

    def _single(self, tag: int) -> Any:
        """Read a value without parts."""
        if tag == _TEXT:
            return self._text()
        if tag == _INT:
            return struct.unpack("<q", self._taken(8))[0]
        if tag == _FLOAT:
            return struct.unpack("<d", self._taken(8))[0]
        if tag == _BOOL:
            return self._taken(1)[0] != 0
        if tag == _NONE:
            return None
        msg = f"at byte {self.position - 1} a value has a kind that is not known"
        raise ValueError(msg)

    def _text(self) -> str:
        return self._taken(self._count()).decode("utf-8")

    def _count(self, *, least_bytes: int = 1) -> int:
        """Read a count of parts, each of which has at least ``least_bytes``."""
        count = int.from_bytes(self._taken(4), "little")
        self._check(count, least_bytes)
        return count

    def _check(self, count: int, least_bytes: int) -> None:
        left = len(self._data) - self.position
        if count * least_bytes > left:
            msg = f"at byte {self.position} {count} parts are announced, and {left} bytes are left"
            raise ValueError(msg)

    def _taken(self, num_bytes: int) -> bytes:
        self._check(num_bytes, 1)
        self.position += num_bytes
        return self._data[self.position - num_bytes : self.position]
