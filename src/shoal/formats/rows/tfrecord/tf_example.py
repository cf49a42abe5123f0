"""Reading and writing of ``tf.train.Example`` and ``tf.train.SequenceExample`` without TensorFlow or protobuf.

The messages, from ``tensorflow/core/example/example.proto`` and ``feature.proto``::

    Example         { Features features = 1; }
    SequenceExample { Features context = 1; FeatureLists feature_lists = 2; }
    Features        { map<string, Feature> feature = 1; }
    FeatureLists    { map<string, FeatureList> feature_list = 1; }
    FeatureList     { repeated Feature feature = 1; }
    Feature         { oneof { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
    BytesList { repeated bytes value = 1; }  FloatList { repeated float value = 1 [packed]; }  Int64List likewise

An example is parsed as a sequence example without lists, so the caller need not name the type of a record. Features are
written in the order of the sample: equal samples give equal bytes, which protobuf does not promise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.compiled_cutting import is_compiled, plain_example
from shoal.formats.writing.encoder import check_names

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MOST_VARINT_BYTES = 10
FIELD_HEAD_BYTES = 1 + _MOST_VARINT_BYTES
"""Maximum size of the tag and length before the data of a field of an example."""
_MANY_BYTES = 64  # of packed integers: from here on numpy is faster
_FIRST, _SECOND, _THIRD = b"\x0a", b"\x12", b"\x1a"  # tags of length-delimited fields with these numbers
_BYTES, _FLOATS, _INTEGERS = _FIRST, _SECOND, _THIRD  # in a Feature
_LIMITS = np.iinfo(np.int64)

_Bounds = tuple[int, int]


class NotAnExampleError(ValueError):
    """Bytes that are no ``tf.train.Example`` or ``SequenceExample``; ``byte`` is the position of the error."""

    def __init__(self, what: str, byte: int) -> None:
        super().__init__(what)
        self.byte = byte


def _no_example(what: str, byte: int) -> NoReturn:
    raise NotAnExampleError(what, byte) from None


def is_example(data: bytes) -> bool:
    """Return True if these bytes are an example."""
    try:
        parse_example(data)
    except NotAnExampleError:
        return False
    return True


def parse_example(data: bytes) -> dict[str, Any]:
    r"""Return the features of an example by name; of a sequence example, the features of its context, and its lists.

    Numbers are arrays of float32 or int64, shape (num_values,); bytes are ``bytes`` if there is one value, else a list.
    A feature without values is an empty array of its kind, or None if it has no kind. A feature list is a list of the
    values of its features: an array, or always a list of ``bytes``. Repeated messages are merged as protobuf does it,
    and of repeated names the last one wins. About 2 us a feature.

    >>> parse_example(b"\n\x0f\n\r\n\x05label\x12\x04\x1a\x02\n\x00")
    {'label': array([], dtype=int64)}

    Raises `NotAnExampleError` if the bytes are no such message, or hold fields that it does not have; or one name is
    both a feature and a list.
    """
    plain = plain_example(data, _float_array, _integer_array) if is_compiled else _plain_example(data)
    if plain is not None:
        return plain
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
        _no_example("it has no features", 0)
    if twice := features.keys() & lists.keys():
        _no_example(f"{min(twice)!r} is a feature of its context and a feature list", 0)
    return features | lists


def _plain_example(data: bytes) -> dict[str, Any] | None:
    """Return the features of an example in the usual form of writers; None for any other bytes.

    In that form each message is in one piece, a name comes once and before its value, and a list is packed or has one
    value.
    """
    features: dict[str, Any] = {}
    end = len(data)
    try:
        stop = end
        at = _message_in(data, 0, end, end)
        while at < end:
            at, first = at + 1, at
            size, at = (data[at], at + 1) if data[at] < 128 else _varint(data, at, end)
            stop = at + size
            name_end = at + 2 + data[at + 1]
            if data[first] != 10 or data[at] != 10 or data[at + 1] > 127 or data[name_end] != 18:
                return None
            name = data[at + 2 : name_end].decode()
            feature = _message_in(data, name_end, end, stop)
            values = _message_in(data, feature, end, stop)
            if data[values] != 10 or name in features:
                return None
            begin = _message_in(data, values, end, stop)
            kind = data[feature]
            if kind == 10:
                features[name] = data[begin:stop]
            elif begin == stop or kind not in (18, 26):
                return None
            elif kind == 18:
                features[name] = _float_array(data[begin:stop])
            else:
                features[name] = _unpacked(data[begin:stop], begin)
            at = stop
    except (IndexError, ValueError):  # as NotAnExampleError and UnicodeDecodeError are
        return None
    return features if at == end and data[0] == 10 else None


def _message_in(data: bytes, tag: int, end: int, stop: int) -> int:
    """Return where the message after a tag begins, if the message ends at ``stop``."""
    at = tag + 1
    size, at = (data[at], at + 1) if data[at] < 128 else _varint(data, at, end)
    if at + size != stop:
        _no_example("a message ends elsewhere", tag)
    return at


def field_end(front: bytes, byte: int) -> int | None:
    """Return the end of an example's field that begins with ``front`` at ``byte``; None if none begins."""
    try:
        size, begin = _varint(front, 1, len(front))
    except NotAnExampleError:
        return None
    return byte + begin + size if front[:1] in (_FIRST, _SECOND) else None


def _entry(data: bytes, begin: int, end: int) -> tuple[str, list[_Bounds]]:
    """Return the name in an entry of a map, and the spans of its value, to be merged."""
    name, spans = "", []
    for number, first, stop in _fields(data, [(begin, end)], most=2):
        if number == 2:
            spans.append((first, stop))
            continue
        try:
            name = data[first:stop].decode("utf-8")
        except UnicodeDecodeError:
            _no_example("the name of a feature is not UTF-8", first)
    return name, spans


def _feature(data: bytes, spans: list[_Bounds], *, always_list: bool = False) -> Any:
    kind, lists = 0, list[_Bounds]()
    for number, first, stop in _fields(data, spans, most=3):
        if number != kind:  # one of the three: a new kind replaces the values before
            kind, lists = number, []
        lists.append((first, stop))
    if kind == 1:
        values = [data[a:b] for _, a, b in _fields(data, lists, most=1)]
        return values[0] if len(values) == 1 and not always_list else values
    if kind == 2:
        return _floats(data, lists)
    return _integers(data, lists) if kind == 3 else None


def _floats(data: bytes, lists: list[_Bounds]) -> NDArray[np.float32]:
    joined = b"".join([data[a:b] for _, a, b in _fields(data, lists, most=1, numbers=_FIXED32)])
    if len(joined) % 4:
        _no_example(f"a list of floats has {len(joined)} bytes, not a multiple of 4", lists[0][0])
    return _float_array(joined)


def _float_array(data: bytes) -> NDArray[np.float32]:
    """Copy packed numbers into an array."""
    return np.frombuffer(data, dtype="<f4").astype(np.float32)


def _integer_array(data: bytes) -> NDArray[np.int64]:
    """Copy integers in the byte order of this machine into an array."""
    return np.frombuffer(data, dtype=np.int64).copy()


def _integers(data: bytes, lists: list[_Bounds]) -> NDArray[np.int64]:
    joined = b"".join([data[a:b] for _, a, b in _fields(data, lists, most=1, numbers=_VARINT)])
    return _unpacked(joined, lists[0][0] if lists else 0)


def _unpacked(joined: bytes, byte: int) -> NDArray[np.int64]:
    """Decode integers one after another."""
    if len(joined) >= _MANY_BYTES:
        return _decoded_varints(joined, byte)
    values, at = [], 0
    while at < len(joined):
        value, at = _varint(joined, at, len(joined))
        values.append(value)
    return np.array(values, dtype=np.uint64).astype(np.int64)


def _decoded_varints(data: bytes, byte: int) -> NDArray[np.int64]:
    """Decode integers of seven bits a byte, lowest first, the last byte of each below 128; vectorised."""
    coded = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(coded < 128)
    lengths = np.diff(ends, prepend=-1)
    if not len(ends) or ends[-1] != len(coded) - 1 or int(lengths.max()) > _MOST_VARINT_BYTES:
        _no_example("a list of integers ends within an integer, or an integer has more than ten bytes", byte)
    starts = ends - lengths + 1
    shifts = (np.arange(len(coded)) - np.repeat(starts, lengths)).astype(np.uint64) * np.uint64(7)
    bits = (coded & 0x7F).astype(np.uint64) << shifts
    values: NDArray[np.int64] = np.bitwise_or.reduceat(bits, starts).view(np.int64)
    return values


def _fields(
    data: bytes, spans: Iterable[_Bounds], *, most: int, numbers: int | None = None
) -> Iterator[tuple[int, int, int]]:
    """Yield number and span of every field of a message; a message in several ``spans`` is merged.

    Accepts length-delimited fields with numbers up to ``most``, and single values of the numeric wire type ``numbers``.
    Raises `NotAnExampleError` for any other field, which would be lost silently.
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
                _no_example(f"a field has the wire type {kind}, which such a message does not have", at)
            if stop > end:
                _no_example(f"a field ends {stop - end} bytes after its message", at)
            if not 0 < number <= most or kind not in (_LENGTH, numbers):
                field = f"the number {number} and the wire type {kind}"
                _no_example(f"a field has {field}, which such a message does not have", at)
            yield number, begin, stop
            at = stop


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    for number, byte in enumerate(data[at : min(at + _MOST_VARINT_BYTES, end)]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at + number + 1
    _no_example("a number has no end", at)


def encode_example(features: Mapping[str, Any]) -> bytes:
    """Encode features as a message; each is bytes, text, numbers, or a flat list or array of them.

    A list of lists or of arrays is a feature list, and a message with one is a ``SequenceExample``, whose other
    features are the context. Floating numbers become float32, the only type of the message; text becomes UTF-8. None is
    a feature without a kind.

    >>> parse_example(encode_example({"image": b"png", "label": 3}))
    {'image': b'png', 'label': array([3])}
    >>> parse_example(encode_example({"label": 3, "frames": [[b"one"], [b"two", b"three"]]}))
    {'label': array([3]), 'frames': [[b'one'], [b'two', b'three']]}

    Raises `UsageError` if a value is something else, or an integer does not fit into 64 bits.
    """
    check_names(features)
    context, lists = [], []
    for name, value in features.items():
        try:
            if _is_list_of_lists(name, value):
                steps = b"".join(_span(_FIRST, _encoded_feature(name, step)) for step in value)
                lists.append(_span(_FIRST, _named(name, steps)))
            else:
                context.append(_span(_FIRST, _named(name, _encoded_feature(name, value))))
        except UnicodeEncodeError as error:
            raise _refused(name, f"not text that UTF-8 can encode ({error.reason})") from None
        except UsageError:
            raise
        except ValueError as error:
            raise _refused(name, f"not flat ({error})") from None
    written = _span(_FIRST, b"".join(context)) if context or not lists else b""
    return written + (_span(_SECOND, b"".join(lists)) if lists else b"")


def _is_list_of_lists(name: str, value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    are_lists = [isinstance(step, list | tuple | np.ndarray) for step in value if step is not None]
    if any(are_lists) and not all(are_lists):
        raise _refused(name, "a list that mixes lists with other values")
    return any(are_lists)


def _named(name: str, value: bytes) -> bytes:
    return _span(_FIRST, name.encode("utf-8")) + _span(_SECOND, value)


def _encoded_feature(name: str, value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview | str):
        return _span(_BYTES, _span(_FIRST, _as_bytes(value)))
    if isinstance(value, np.timedelta64):  # which numpy counts among its integers
        raise _refused(name, str(value.dtype))
    if isinstance(value, int | np.integer | np.bool_):
        return _span(_INTEGERS, _packed_integers(name, np.array([int(value)], dtype=object)))
    if isinstance(value, float | np.floating):
        return _array(name, np.array([value]))
    if value is None:
        return b""
    if isinstance(value, np.ndarray):
        return _array(name, value)
    if isinstance(value, Sequence):
        if all(isinstance(element, bytes | str) for element in value):
            return _span(_BYTES, b"".join(_span(_FIRST, _as_bytes(element)) for element in value))
        numbers = np.array(value)
        return _array(name, np.array(value, dtype=object) if numbers.dtype == np.uint64 else numbers)
    raise _refused(name, type(value).__name__)


def _array(name: str, values: NDArray[Any]) -> bytes:
    if values.ndim != 1:
        raise _refused(name, f"an array of shape {values.shape}")
    if values.dtype.kind == "f":
        with np.errstate(over="ignore"):
            floats = values.astype("<f4")
        if not np.array_equal(np.isinf(floats), np.isinf(values)):
            raise _refused(name, f"{np.abs(values[np.isfinite(values)]).max()}, which is beyond float32")
        return _span(_FLOATS, _packed(floats.tobytes()))
    if values.dtype.kind in "iubO":
        return _span(_INTEGERS, _packed_integers(name, values))
    raise _refused(name, f"an array of {values.dtype}")


def _packed_integers(name: str, values: NDArray[Any]) -> bytes:
    """Encode integers as seven bits a byte, lowest first, the last byte of each below 128; vectorised."""
    for value in values.tolist() if values.dtype.kind in "uO" else ():
        if not isinstance(value, int) or not _LIMITS.min <= value <= _LIMITS.max:
            raise _refused(name, f"{value!r:.60}, which is not a 64-bit integer")
    bits = values.astype(np.int64).view(np.uint64)
    parts = (bits[:, None] >> (np.arange(10, dtype=np.uint64) * np.uint64(7))) & np.uint64(0x7F)
    lengths = 10 - np.argmax(parts[:, ::-1] != 0, axis=1)
    lengths[bits == 0] = 1
    numbers = np.arange(10)
    coded = parts.astype(np.uint8) | np.where(numbers < lengths[:, None] - 1, np.uint8(128), np.uint8(0))
    return _packed(coded[numbers < lengths[:, None]].tobytes())


def _packed(data: bytes) -> bytes:
    return _span(_FIRST, data) if data else b""


def _span(tag: bytes, data: bytes) -> bytes:
    """Encode a field: its tag, the length of the data, and the data."""
    length, left = bytearray(tag), len(data)
    while left > 127:
        length.append(left & 0x7F | 0x80)
        left >>= 7
    length.append(left)
    return bytes(length) + data


def _as_bytes(value: bytes | bytearray | memoryview | str) -> bytes:
    return value.encode("utf-8") if isinstance(value, str) else bytes(value)


def _refused(name: str, what: str) -> UsageError:
    msg = f"the feature {name!r} is {what}; a tf.train.Example holds bytes, text, numbers, and lists of them"
    return UsageError(msg, hint="flatten arrays and keep their shape in a feature of its own")
