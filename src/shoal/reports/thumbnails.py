"""Thumbnails of images in samples, for pages: recognized by their first bytes, and read by Pillow if installed."""

from __future__ import annotations

import io
from typing import Any, NamedTuple

from shoal.formats.decoding.images import image_decoder

_SIGNS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM")
_MOST_PIXELS = 160  # of the longer side; pages show half of that, which is sharp on high-density screens too


class Thumbnail(NamedTuple):
    """A JPEG, and the size of the image that it shows."""

    jpeg: bytes
    width: int
    height: int


def is_image(value: Any) -> bool:
    r"""Return True if these are the bytes of an image, judged by their first bytes.

    >>> is_image(b"\xff\xd8\xff\xe0"), is_image(b"text"), is_image("text")
    (True, False, False)
    """
    if not isinstance(value, bytes):
        return False
    return value.startswith(_SIGNS) or (value[:4] == b"RIFF" and value[8:12] == b"WEBP")


def thumbnail(value: bytes) -> Thumbnail | None:
    """Return a thumbnail of an image, or None if it cannot be read: it is damaged, or Pillow is not installed."""
    try:
        image: Any = image_decoder("pil")(value)
        width, height = image.size
        image = image.convert("RGB")
        image.thumbnail((_MOST_PIXELS, _MOST_PIXELS))
        file = io.BytesIO()
        image.save(file, "JPEG", quality=80)
    except Exception:  # noqa: BLE001  # any error of an image library on damaged bytes; the page reports it
        return None
    return Thumbnail(file.getvalue(), width, height)
