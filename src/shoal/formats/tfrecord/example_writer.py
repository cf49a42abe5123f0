"""A writer of ``tf.train.Example`` and ``SequenceExample`` without TensorFlow; the reader is beside it.

Features keep the order of the sample: equal samples give equal bytes, which protobuf does not promise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.writing.encoder import check_names

_BYTES, _FLOATS, _INTEGERS = b"\x0a", b"\x12", b"\x1a"  # fields 1, 2, 3 of a Feature, each length-delimited
_LIMITS = np.iinfo(np.int64)


def encode_example(features: Mapping[str, Any]) -> bytes:
    """Encode features as a message; each is bytes, text, numbers, or a flat list or array of those.

    A list of lists or of arrays is a feature list, and a message with one is a ``SequenceExample``, whose other
    features are the context. Floating numbers become float32, all that the message has; text becomes UTF-8. None is a
    feature without a kind.

    >>> from shoal.formats.tfrecord.example_reader import parse_example
    >>> parse_example(encode_example({"image": b"png", "label": 3}))
    {'image': b'png', 'label': array([3])}
    >>> parse_example(encode_example({"label": 3, "frames": [[b"one"], [b"two", b"three"]]}))
    {'label': array([3]), 'frames': [[b'one'], [b'two', b'three']]}

    Raises
    ------
    UsageError
        A value is something else, or an integer does not fit into 64 bits.
    """
    check_names(features)
    context, lists = [], []
    for name, value in features.items():
        try:
            if _is_list_of_lists(name, value):
                steps = b"".join(_span(b"\x0a", _feature(name, step)) for step in value)
                lists.append(_span(b"\x0a", _named(name, steps)))
            else:
                context.append(_span(b"\x0a", _named(name, _feature(name, value))))
        except UnicodeEncodeError as error:
            raise _refused(name, f"no text that could be written ({error.reason}),") from None
        except ValueError as error:
            if isinstance(error, UsageError):
                raise
            raise _refused(name, f"nothing flat ({error}),") from None
    written = _span(b"\x0a", b"".join(context)) if context or not lists else b""
    return written + (_span(b"\x12", b"".join(lists)) if lists else b"")


def _is_list_of_lists(name: str, value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    are_lists = [isinstance(step, list | tuple | np.ndarray) for step in value if step is not None]
    if any(are_lists) and not all(are_lists):
        raise _refused(name, "a list of lists and of what is none")
    return any(are_lists)


def _named(name: str, value: bytes) -> bytes:
    return _span(b"\x0a", name.encode("utf-8")) + _span(b"\x12", value)


def _feature(name: str, value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview | str):
        return _list(_BYTES, _span(b"\x0a", _as_bytes(value)))
    if isinstance(value, np.timedelta64):  # which numpy counts among its integers
        raise _refused(name, str(value.dtype))
    if isinstance(value, int | np.integer | np.bool_):
        return _list(_INTEGERS, _packed(_varints(_int64(np.array([int(value)], dtype=object), name))))
    if isinstance(value, float | np.floating):
        return _array(name, np.array([value]))
    if value is None:
        return b""
    if isinstance(value, np.ndarray):
        return _array(name, value)
    if isinstance(value, Sequence):
        if all(isinstance(element, bytes | str) for element in value):
            return _list(_BYTES, b"".join(_span(b"\x0a", _as_bytes(element)) for element in value))
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
            raise _refused(name, f"{np.abs(values[np.isfinite(values)]).max()}, which is beyond float32,")
        return _list(_FLOATS, _packed(floats.tobytes()))
    if values.dtype.kind in "iubO":
        return _list(_INTEGERS, _packed(_varints(_int64(values, name))))
    raise _refused(name, f"an array of {values.dtype}")


def _int64(values: NDArray[Any], name: str) -> NDArray[np.int64]:
    if values.dtype.kind in "uO":
        wrong = [value for value in values.tolist() if not isinstance(value, int) or not _fits(value)]
        if wrong:
            raise _refused(name, f"{wrong[0]!r:.60}, which is no integer of 64 bits,")
    return values.astype(np.int64)


def _fits(value: int) -> bool:
    return int(_LIMITS.min) <= value <= int(_LIMITS.max)


def _varints(values: NDArray[np.int64]) -> bytes:
    """Encode each integer as seven bits a byte, lowest first, the last byte of each below 128; vectorised."""
    bits = values.view(np.uint64)
    pieces = (bits[:, None] >> (np.arange(10, dtype=np.uint64) * np.uint64(7))) & np.uint64(0x7F)
    lengths = 10 - np.argmax(pieces[:, ::-1] != 0, axis=1)
    lengths[bits == 0] = 1
    places = np.arange(10)
    found = pieces.astype(np.uint8) | np.where(places < lengths[:, None] - 1, np.uint8(128), np.uint8(0))
    data: bytes = found[places < lengths[:, None]].tobytes()
    return data


def _packed(data: bytes) -> bytes:
    return _span(b"\x0a", data) if data else b""


def _list(kind: bytes, data: bytes) -> bytes:
    return _span(kind, data)


def _span(tag: bytes, data: bytes) -> bytes:
    return tag + _length(len(data)) + data


def _length(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _as_bytes(value: bytes | bytearray | memoryview | str) -> bytes:
    return value.encode("utf-8") if isinstance(value, str) else bytes(value)


def _refused(name: str, what: str) -> UsageError:
    msg = f"the feature {name!r} is {what} and a tf.train.Example holds bytes, text, numbers, and lists of them"
    return UsageError(msg, hint="flatten arrays and keep their shape in a feature of its own")
