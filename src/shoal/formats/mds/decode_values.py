"""The encodings of MDS columns: decoding of bytes to values, as MosaicML Streaming's writer encoded them.

All integers are little-endian. Pickles are code, and are refused unless requested by name.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.formats.decoding.images import open_image
from shoal.formats.decoding.pickles import unpickler
from shoal.hints import pip_install

Decode = Callable[[bytes], Any]

_SCALARS = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64"),
    )
}
_ARRAY_TYPES = {8 * size + place: name for size, place, name in (
    *((1, 0, "uint8"), (1, 1, "int8"), (2, 0, "uint16"), (2, 1, "int16"), (2, 2, "float16")),
    *((4, 0, "uint32"), (4, 1, "int32"), (4, 2, "float32"), (8, 0, "uint64"), (8, 1, "int64"), (8, 2, "float64")),
)}  # fmt: skip
_SHAPE_TYPES = ("u1", "<u2", "<u4", "<u8")
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
    """An image that no image file can represent exactly."""

    hint = "`shoal repack --to mds` keeps it as it is; or leave such samples out with --on-error skip"


class StoredValue(bytes):
    """The bytes of a value as they lie in a shard, for another shard with the same encoding."""


def is_list(encoding: str) -> bool:
    """Return True if values are lists.

    >>> is_list("list[pil]"), is_list("jpeg_array"), is_list("jpeg")
    (True, True, False)
    """
    return encoding.startswith("list[") or encoding in ("jpeg_array", "jpegarray")


def files_of(encoding: str) -> Decode | None:
    """Return a converter from a value's bytes to image files, as bytes: a PNG for pixels; None if values are no images.

    >>> files_of("list[jpeg]")(bytes(4) + bytes([1, 0, 0, 0, 4, 0, 0, 0]) + b"JPEG"), files_of("str")
    ([b'JPEG'], None)
    """
    return _FILES.get(encoding)


def fixed_bytes_of(encoding: str) -> int | None:
    """Return the size of every value of this encoding; None if sizes vary.

    >>> fixed_bytes_of("int"), fixed_bytes_of("ndarray:int32:2,3"), fixed_bytes_of("str")
    (8, 24, None)
    """
    if encoding == "int":
        return 8
    if encoding in _SCALARS:
        return _SCALARS[encoding].itemsize
    kind, shape = _array(encoding) if encoding.startswith("ndarray") else (None, None)
    if kind is None or shape is None:
        return None
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
    """Return the decoder of a value's bytes; it raises ValueError (or a kind of it) if they are invalid.

    Raises
    ------
    UsageError
        There is no such encoding, or it is ``pkl`` and pickles are not allowed.
    """
    if encoding.startswith("ndarray"):
        kind, shape = _array(encoding)
        return lambda data: _ndarray(data, kind, shape)
    if encoding in _SCALARS:
        scalar = _SCALARS[encoding]
        return lambda data: np.frombuffer(data, scalar, count=1)[0]
    if encoding == "pkl":
        how = "format=shoal.formats.Mds(allow_pickle=True)"
        return unpickler("a column of pickles", allow_pickle=allow_pickle, how=how)
    if encoding not in _DECODERS:
        msg = f"there is no MDS encoding {encoding!r}"
        raise UsageError(msg, hint=f"those known are {', '.join(ENCODINGS)}")
    return _DECODERS[encoding]


def _array(encoding: str) -> tuple[np.dtype[Any] | None, tuple[int, ...] | None]:
    """Return type and shape of an ndarray column, each None if every value has its own."""
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


def _ndarray(data: bytes, kind: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> Any:
    at = 0
    if kind is None:
        name = _ARRAY_TYPES.get(_byte(data, 0))
        if name is None:
            msg = f"an array has the type number {data[0]}, which means nothing"
            raise ValueError(msg)
        kind, at = _SCALARS[name], 1
    if shape is None:
        word = _byte(data, at)
        sizes = np.frombuffer(data, _SHAPE_TYPES[word & 3], count=word >> 2, offset=at + 1)
        at += 1 + sizes.nbytes
        shape = tuple(sizes.tolist())
    return np.frombuffer(data, kind, offset=at).reshape(shape).copy()


def _byte(data: bytes, at: int) -> int:
    if at >= len(data):
        msg = "an array ends before its type and shape"
        raise ValueError(msg)
    return data[at]


def _image(data: bytes) -> Any:
    _pillow()
    try:
        image = open_image(data)
        if image.width * image.height > _MOST_PIXELS_OF_FEW_BYTES + _MOST_PIXELS_A_BYTE * len(data):
            msg = f"an image of {len(data)} bytes claims {image.width} x {image.height} pixels"
            raise ValueError(msg)  # noqa: TRY301  # like any other defect
        image.load()  # now, while an error can still name its sample
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001  # Pillow raises anything for damaged images
        msg = f"{type(error).__name__}: {error}"
        raise ValueError(msg) from None
    return image


def _raw_image(data: bytes) -> Any:
    width, height, mode_bytes = np.frombuffer(data, "<u4", count=3).tolist()
    if max(width * height, width, height) > _MOST_PIXELS:
        msg = f"an image claims {width} x {height} pixels"
        raise ValueError(msg)
    mode, pixels = data[12 : 12 + mode_bytes].decode("utf-8"), data[12 + mode_bytes :]
    if width * height > 8 * len(pixels):  # at least one bit a pixel; Pillow allocates memory before it checks
        msg = f"an image claims {width} x {height} pixels, in {len(pixels)} bytes"
        raise ValueError(msg)
    return _pillow().frombytes(mode, (width, height), pixels)


def _png_of(data: bytes) -> bytes:
    image = _raw_image(data)
    if image.mode not in _MODES_OF_PNG:
        msg = f"has an image of mode {image.mode}, and no PNG is the same"
        raise NoFileError(msg)
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
            msg = f"a list of {count} elements has {len(data)} bytes instead of {at}"
            raise ValueError(msg)
        return values

    return decode_list


def _pillow() -> Any:
    try:
        from PIL import Image  # noqa: PLC0415  # optional
    except ImportError:
        msg = "this shard has a column of images, which needs Pillow, which is not installed"
        raise UsageError(msg, hint=pip_install("images")) from None
    return Image


def _decimal(data: bytes) -> Decimal:
    try:
        return Decimal(data.decode("utf-8"))
    except ArithmeticError:
        msg = f"{data[:40]!r} is no decimal number"
        raise ValueError(msg) from None


_DECODERS: dict[str, Decode] = {
    "bytes": bytes,
    "str": lambda data: data.decode("utf-8"),
    "int": lambda data: int(np.frombuffer(data, "<i8", count=1)[0]),
    "str_int": lambda data: int(data.decode("utf-8")),
    "str_float": lambda data: float(data.decode("utf-8")),
    "str_decimal": _decimal,
    "json": json.loads,
    "pil": _raw_image,
    "jpeg": _image,
    "png": _image,
    "list[pil]": _list_of(_raw_image, unused_bytes=4),
    "list[jpeg]": _list_of(_image, unused_bytes=4),
    "list[png]": _list_of(_image, unused_bytes=4),
    "jpeg_array": _list_of(_image, unused_bytes=0),
    "jpegarray": _list_of(_image, unused_bytes=0),
}

_FILES: dict[str, Decode] = {
    "jpeg": bytes,
    "png": bytes,
    "pil": _png_of,
    "list[jpeg]": _list_of(bytes, unused_bytes=4),
    "list[png]": _list_of(bytes, unused_bytes=4),
    "list[pil]": _list_of(_png_of, unused_bytes=4),
    "jpeg_array": _list_of(bytes, unused_bytes=0),
    "jpegarray": _list_of(bytes, unused_bytes=0),
}
