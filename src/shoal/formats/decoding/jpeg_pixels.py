"""Pixels of a JPEG by libjpeg-turbo itself, without the interpreter's lock; the same pixels as Pillow's."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_BEGINNING = b"\xff\xd8\xff"
_NAMED = {"RGB": "RGB", "RGBA": "RGBA", "L": "GRAY"}


class JpegPixels(NamedTuple):
    """Pixels, shape (height, width, bands) or (height, width), and the height and width that the image covers.

    Scaling rounds up to whole pixels: an image of 100 x 333 scaled by 1/8 covers (12.5, 41.625) of (13, 42).
    """

    pixels: NDArray[np.uint8]
    extent: tuple[float, float]


def jpeg_pixels(
    data: bytes, mode: str, *, most_pixels: int | None, least: tuple[int, int] | None = None
) -> JpegPixels | None:
    """Return the pixels of a JPEG; None if Pillow must decode it, and decide about errors.

    Pillow decodes damaged images, other formats, other colours than YCbCr and grey, grey from colours, and images of
    more than ``most_pixels`` pixels; and all images if simplejpeg is not installed. Both use libjpeg-turbo with exact
    transforms and smooth upsampling, and give equal pixels.

    The image is scaled while its cosine transform is undone, by the smallest of 1/8, 1/4 and 1/2 that leaves it at
    least ``least``, a height and a width, as Pillow's ``draft`` does.
    """
    library = _simplejpeg()
    if library is None or data[:3] != _BEGINNING:
        return None
    try:
        height, width, colors, _ = library.decode_jpeg_header(data)
        # Grey from colours is a matter of weights, and Pillow has its own.
        is_alike = colors == "Gray" or (colors == "YCbCr" and mode != "L")
        if (most_pixels is not None and height * width > most_pixels) or not is_alike:
            return None
        most = 1 if least is None else min(height // least[0], width // least[1])
        scale = next((scale for scale in (8, 4, 2) if scale <= most), 1)  # Pillow's, and libjpeg-turbo's fastest
        # The size that this scale gives, rounded up as by libjpeg.
        limits = {"min_height": -(-height // scale), "min_width": -(-width // scale), "min_factor": scale}
        pixels: NDArray[np.uint8] = library.decode_jpeg(data, _NAMED[mode], **limits)
    except ValueError:
        return None
    return JpegPixels(pixels[..., 0] if mode == "L" else pixels, (height / scale, width / scale))


def decodes_without_lock() -> bool:
    """Return True if simplejpeg decodes JPEGs, without the interpreter's lock; Pillow holds the lock for a while."""
    return _simplejpeg() is not None


@cache
def _simplejpeg() -> Any:
    try:
        import simplejpeg  # noqa: PLC0415  # optional
    except ImportError:
        return None
    return simplejpeg
