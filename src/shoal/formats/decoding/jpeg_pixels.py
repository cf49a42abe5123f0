"""Pixels of a JPEG by libjpeg-turbo itself, without the interpreter's lock; the same pixels as Pillow's."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_BEGINNING = b"\xff\xd8\xff"
_NAMED = {"RGB": "RGB", "RGBA": "RGBA", "L": "GRAY"}


class JpegPixels(NamedTuple):
    """Pixels of shape (height, width, bands) or (height, width), and the height and width of the image in them.

    Scaling rounds up to whole pixels: of an image of 100 x 333 scaled by 1/8, (12.5, 41.625) of (13, 42) are covered.
    """

    pixels: NDArray[np.uint8]
    extent: tuple[float, float]


def jpeg_pixels(
    data: bytes, mode: str, *, most_pixels: int | None, least: tuple[int, int] | None = None
) -> JpegPixels | None:
    """Return the pixels of a JPEG; None if Pillow must decode them.

    That is for whatever is no JPEG, is damaged, has other colours than YCbCr and grey, is to become grey but has
    colours, or has more than ``most_pixels`` pixels; and if simplejpeg is not installed. Pillow then decides what is
    an error. Both use libjpeg-turbo with exact transforms and smooth upsampling, and give equal pixels.

    With ``least``, a height and a width, the image is scaled while its cosine transform is undone: by 1/8, 1/4 or 1/2,
    the smallest of them that leaves it no smaller, as Pillow's ``draft`` does.
    """
    library = _simplejpeg()
    if library is None or data[:3] != _BEGINNING:
        return None
    try:
        height, width, colors, _ = library.decode_jpeg_header(data)
        if (most_pixels is not None and height * width > most_pixels) or not _is_alike(colors, mode):
            return None
        scale = _scale((height, width), least)
        # The scale that leaves these, rounded up as libjpeg does.
        limits = {"min_height": -(-height // scale), "min_width": -(-width // scale), "min_factor": scale}
        pixels: NDArray[np.uint8] = library.decode_jpeg(data, _NAMED[mode], **limits)
    except ValueError:
        return None
    return JpegPixels(pixels[..., 0] if mode == "L" else pixels, (height / scale, width / scale))


def decodes_without_lock() -> bool:
    """Return True if JPEGs are decoded without the interpreter's lock, as by simplejpeg; Pillow keeps it for a part."""
    return _simplejpeg() is not None


def _scale(size: tuple[int, int], least: tuple[int, int] | None) -> int:
    """Return the divisor of a height and a width; those of Pillow, which libjpeg-turbo also scales fastest by."""
    if least is None:
        return 1
    most = min(size[0] // least[0], size[1] // least[1])
    return next((scale for scale in (8, 4, 2) if scale <= most), 1)


def _is_alike(colors: str, mode: str) -> bool:
    # Grey of colours is a matter of weights, which are Pillow's own.
    return colors == "Gray" or (colors == "YCbCr" and mode != "L")


@cache
def _simplejpeg() -> Any:
    try:
        import simplejpeg  # noqa: PLC0415  # optional
    except ImportError:
        return None
    return simplejpeg
