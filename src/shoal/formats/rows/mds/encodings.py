"""Conversion between values and bytes in MDS columns, as in MosaicML Streaming.

All integers are little-endian. Pickles are code, and are refused unless requested by name.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.formats.decoding.images import open_image, pillow
from shoal.formats.decoding.json_text import json_parser, strict_parser
from shoal.formats.decoding.pickles import unpickler
from shoal.formats.rows.lines.json_values import check_keys, plain_number
from shoal.hints import pointer_in

Decode = Callable[[bytes], Any]

_ARRAY_NUMBERS: Mapping[str, int] = {
    "uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "uint32": 32, "int32": 33, "float32": 34,
    "uint64": 64, "int64": 65, "float64": 66,
}  # fmt: skip
_ARRAY_TYPES = {number: name for name, number in _ARRAY_NUMBERS.items()}
_SCALARS = {name: np.dtype(name).newbyteorder("<") for name in _ARRAY_NUMBERS}
_SHAPE_TYPES = ("<u1", "<u2", "<u4", "<u8")
_MOST_PIXELS = 1 << 28
# As in a PNG of one bit a pixel: deflate expands a byte to at most 1032. Real images have far fewer.
_MOST_PIXELS_A_BYTE, _MOST_PIXELS_OF_FEW_BYTES = 8 * 1032, 1 << 20

# In these modes a PNG is exact; MDS does not keep the colours of a palette ("P"), and a PNG keeps 16 bits of "I".
_MODES_OF_PNG = ("1", "L", "LA", "RGB", "RGBA", "I;16")

ENCODINGS = (
    *("bytes", "str", "int", "ndarray", *_SCALARS, "str_int", "str_float", "str_decimal"),
    *("pil", "jpeg", "jpeg_array", "jpegarray", "png", "list[pil]", "list[jpeg]", "list[png]", "pkl", "json"),
)


class NoFileError(ValueError):
    """An image that no image file can represent exactly, or a pointer file; ``hint`` is the remedy."""

    def __init__(self, what: str, *, hint: str = "`shoal repack --to mds` keeps it as it is") -> None:
        super().__init__(what)
        self.hint = hint


class StoredValue(bytes):
    """The bytes of a value as they lie in a shard, for another shard with the same encoding."""


def is_list(encoding: str) -> bool:
    """Return True if values are lists.

    >>> is_list("list[pil]"), is_list("jpeg_array"), is_list("jpeg")
    (True, True, False)
    """
    return encoding.startswith("list[") or encoding in ("jpeg_array", "jpegarray")


def files_of(encoding: str) -> Decode | None:
    """Return a converter from a value's bytes to image files, as bytes (PNG for pixels); None if values are not images.

    >>> files_of("list[jpeg]")(bytes(4) + bytes([1, 0, 0, 0, 4, 0, 0, 0]) + b"JPEG"), files_of("str")
    ([b'JPEG'], None)
    """
    return _FILES.get(encoding)


def fixed_bytes_of(encoding: str) -> int | None:
    """Return the size of every value of this encoding; None if sizes vary.

    >>> fixed_bytes_of("int"), fixed_bytes_of("ndarray:int32:2,3"), fixed_bytes_of("str")
    (8, 24, None)
    """
    if (array := array_of(encoding)) is None:
        return None
    kind, shape = array
    return int(np.prod(shape, dtype=object)) * kind.itemsize


def array_of(encoding: str) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Return type and shape of every value of this encoding, if all are numbers of one type and shape; else None.

    >>> array_of("ndarray:uint8:2,3"), array_of("str")
    ((dtype('uint8'), (2, 3)), None)
    """
    if encoding == "int":
        return np.dtype("<i8"), ()
    if encoding in _SCALARS:
        return _SCALARS[encoding], ()
    kind, shape = _array(encoding) if encoding.startswith("ndarray") else (None, None)
    return None if kind is None or shape is None else (kind, shape)


def decoder_of(encoding: str, *, allow_pickle: bool) -> Decode:
    """Return the decoder of a value's bytes; the decoder raises ValueError (or a subclass) for invalid bytes.

    Raises `UsageError` if the encoding does not exist, or is ``pkl`` and pickles are not allowed.
    """
    if encoding.startswith("ndarray"):
        kind, shape = _array(encoding)
        return lambda data: _decoded_array(data, kind, shape)
    if encoding in _SCALARS:
        scalar = _SCALARS[encoding]
        return lambda data: np.frombuffer(data, scalar, count=1)[0]
    if encoding == "pkl":
        how = "format=shoal.formats.Mds(allow_pickle=True)"
        return unpickler("a column of pickles", allow_pickle=allow_pickle, how=how)
    if encoding == "json":
        return json_parser(json.loads)
    if encoding not in _DECODERS:
        raise UsageError(f"there is no MDS encoding {encoding!r}", hint=f"the encodings are {', '.join(ENCODINGS)}")
    return _DECODERS[encoding]


def _array(encoding: str) -> tuple[np.dtype[Any] | None, tuple[int, ...] | None]:
    """Return type and shape of an ndarray column; None for a type or a shape that each value stores itself."""
    parts = encoding.split(":")
    try:
        kind = _SCALARS[parts[1]] if len(parts) > 1 else None
        shape = tuple(map(int, parts[2].split(","))) if len(parts) > 2 else None
    except (KeyError, ValueError):
        kind, shape = None, (0,)
    if parts[0] != "ndarray" or len(parts) > 3 or (shape is not None and min(shape) < 1):
        msg = f"there is no MDS encoding {encoding!r}"
        raise UsageError(msg, hint="arrays are ndarray, ndarray:DTYPE or ndarray:DTYPE:N,M")
    return kind, shape


def _decoded_array(data: bytes, kind: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> Any:
    """Decode an array; a type or a shape that the encoding lacks is stored before the values."""
    at = int(kind is None)
    if len(data) < at + (shape is None):
        raise ValueError("an array ends before its type and shape")
    if kind is None:
        name = _ARRAY_TYPES.get(data[0])
        if name is None:
            raise ValueError(f"an array has the unknown type number {data[0]}")
        kind = _SCALARS[name]
    if shape is None:
        word = data[at]
        sizes = np.frombuffer(data, _SHAPE_TYPES[word & 3], count=word >> 2, offset=at + 1)
        at += 1 + sizes.nbytes
        shape = tuple(sizes.tolist())
    return np.frombuffer(data, kind, offset=at).reshape(shape).copy()


def _file(data: bytes) -> bytes:
    """Return the file of an image as it is; raises `NoFileError` for a pointer to one."""
    if pointer := pointer_in(data):
        raise NoFileError(f"has no image: {pointer[0]}", hint=f"{pointer[1]}, and write the shard again")
    return data


def _image(data: bytes) -> Any:
    pillow("a column of images")
    try:
        image = open_image(data)
        if image.width * image.height > _MOST_PIXELS_OF_FEW_BYTES + _MOST_PIXELS_A_BYTE * len(data):
            raise ValueError(f"an image of {len(data)} bytes claims {image.width} x {image.height} pixels")
        image.load()  # now, while an error can still name its sample
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises anything for damaged images
        _file(data)
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return image


def _raw_image(data: bytes) -> Any:
    width, height, mode_bytes = np.frombuffer(data, "<u4", count=3).tolist()
    if max(width * height, width, height) > _MOST_PIXELS:
        raise ValueError(f"an image claims {width} x {height} pixels")
    mode, pixels = data[12 : 12 + mode_bytes].decode("utf-8"), data[12 + mode_bytes :]
    if width * height > 8 * len(pixels):  # at least one bit a pixel; Pillow allocates memory before it checks
        raise ValueError(f"an image claims {width} x {height} pixels, in {len(pixels)} bytes")
    return pillow("a column of images").frombytes(mode, (width, height), pixels)


def _png_of(data: bytes) -> bytes:
    image = _raw_image(data)
    if image.mode not in _MODES_OF_PNG:
        raise NoFileError(f"has an image of mode {image.mode}, which no PNG can hold exactly")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _list_of(decode: Decode, *, unused_bytes: int) -> Decode:
    """Return the decoder of lists: some unused bytes, the number of elements, the size of each, the elements."""

    def decode_list(data: bytes) -> list[Any]:
        count = int(np.frombuffer(data, "<u4", count=1, offset=unused_bytes)[0])
        sizes = np.frombuffer(data, "<u4", count=count, offset=unused_bytes + 4).tolist()
        values, at = [], unused_bytes + 4 + 4 * count
        for size in sizes:
            values.append(decode(data[at : at + size]))
            at += size
        if at != len(data):
            raise ValueError(f"a list of {count} elements has {len(data)} bytes instead of {at}")
        return values

    return decode_list


def _decimal(data: bytes) -> Decimal:
    try:
        return Decimal(data.decode("utf-8"))
    except ArithmeticError as error:
        raise ValueError(f"{data[:40]!r} is not a decimal number") from error


def _with_lists(decoders: Mapping[str, Decode]) -> dict[str, Decode]:
    """Add the encodings of lists of images."""
    lists = {f"list[{kind}]": _list_of(decoders[kind], unused_bytes=4) for kind in ("pil", "jpeg", "png")}
    arrays = dict.fromkeys(("jpeg_array", "jpegarray"), _list_of(decoders["jpeg"], unused_bytes=0))
    return {**decoders, **lists, **arrays}


_FILES = _with_lists({"jpeg": _file, "png": _file, "pil": _png_of})
_DECODERS: dict[str, Decode] = {
    "bytes": bytes,
    "str": bytes.decode,  # from UTF-8
    "int": lambda data: int.from_bytes(data, "little", signed=True),
    "str_int": lambda data: int(data.decode("utf-8")),
    "str_float": lambda data: float(data.decode("utf-8")),
    "str_decimal": _decimal,
    **_with_lists({"jpeg": _image, "png": _image, "pil": _raw_image}),
}
_COMPILED: Mapping[Decode, int] = {_DECODERS["int"]: 1, _DECODERS["str"]: 2, _DECODERS["bytes"]: 3}


def compiled_kind(decode: Decode) -> int | Decode:
    """Return the number that `shoal.formats._cutting` has for a decoder, else the function that it calls instead.

    The function may refuse bytes that the decoder accepts; otherwise both return the same value.
    """
    if decode is json_parser(json.loads):
        strict = strict_parser()
        return decode if strict is None else strict[0]
    return _COMPILED.get(decode, decode)


def encoding_for(value: Any) -> str:
    """Return the encoding of a column whose first value is this.

    >>> encoding_for(3), encoding_for(np.zeros((2, 3), np.float32)), encoding_for({"a": 1})
    ('int', 'ndarray', 'json')
    """
    if isinstance(value, np.ndarray):
        return "ndarray"
    if isinstance(value, np.generic):
        return str(value.dtype) if str(value.dtype) in _ARRAY_NUMBERS else "json"
    if isinstance(value, bool):
        return "json"
    return next((name for kinds, name in _PLAIN if isinstance(value, kinds)), "json")


def is_written(encoding: str) -> bool:
    """Return True if values can be written in this encoding; others are only read.

    >>> is_written("ndarray:int8:3"), is_written("pil")
    (True, False)
    """
    return array_of(encoding) is not None or encoding.startswith("ndarray") or encoding in _ENCODERS


def encode_value(encoding: str, value: Any) -> bytes:
    """Encode a value.

    Raises `ValueError` if it does not fit this encoding; `UsageError` if this encoding is not written.
    """
    if isinstance(value, StoredValue):
        return value
    if encoding.startswith("ndarray"):
        return _encoded_array(encoding, np.asarray(value))
    if (known := array_of(encoding)) is not None:
        return _encoded_scalar(known[0], value)
    if encoding not in _ENCODERS:
        msg = f"MDS columns of encoding {encoding!r} can be read, but not written"
        raise UsageError(msg, hint="write images as they are, with the encoding jpeg or png; never pickles")
    kinds, encode = _ENCODERS[encoding]
    if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not object):
        raise ValueError(f"{type(value).__name__} cannot be stored as {encoding.removeprefix('str_')}")
    try:
        return encode(value)
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error


def _encoded_scalar(kind: np.dtype[Any], value: Any) -> bytes:
    if value is None or isinstance(value, str | bytes | bool) or np.ndim(value):  # numpy turns None into NaN
        raise ValueError(f"{type(value).__name__} cannot be stored as {kind.name}")
    try:
        with np.errstate(over="ignore"):
            array = np.array([value], dtype=kind)
    except (OverflowError, TypeError) as error:
        raise ValueError(str(error)) from error
    plain, stored = value.item() if isinstance(value, np.ndarray | np.generic) else value, array[0].item()
    # A floating number is rounded to the nearest, but not to infinity; an integer must be stored exactly.
    is_whole = kind.kind in "iu" or isinstance(plain, int)
    if stored != plain if is_whole else math.isinf(stored) and not math.isinf(plain):
        raise ValueError(f"{value!r} cannot be stored as {kind.name}")
    return array.tobytes()


def _encoded_array(encoding: str, value: np.ndarray[Any, Any]) -> bytes:
    """Encode an array; type and shape precede it if the encoding does not give them."""
    kind, shape = _array(encoding)
    name = str(value.dtype)
    if name not in _ARRAY_NUMBERS or (kind is not None and kind.name != name):
        raise ValueError(f"an array of {name}, but the column is {encoding}")
    data = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("<")).tobytes()
    if shape is None:
        return (b"" if kind is not None else bytes([_ARRAY_NUMBERS[name]])) + _encoded_shape(value.shape) + data
    if value.shape != shape:
        raise ValueError(f"an array of shape {value.shape}, but the column is {encoding}")
    return data


def _encoded_shape(shape: tuple[int, ...]) -> bytes:
    """Encode a shape: the number of sizes and their width in one byte, then the sizes."""
    largest = max(shape, default=0)
    word = next(word for word, kind in enumerate(_SHAPE_TYPES) if largest <= np.iinfo(kind).max)
    if len(shape) > 63:
        raise ValueError(f"an array of {len(shape)} dimensions")
    return bytes([len(shape) << 2 | word]) + np.array(shape, dtype=_SHAPE_TYPES[word]).tobytes()


def _json(value: Any) -> bytes:
    data = json.dumps(value, default=plain_number).encode()
    if b"{" in data:
        check_keys(value)
    return data


_BYTES = (bytes, bytearray, memoryview)
_PLAIN = ((_BYTES, "bytes"), (str, "str"), (int, "int"), (float, "float64"))
_ENCODERS: Mapping[str, tuple[type | tuple[type, ...], Callable[[Any], bytes]]] = {
    "bytes": (_BYTES, bytes),
    "str": (str, str.encode),
    "json": (object, _json),
    "jpeg": (_BYTES, bytes),  # files as they are
    "png": (_BYTES, bytes),
    "str_int": (int, lambda value: str(value).encode()),
    "str_float": (float, lambda value: str(value).encode()),
    "str_decimal": (Decimal, lambda value: str(value).encode()),
}
