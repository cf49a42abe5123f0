"""Pixels of a JPEG by libjpeg-turbo itself, without the interpreter's lock; the same pixels as Pillow's."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BEGINNING = b"\xff\xd8\xff"
_NAMED = {"RGB": "RGB", "RGBA": "RGBA", "L": "GRAY"}


def jpeg_pixels(data: bytes, mode: str, *, most_pixels: int | None) -> NDArray[np.uint8] | None:
    """Return the pixels, of shape (height, width, bands) or (height, width) of "L"; None if Pillow must decode them.

    That is for whatever is no JPEG, is damaged, has other colours than YCbCr and grey, is to become grey but has
    colours, or has more than ``most_pixels`` pixels; and if simplejpeg is not installed. Pillow then decides what is
    an error. Both use libjpeg-turbo with exact transforms and smooth upsampling, and give equal pixels.
    """
    library = _simplejpeg()
    if library is None or data[:3] != _BEGINNING:
        return None
    try:
        height, width, colors, _ = library.decode_jpeg_header(data)
        if (most_pixels is not None and height * width > most_pixels) or not _is_alike(colors, mode):
            return None
        pixels: NDArray[np.uint8] = library.decode_jpeg(data, _NAMED[mode])
    except ValueError:
        return None
    return pixels[..., 0] if mode == "L" else pixels


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
