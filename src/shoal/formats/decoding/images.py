"""Decoders of images to pictures, arrays or tensors; names and values are those of WebDataset."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import cache
from operator import index
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.decoding.jpeg_pixels import jpeg_pixels
from shoal.hints import pip_install

IMAGE_SUFFIXES = (
    *("jpg", "jpeg", "jpe", "jfif", "png", "apng", "ppm", "pgm", "pbm", "pnm", "bmp", "dib", "gif", "tif", "tiff"),
    *("webp", "jp2", "j2k", "jpx", "tga", "ico", "avif"),
)
# The format of a file follows from its bytes and not from its name. Others are left out: for some Pillow runs another
# program (Ghostscript for PostScript), and many readers have not been reviewed for long.
_READ = frozenset(("JPEG", "MPO", "PNG", "PPM", "BMP", "DIB", "GIF", "TIFF", "WEBP", "JPEG2000", "TGA", "ICO", "AVIF"))

_BITS_PER_SAMPLE = 258  # the tag of TIFF


class _Spec(NamedTuple):
    """The result of an image decoder: "pil", "numpy" or "torch"; its bands (None: as stored); True for 0 to 1."""

    kind: str
    mode: str | None
    is_float: bool = False


IMAGE_SPECS: Mapping[str, _Spec] = {
    "pilraw": _Spec("pil", None),
    "pil": _Spec("pil", "RGB"),
    "pill": _Spec("pil", "L"),
    "pilrgb": _Spec("pil", "RGB"),
    "pilrgba": _Spec("pil", "RGBA"),
    **{f"{mode}8": _Spec("numpy", mode.upper()) for mode in ("l", "rgb", "rgba")},
    **{mode: _Spec("numpy", mode.upper(), is_float=True) for mode in ("l", "rgb", "rgba")},
    **{f"torch{mode}8": _Spec("torch", mode.upper()) for mode in ("l", "rgb", "rgba")},
    **{f"torch{mode}": _Spec("torch", mode.upper(), is_float=True) for mode in ("l", "rgb", "rgba")},
    "torch": _Spec("torch", "RGB", is_float=True),
}
"""Names of image decoders."""


def image_decoder(name: str, size: tuple[int, int] | None = None) -> Callable[[bytes], Any]:
    """Return the decoder for one of `IMAGE_SPECS`; it needs Pillow, and torch if it gives tensors.

    "pil" gives RGB images, "pilraw" images as they are stored. "rgb8" gives uint8 arrays of shape (height, width, 3),
    "rgb" those as float32 from 0 to 1, "l8" and "l" arrays of shape (height, width) of grey; "torchrgb8" and so on
    tensors with the bands first, shape (3, height, width). Of 16 bits the upper 8 are taken; pixels that are integers
    of 32 bits or floating numbers are an error, except by "pilraw".

    With ``size``, a height and a width, every image is resized to exactly that: a JPEG is first scaled while it is
    decoded, as far as that leaves it no smaller; the rest is done on its 8-bit bands by Pillow's bilinear filter, which
    averages over all pixels that fall on one of the result.

    Raises `UsageError` if a library that it needs is not installed, or images as they are stored are to be resized.
    """
    spec = IMAGE_SPECS[name]
    if size is not None and spec.mode is None:
        msg = f"decode({name!r}) gives images as they are stored, and pixels that are indices cannot be resized"
        raise UsageError(msg, hint='decode("pil", size=...) gives RGB images')
    library = pillow(f"decode({name!r})")
    torch = torch_for(f"decode({name!r})", "rgb8, rgb") if spec.kind == "torch" else None

    def decode(data: bytes) -> Any:
        if spec.kind != "pil" and spec.mode is not None:
            found = jpeg_pixels(data, spec.mode, most_pixels=library.MAX_IMAGE_PIXELS, least=size)
            if found is None:
                pixels = np.array(_by_pillow(data, spec.mode, size))
            elif size is None or found.pixels.shape[:2] == size == found.extent:
                pixels = found.pixels
            else:
                pixels = np.array(_resized(library.fromarray(found.pixels), size, found.extent))
            return _finished(pixels, spec, torch)
        if spec.mode is not None:
            return _by_pillow(data, spec.mode, size)
        image = open_image(data)
        image.load()  # now, while an error can still name its sample
        return image

    return decode


def exact_size(size: Any) -> tuple[int, int]:
    """Return a height and a width as two integers, given those or one of a square; raises `UsageError`.

    >>> exact_size(224), exact_size((240, 320))
    ((224, 224), (240, 320))
    """
    pair = (size, size) if isinstance(size, int | np.integer) else size
    if isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(each, int | np.integer) for each in pair):
        height, width = map(index, pair)
        if height > 0 and width > 0:
            return height, width
    msg = f"size= takes a height and a width in pixels; got {size!r}"
    raise UsageError(msg, hint="size=(240, 320), or size=224 for a square")


def _by_pillow(data: bytes, mode: str, size: tuple[int, int] | None) -> Any:
    image = open_image(data)
    # Scales a JPEG while it is decoded, and does nothing to others.
    drafted = None if size is None else image.draft(None, size[::-1])
    image.load()
    # If the bands are right, converting is only a copy, during which Pillow blocks other threads.
    converted = image if image.mode == mode else _converted(image, mode)
    if size is None:
        return converted
    width, height = image.size if drafted is None else drafted[1][2:]
    return _resized(converted, size, (height, width))


def _converted(image: Any, mode: str) -> Any:
    """Return an image in one of the modes of 8 bits; of 16 bits the upper 8, as Pillow reads those of colours.

    Pillow itself would clip: 65535 and 255 alike to 255. Raises `ValueError` for numbers whose range nothing tells.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        bits = image.tag_v2.get(_BITS_PER_SAMPLE, (16,))[0] if image.format == "TIFF" else 16
        upper = (np.asarray(image) >> (bits - 8)).astype(np.uint8)
        image = pillow("an image").fromarray(upper)
    elif image.mode in ("I", "F"):
        stored = "floating numbers" if image.mode == "F" else "integers of 32 bits"
        instead = 'decode("pilraw") gives them as stored'
        raise ValueError(f"the pixels are {stored}, and nothing says which are black and white: {instead}")
    elif image.mode == "LAB" and mode == "L":  # which Pillow converts to colours alone
        image = image.convert("RGB")
    return image.convert(mode)


def _resized(image: Any, size: tuple[int, int], extent: tuple[float, float]) -> Any:
    """Return an image of this size; ``extent`` is the part of the height and the width that shows anything."""
    return image.resize(size[::-1], pillow("an image").Resampling.BILINEAR, (0, 0, *extent[::-1]))


def _finished(array: NDArray[Any], spec: _Spec, torch: Any) -> Any:
    turned = array if torch is None or array.ndim == 2 else array.transpose(2, 0, 1)
    if spec.is_float:  # turned and divided in one pass
        turned = np.divide(turned, np.float32(255), dtype=np.float32, order="C")
    elif torch is not None:
        turned = turned.copy()
    return turned if torch is None else torch.from_numpy(turned)


def open_image(data: bytes) -> Any:
    """Open the image in these bytes, without reading its pixels; raises whatever Pillow does if it cannot."""
    return pillow("an image").open(io.BytesIO(data), formats=_formats())


@cache
def _formats() -> tuple[str, ...]:
    """Return the allowed formats that this Pillow supports."""
    library = pillow("an image")
    library.init()
    return tuple(sorted(_READ & library.OPEN.keys()))


def pillow(what: str) -> Any:
    """Return Pillow's module of images; raises `UsageError` for ``what`` needs it if it is not installed."""
    try:
        from PIL import Image  # noqa: PLC0415  # optional
    except ImportError:
        raise UsageError(f"{what} needs Pillow, which is not installed", hint=pip_install("images")) from None
    return Image


def torch_for(what: str, instead: str) -> Any:
    """Return torch; raises `UsageError` for ``what`` needs it, and ``instead`` names decoders to arrays."""
    try:
        import torch  # noqa: PLC0415  # optional, and slow to import
    except ImportError:
        msg = f"{what} needs torch, which is not installed"
        raise UsageError(msg, hint=f"install it as pytorch.org says, or take arrays: {instead}") from None
    return torch
