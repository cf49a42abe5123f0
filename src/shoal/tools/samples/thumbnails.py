"""Pictures of samples as small files for pages: stored images, decoded pictures, and arrays of pixels.

Pillow scales pictures and writes JPEG. Without Pillow, small stored images are shown as they are, and arrays as PNG.
"""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import counted
from shoal.formats.decoding.images import image_decoder, open_image, pillow

_SIGNATURES = {
    b"\xff\xd8\xff": "jpeg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"GIF8": "gif",
    b"BM": "bmp",
}
_MOST_PIXELS = 160  # of the longer side of a thumbnail; also sharp on dense screens
_MOST_DECODED = 1 << 26  # pixels of an image, which takes four bytes for each
_MOST_AS_STORED = 1 << 16  # bytes of an image that is shown as it is
_MOST_EXACT = 40  # pixels of the longer side of a picture that is enlarged without loss
_LEAST_SIDE = 4  # a smaller array is a matrix
_CHANNELS = (1, 3, 4)


class Thumbnail(NamedTuple):
    """A picture as an address of a page, its width and height there, and its facts in words.

    A height of 0 is unknown.
    """

    url: str
    width: int
    height: int
    words: str
    is_enlarged: bool = False


def thumbnail_of(value: Any) -> Thumbnail | None:
    """Return a thumbnail of an image, a picture of Pillow, or an array or tensor of pixels; None for other values.

    Raises an error of any type if an image is damaged; `UsageError` if Pillow is missing.
    """
    if isinstance(value, bytes | memoryview):
        data = bytes(value)
        kind = _kind_of(data)
        return None if kind is None else _of_stored(data, kind)
    if all(hasattr(value, name) for name in ("mode", "size", "convert", "getbands")):
        return _of_picture(value.copy(), f"{value.size[0]} by {value.size[1]} pixels, {value.mode}")
    if isinstance(value, tuple) and len(value) == 2 and len(getattr(value[0], "shape", ())) == 4:
        return _of_video(*value)
    pixels = _pixels_of(value)
    return None if pixels is None else _of_pixels(*pixels)


def is_image(value: Any) -> bool:
    """Return True if bytes begin like an image that pages can show."""
    return isinstance(value, bytes | memoryview) and _kind_of(bytes(value[:16])) is not None


def as_png(pixels: NDArray[np.uint8]) -> bytes:
    """Write pixels of shape (height, width, channels), with 1, 3 or 4 channels, as PNG.

    >>> as_png(np.zeros((2, 2, 3), np.uint8))[1:4]
    b'PNG'
    """
    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # every row begins with its filter: none
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def _kind_of(data: bytes) -> str | None:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    return next((kind for start, kind in _SIGNATURES.items() if data.startswith(start)), None)


def _of_stored(data: bytes, kind: str) -> Thumbnail:
    try:
        width, height = open_image(data).size
    except UsageError:  # Pillow is missing
        if len(data) > _MOST_AS_STORED:
            raise
        return Thumbnail(_url(data, kind), _MOST_PIXELS, 0, kind.upper())
    if width * height > _MOST_DECODED:
        raise ValueError(f"an image of {width} by {height} pixels is too large for a thumbnail")
    wide, high = _size_within(width, height)
    picture = image_decoder("pilrgba", (high, wide))(data)
    return _of_picture(picture, f"{width} by {height} pixels")


def _of_picture(picture: Any, words: str) -> Thumbnail:
    """Scale a picture of Pillow; only a picture with transparent pixels keeps its transparency."""
    wide, high = _size_within(*picture.size)
    if (wide, high) != picture.size:
        mode = picture.mode if picture.mode in ("L", "RGB", "RGBA") else "RGBA" if _may_be_clear(picture) else "RGB"
        picture = picture.convert(mode).resize((wide, high), pillow("a thumbnail").Resampling.BILINEAR)
    file, is_clear = io.BytesIO(), _may_be_clear(picture) and picture.convert("RGBA").getextrema()[3][0] < 255
    is_png = is_clear or max(wide, high) <= _MOST_EXACT
    if is_png:
        picture.convert("RGBA" if is_clear else "RGB").save(file, "PNG")
    else:
        picture.convert("RGB").save(file, "JPEG", quality=80)
    return _shown(_url(file.getvalue(), "png" if is_png else "jpeg"), wide, high, words)


def _may_be_clear(picture: Any) -> bool:
    return "A" in picture.getbands() or "transparency" in picture.info


def _of_pixels(pixels: NDArray[np.uint8], words: str) -> Thumbnail:
    height, width = pixels.shape[:2]
    try:
        library = pillow("a thumbnail")
    except UsageError:
        step = max(1, -(-max(width, height) // _MOST_PIXELS))
        small = pixels[::step, ::step]
        return _shown(_url(as_png(small), "png"), small.shape[1], small.shape[0], words)
    return _of_picture(library.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels), words)


def _of_video(frames: Any, rate: Any) -> Thumbnail | None:
    """Return the frame in the middle of a decoded video: frames and their number per second."""
    pixels = _pixels_of(frames[len(frames) // 2]) if len(frames) else None
    if pixels is None:
        return None
    height, width = pixels[0].shape[:2]
    words = f"the middle of {counted(len(frames), 'frame')} of {width} by {height} pixels, {float(rate):.4g} a second"
    return _of_pixels(pixels[0], words)


def _pixels_of(value: Any) -> tuple[NDArray[np.uint8], str] | None:
    """Return an array or tensor as pixels of shape (height, width, channels), and its facts; None if it is no image."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")) or len(value.shape) not in (2, 3):
        return None
    if value.shape[0] * value.shape[1] > _MOST_DECODED:
        return None
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    words = f"{str(value.dtype).removeprefix('torch.')} array of shape {tuple(array.shape)}"
    if array.ndim == 2:
        array = array[..., None] if array.dtype.kind in "ub" or _is_share(array) else np.empty((0, 0, 0))
    elif array.shape[2] not in _CHANNELS and array.shape[0] in _CHANNELS:
        array = array.transpose(1, 2, 0)
    if array.shape[2] not in _CHANNELS or min(array.shape[:2]) < _LEAST_SIDE or array.dtype.kind not in "ubf":
        return None
    if array.dtype.kind == "f":
        finite = array[np.isfinite(array)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        if low < 0.0 or high > 1.0:
            words += f", {low:.3g} to {high:.3g} shown as black to white"
            array = (array - low) / max(high - low, 1e-12)
        array = np.nan_to_num(array, posinf=1.0, neginf=0.0).clip(0.0, 1.0) * 255.0
    elif array.dtype == np.bool_:
        array = array * np.uint8(255)
    elif array.dtype != np.uint8:
        array = array >> np.uint8(8 * (array.dtype.itemsize - 1))
    rounded = array.round() if array.dtype.kind == "f" else array
    return np.ascontiguousarray(rounded.astype(np.uint8)), words


def _is_share(array: NDArray[Any]) -> bool:
    """Return True for floating numbers from 0 to 1."""
    is_float = array.dtype.kind == "f" and array.size > 0
    return bool(is_float and array.min() >= 0.0 and array.max() <= 1.0)


def _size_within(width: int, height: int) -> tuple[int, int]:
    """Return the size of a picture that is no larger than a thumbnail."""
    scale = min(1.0, _MOST_PIXELS / max(width, height, 1))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _shown(url: str, width: int, height: int, words: str) -> Thumbnail:
    """Return a picture in its size on the page: a small picture is enlarged by a whole number."""
    times = max(1, _MOST_PIXELS // max(width, height, 1))
    return Thumbnail(url, width * times, height * times, words, times > 1)


def _url(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
