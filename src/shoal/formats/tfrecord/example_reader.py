"""A reader of ``tf.train.Example`` and ``tf.train.SequenceExample`` without TensorFlow or protobuf.

The messages, from ``tensorflow/core/example/example.proto`` and ``feature.proto``::

    Example         { Features features = 1; }
    SequenceExample { Features context = 1; FeatureLists feature_lists = 2; }
    Features        { map<string, Feature> feature = 1; }
    FeatureLists    { map<string, FeatureList> feature_list = 1; }
    FeatureList     { repeated Feature feature = 1; }
    Feature         { oneof { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
    BytesList { repeated bytes value = 1; }  FloatList { repeated float value = 1 [packed]; }  Int64List likewise

An example is a sequence example without lists, so that nobody has to state which of the two a record is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MOST_VARINT_BYTES = 10
FIELD_HEAD_BYTES = 1 + _MOST_VARINT_BYTES
"""Maximum size of the tag and length before the data of a field of an example."""
_MANY_BYTES = 64  # of packed integers: from here on numpy is faster

_Span = tuple[int, int]


class NotAnExampleError(ValueError):
    """Bytes that are no ``tf.train.Example`` or ``SequenceExample``; ``byte`` is where that shows."""

    def __init__(self, what: str, byte: int) -> None:
        super().__init__(what)
        self.byte = byte


def parse_example(data: bytes) -> dict[str, Any]:
    r"""Return the features of an example by name; of a sequence example, those of its context, and its lists.

    Numbers are arrays of float32 or int64, shape (num_values,); bytes are ``bytes`` if there is one value, else a list.
    A feature without values is an empty array of its kind, or None if it has no kind. A feature list is a list of the
    values of its features: an array, or always a list of ``bytes``. Repeated messages are merged as protobuf does it,
    and of repeated names the last one wins. About 2 us a feature.

    >>> parse_example(b"\n\x0f\n\r\n\x05label\x12\x04\x1a\x02\n\x00")
    {'label': array([], dtype=int64)}

    Raises
    ------
    NotAnExampleError
        The bytes are no such message, or hold fields that it does not have; or one name is both a feature and a list.
    """
    features: dict[str, Any] = {}
    lists: dict[str, Any] = {}
    for number, begin, end in _fields(data, [(0, len(data))], most=2):
        for _, *entry in _fields(data, [(begin, end)], most=1):
            name, spans = _entry(data, *entry)
            if number == 1:
                features[name] = _feature(data, spans)
            else:
                steps = [span for _, *span in _fields(data, spans, most=1)]
                lists[name] = [_feature(data, [(first, stop)], always_list=True) for first, stop in steps]
    if not data:
        msg = "it has no features"
        raise NotAnExampleError(msg, 0)
    if twice := features.keys() & lists.keys():
        msg = f"{min(twice)!r} is a feature of its context and a feature list"
        raise NotAnExampleError(msg, 0)
    return features | lists


def field_ends(front: bytes, place: int) -> int | None:
    """Return the end of an example's field that begins with ``front`` at byte ``place``; None if none begins."""
    if front[:1] not in (b"\x0a", b"\x12"):
        return None
    try:
        size, begin = _varint(front, 1, len(front))
    except NotAnExampleError:
        return None
    return place + begin + size


def _entry(data: bytes, begin: int, end: int) -> tuple[str, list[_Span]]:
    """Return the name in an entry of a map, and the spans of its value, which are to be merged."""
    name, spans = "", []
    for number, first, stop in _fields(data, [(begin, end)], most=2):
        if number == 2:
            spans.append((first, stop))
            continue
        try:
            name = data[first:stop].decode("utf-8")
        except UnicodeDecodeError:
            msg = "the name of a feature is not UTF-8"
            raise NotAnExampleError(msg, first) from None
    return name, spans


def _feature(data: bytes, spans: list[_Span], *, always_list: bool = False) -> Any:
    kind, lists = 0, list[_Span]()
    for number, first, stop in _fields(data, spans, most=3):
        if number != kind:  # one of the three: a new kind replaces the values before
            kind, lists = number, []
        lists.append((first, stop))
    if kind == 1:
        found = [data[a:b] for _, a, b in _fields(data, lists, most=1)]
        return found[0] if len(found) == 1 and not always_list else found
    if kind == 2:
        return _floats(data, lists)
    return _integers(data, lists) if kind == 3 else None


def _floats(data: bytes, lists: list[_Span]) -> NDArray[np.float32]:
    parts = [data[a:b] for _, a, b in _fields(data, lists, most=1, numbers=_FIXED32)]
    joined = b"".join(parts)
    if len(joined) % 4:
        msg = f"a list of floats has {len(joined)} bytes, which is no multiple of 4"
        raise NotAnExampleError(msg, lists[0][0])
    return np.frombuffer(joined, dtype="<f4").astype(np.float32)


def _integers(data: bytes, lists: list[_Span]) -> NDArray[np.int64]:
    parts = [data[a:b] for _, a, b in _fields(data, lists, most=1, numbers=_VARINT)]
    joined = b"".join(parts)
    if len(joined) >= _MANY_BYTES:
        return _varints(joined, lists[0][0])
    values, at = [], 0
    while at < len(joined):
        value, at = _varint(joined, at, len(joined))
        values.append(value)
    return np.array(values, dtype=np.uint64).astype(np.int64)


def _varints(data: bytes, place: int) -> NDArray[np.int64]:
    """Decode integers of seven bits a byte, lowest first, the last byte of each below 128; vectorised."""
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


def _fields(
    data: bytes, spans: Iterable[_Span], *, most: int, numbers: int | None = None
) -> Iterator[tuple[int, int, int]]:
    """Yield number and span of every field of a message, which may lie in several spans that are to be merged.

    Known are the field numbers up to ``most``, of length-delimited fields; with ``numbers`` also single values of this
    numeric wire type. NotAnExampleError for others, which would be lost silently.
    """
    for first, end in spans:
        at = first
        while at < end:
            # Most numbers have one byte, and a call costs as much as the rest.
            tag, after = (data[at], at + 1) if data[at] < 128 else _varint(data, at, end)
            number, kind = tag >> 3, tag & 7
            if kind == _LENGTH:
                is_short = after < end and data[after] < 128
                size, begin = (data[after], after + 1) if is_short else _varint(data, after, end)
                stop = begin + size
            elif kind == _VARINT:
                begin, stop = after, _varint(data, after, end)[1]
            elif kind in (_FIXED64, _FIXED32):
                begin, stop = after, after + (8 if kind == _FIXED64 else 4)
            else:
                msg = f"a field has the wire type {kind}, which no such message has"
                raise NotAnExampleError(msg, at)
            if stop > end:
                msg = f"a field ends {stop - end} bytes after its message"
                raise NotAnExampleError(msg, at)
            if not 0 < number <= most or kind not in (_LENGTH, numbers):
                msg = f"a field has the number {number} and the wire type {kind}, which such a message does not have"
                raise NotAnExampleError(msg, at)
            yield number, begin, stop
            at = stop


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for number, byte in enumerate(data[at : min(at + _MOST_VARINT_BYTES, end)]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at + number + 1
    msg = "a number has no end"
    raise NotAnExampleError(msg, at)
