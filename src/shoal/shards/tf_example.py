"""``tf.train.Example``, read without TensorFlow or protobuf.

The message, from ``tensorflow/core/example/example.proto`` and ``feature.proto``::

    Example  { Features features = 1; }
    Features { map<string, Feature> feature = 1; }
    Feature  { oneof { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
    BytesList { repeated bytes value = 1; }  FloatList { repeated float value = 1 [packed]; }  Int64List likewise
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["NotAnExampleError", "parse_example"]

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MOST_VARINT_BYTES = 10
_MANY_BYTES = 64  # of packed integers: from here on numpy is faster


class NotAnExampleError(ValueError):
    """Bytes that are no ``tf.train.Example``; ``byte`` is where it shows."""

    def __init__(self, what: str, byte: int) -> None:
        super().__init__(what)
        self.byte = byte


def parse_example(data: bytes) -> dict[str, Any]:
    r"""The features of an example by name.

    Numbers are arrays of float32 or int64, shape (num_values,); bytes are ``bytes`` where there is one value, and a
    list else. A feature without values is an empty array of its kind, or None where it has no kind. Unknown fields
    are passed over, as protobuf does; of a name that comes twice, the last counts. About 2 us a feature.

    >>> parse_example(b"\n\x0f\n\r\n\x05label\x12\x04\x1a\x02\n\x00")
    {'label': array([], dtype=int64)}

    Raises
    ------
    NotAnExampleError
        The bytes are no such message.
    """
    features: dict[str, Any] = {}
    has_features = False
    for number, begin, end in _fields(data, 0, len(data)):
        if number != 1:
            continue
        has_features = True
        for entry, entry_begin, entry_end in _fields(data, begin, end):
            if entry == 1:
                name, value = _entry(data, entry_begin, entry_end)
                features[name] = value
    if not has_features:
        msg = "it has no features"
        raise NotAnExampleError(msg, 0)
    return features


def _entry(data: bytes, begin: int, end: int) -> tuple[str, Any]:
    name, value = "", None
    for number, first, stop in _fields(data, begin, end):
        if number == 1:
            try:
                name = data[first:stop].decode("utf-8")
            except UnicodeDecodeError:
                msg = "the name of a feature is not UTF-8"
                raise NotAnExampleError(msg, first) from None
        elif number == 2:
            value = _feature(data, first, stop)
    return name, value


def _feature(data: bytes, begin: int, end: int) -> Any:
    value: Any = None
    for number, first, stop in _fields(data, begin, end):
        if number == 1:
            found = [data[a:b] for field, a, b in _fields(data, first, stop) if field == 1]
            value = found[0] if len(found) == 1 else found
        elif number == 2:
            value = _floats(data, first, stop)
        elif number == 3:
            value = _integers(data, first, stop)
    return value


def _floats(data: bytes, begin: int, end: int) -> NDArray[np.float32]:
    parts = [data[a:b] for field, a, b in _fields(data, begin, end, numbers=_FIXED32) if field == 1]
    joined = b"".join(parts)
    if len(joined) % 4:
        msg = f"a list of floats has {len(joined)} bytes, which is no multiple of 4"
        raise NotAnExampleError(msg, begin)
    return np.frombuffer(joined, dtype="<f4").astype(np.float32)


def _integers(data: bytes, begin: int, end: int) -> NDArray[np.int64]:
    parts = [data[a:b] for field, a, b in _fields(data, begin, end, numbers=_VARINT) if field == 1]
    joined = b"".join(parts)
    if len(joined) >= _MANY_BYTES:
        return _varints(joined, begin)
    values, at = [], 0
    while at < len(joined):
        value, at = _varint(joined, at, len(joined))
        values.append(value)
    return np.array(values, dtype=np.uint64).astype(np.int64)


def _varints(data: bytes, place: int) -> NDArray[np.int64]:
    """Many integers of seven bits a byte, lowest first, the last byte of each below 128; vectorised."""
    found = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(found < 128)
    lengths = np.diff(ends, prepend=-1)
    if not len(ends) or ends[-1] != len(found) - 1 or int(lengths.max()) > _MOST_VARINT_BYTES:
        msg = "a list of integers does not end with one, or one of them has more than ten bytes"
        raise NotAnExampleError(msg, place)
    starts = ends - lengths + 1
    shifts = (np.arange(len(found)) - np.repeat(starts, lengths)).astype(np.uint64) * np.uint64(7)
    bits = (found & 0x7F).astype(np.uint64) << shifts
    values: NDArray[np.int64] = np.bitwise_or.reduceat(bits, starts).view(np.int64)
    return values


def _fields(data: bytes, at: int, end: int, *, numbers: int | None = None) -> Iterator[tuple[int, int, int]]:
    """Number and stretch of every field of a message that is a stretch of bytes itself.

    With ``numbers`` also of those of this kind of number, one value each; other numbers are passed over.
    """
    while at < end:
        tag, after = _varint(data, at, end)
        kind = tag & 7
        if kind == _LENGTH:
            size, begin = _varint(data, after, end)
            stop = begin + size
        elif kind == _VARINT:
            begin, stop = after, _varint(data, after, end)[1]
        elif kind in (_FIXED64, _FIXED32):
            begin, stop = after, after + (8 if kind == _FIXED64 else 4)
        else:
            msg = f"a field has the wire type {kind}, which no such message has"
            raise NotAnExampleError(msg, at)
        if stop > end or tag < 8:
            msg = f"a field ends {stop - end} bytes after its message" if stop > end else "a field has the number 0"
            raise NotAnExampleError(msg, at)
        if kind in (_LENGTH, numbers):
            yield tag >> 3, begin, stop
        at = stop


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for number, byte in enumerate(data[at : min(at + _MOST_VARINT_BYTES, end)]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at + number + 1
    msg = "a number has no end"
    raise NotAnExampleError(msg, at)
