"""Decoders of images to pictures, arrays or tensors, with the names and values of WebDataset.

Pillow decodes images; libjpeg-turbo gives the same pixels of most JPEGs without the interpreter's lock.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import repeat
from operator import index, methodcaller
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.decoding.array_decoder import ArrayDecoder, Memory
from shoal.formats.decoding.crops import Part, PartOf
from shoal.hints import pip_install

IMAGE_SUFFIXES = (
    *("jpg", "jpeg", "jpe", "jfif", "png", "apng", "ppm", "pgm", "pbm", "pnm", "bmp", "dib", "gif", "tif", "tiff"),
    *("webp", "jp2", "j2k", "jpx", "tga", "ico", "avif"),
)
# The format of a file follows from its bytes and not from its name. Other formats are left out: for some Pillow runs
# another program (Ghostscript for PostScript), and many readers have not been reviewed for long.
_READ = frozenset(("JPEG", "MPO", "PNG", "PPM", "BMP", "DIB", "GIF", "TIFF", "WEBP", "JPEG2000", "TGA", "ICO", "AVIF"))

_BITS_PER_SAMPLE = 258  # the tag of TIFF
_JPEG_START = b"\xff\xd8\xff"
_JFIF_START = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00"
_JPEG_COLORS = {"RGB": "RGB", "RGBA": "RGBA", "L": "GRAY"}
_BANDS: Mapping[str, tuple[int, ...]] = {"RGB": (3,), "RGBA": (4,), "L": ()}


_starts_jfif = methodcaller("startswith", _JFIF_START)


class _Spec(NamedTuple):
    """The result of an image decoder: "pil", "numpy" or "torch"; its bands (None: as stored); floats from 0 to 1."""

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
    """Return a decoder of `IMAGE_SPECS`; it needs Pillow, and torch for tensors.

    "pil" gives RGB images, "pilraw" images as stored. "rgb8" gives uint8 arrays, shape (height, width, 3), "rgb" the
    same as float32 from 0 to 1, "l8" and "l" arrays of grey, shape (height, width). "torchrgb8" and so on give tensors
    with the bands first, shape (3, height, width). Pixels of 16 bits keep the upper 8. Integers of 32 bits and floating
    numbers are an error, except with "pilraw".

    Every image is resized to exactly ``size``, a height and a width, unless it is None: a JPEG is first scaled while it
    is decoded, to no less than ``size``; then Pillow's bilinear filter resizes the 8-bit bands, and averages over all
    pixels that fall on one pixel of the result.

    Raises `UsageError` if a library is missing, or "pilraw" is used with a size.
    """
    spec = IMAGE_SPECS[name]
    if size is not None and spec.mode is None:
        msg = f"decode({name!r}) gives images as they are stored, but pixels that are indices cannot be resized"
        raise UsageError(msg, hint='decode("pil", size=...) gives RGB images')
    library = pillow(f"decode({name!r})")
    torch = torch_for(f"decode({name!r})", "rgb8, rgb") if spec.kind == "torch" else None

    if spec.mode is None:
        return _as_stored
    if spec.kind == "pil":
        return ArrayDecoder(partial(_images, spec.mode, size), can_crop=True)
    return ArrayDecoder(partial(_arrays, spec, spec.mode, size, library, torch), can_crop=True)


def _as_stored(data: bytes) -> Any:
    image = open_image(data)
    image.load()  # now, while an error can still name its sample
    return image


def _images(
    mode: str,
    size: tuple[int, int] | None,
    data: Sequence[bytes],
    _: Memory,
    parts: Sequence[PartOf] | None = None,
) -> list[Any]:
    """Return images of Pillow."""
    return [_by_pillow(one, mode, size, part) for one, part in zip(data, _each(parts, data), strict=True)]


def _each(parts: Sequence[PartOf] | None, data: Sequence[bytes]) -> Sequence[PartOf | None]:
    return [None] * len(data) if parts is None else parts


def _arrays(
    spec: _Spec,
    mode: str,
    size: tuple[int, int] | None,
    library: Any,
    torch: Any,
    data: Sequence[bytes],
    memory: Memory,
    parts: Sequence[PartOf] | None = None,
) -> list[Any]:
    """Return the arrays or tensors of images, in ``memory``."""
    # The pixels of libjpeg-turbo are the result, unless they are resized, turned or divided.
    is_last = size is None and torch is None and not spec.is_float
    if is_last and (shape := memory.likely_shape) is not None and _are_plain(data, mode, shape):
        rows = memory.all(shape, np.uint8)
        if _are_decoded(data, mode, _JpegPlan(shape, (0, 0, shape[0], shape[1]), 1), rows):  # without their headers
            return rows
    plans = _jpeg_plans(data, mode, most_pixels=library.MAX_IMAGE_PIXELS, size=size, parts=parts)
    if is_last and (plan := plans[0]) is not None and plans.count(plan) == len(plans):
        rows = memory.all(plan.shape, np.uint8)
        if _are_decoded(data, mode, plan, rows):
            return rows
    arrays: list[Any] = []
    scratch: NDArray[np.uint8] = np.empty(0, np.uint8)
    for number, (one, plan, part) in enumerate(zip(data, plans, _each(parts, data), strict=True)):
        pixels: Any = None
        if plan is not None:
            if is_last or scratch.shape != plan.shape:
                scratch = memory(number, plan.shape, np.uint8) if is_last else np.empty(plan.shape, np.uint8)
            pixels = scratch if _are_decoded([one], mode, plan, [scratch]) else None
        if pixels is not None and is_last:
            arrays.append(pixels)
            continue
        if plan is None or pixels is None:
            pixels = np.asarray(_by_pillow(one, mode, size, part))
        elif size is not None and not _is_size(plan, size):
            pixels = np.asarray(_resized(library.fromarray(pixels), size, plan.part))
        arrays.append(_finished(pixels, spec, torch, partial(memory, number)))
    return arrays


def exact_size(size: Any) -> tuple[int, int]:
    """Return a height and a width from two integers, or from the side of a square; raises `UsageError`.

    >>> exact_size(224), exact_size((240, 320))
    ((224, 224), (240, 320))
    """
    pair = (size, size) if isinstance(size, int | np.integer) else size
    if isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(side, int | np.integer) for side in pair):
        height, width = map(index, pair)
        if height > 0 and width > 0:
            return height, width
    msg = f"size= takes a height and a width in pixels; got {size!r}"
    raise UsageError(msg, hint="size=(240, 320), or size=224 for a square")


def _by_pillow(data: bytes, mode: str, size: tuple[int, int] | None, part_of: PartOf | None) -> Any:
    image = open_image(data)
    width, height = image.size
    part = (0, 0, height, width) if part_of is None else part_of(height, width)
    scale, drafted = 1 if size is None else _scale_of(part, size), None
    if scale > 1:  # scales a JPEG while it is decoded; other formats ignore it
        drafted = image.draft(None, (width // scale, height // scale))
    image.load()
    # If the bands are right, converting is only a copy, during which Pillow blocks other threads.
    converted = image if image.mode == mode else _converted(image, mode)
    return converted if size is None else _resized(converted, size, _scaled(part, 1 if drafted is None else scale))


def _scale_of(part: Part, size: tuple[int, int]) -> int:
    """Return how much a part of a JPEG is scaled down while it is decoded: it stays no smaller than ``size``."""
    top, left, bottom, right = part
    most = min((bottom - top) // size[0], (right - left) // size[1])
    return next((scale for scale in (8, 4, 2) if scale <= most), 1)  # Pillow's, and libjpeg-turbo's fastest


def _is_size(plan: _JpegPlan, size: tuple[int, int]) -> bool:
    """Return True if the pixels need no resizing."""
    return plan.shape[:2] == size and plan.part == (0.0, 0.0, float(size[0]), float(size[1]))


def _scaled(part: Part, scale: int) -> _ScaledPart:
    top, left, bottom, right = part
    return top / scale, left / scale, bottom / scale, right / scale


def _converted(image: Any, mode: str) -> Any:
    """Return an image in a mode of 8 bits; `ValueError` for numbers whose range is unknown.

    Of 16 bits the upper 8 are kept, as Pillow does for colours. For grey, Pillow would clip both 65535 and 256 to 255.
    """
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        bits = image.tag_v2.get(_BITS_PER_SAMPLE, (16,))[0] if image.format == "TIFF" else 16
        upper = (np.asarray(image) >> (bits - 8)).astype(np.uint8)
        image = pillow("an image").fromarray(upper)
    elif image.mode in ("I", "F"):
        stored = "floating numbers" if image.mode == "F" else "integers of 32 bits"
        instead = 'decode("pilraw") gives the pixels as stored'
        raise ValueError(f"the pixels are {stored}, and the values of black and white are unknown: {instead}")
    elif image.mode == "LAB" and mode == "L":  # Pillow converts LAB only to colours
        image = image.convert("RGB")
    return image.convert(mode)


def _resized(image: Any, size: tuple[int, int], part: _ScaledPart) -> Any:
    """Resize a part of an image."""
    top, left, bottom, right = part
    return image.resize(size[::-1], pillow("an image").Resampling.BILINEAR, (left, top, right, bottom))


def _finished(array: NDArray[Any], spec: _Spec, torch: Any, allocate: Callable[..., NDArray[Any]]) -> Any:
    turned = array if torch is None or array.ndim == 2 else array.transpose(2, 0, 1)
    made = allocate(turned.shape, np.float32 if spec.is_float else np.uint8)
    if spec.is_float:  # turned and divided in one pass
        np.divide(turned, np.float32(255), out=made)
    else:
        np.copyto(made, turned)
    return made if torch is None else torch.from_numpy(made)


class JpegPixels(NamedTuple):
    """Pixels, shape (height, width, bands) or (height, width), and the height and width that the image covers.

    Scaling rounds up to whole pixels: an image of 100 x 333 scaled by 1/8 covers (12.5, 41.625) of (13, 42).
    """

    pixels: NDArray[np.uint8]
    extent: tuple[float, float]


_ScaledPart = tuple[float, float, float, float]


class _JpegPlan(NamedTuple):
    """The shape of the pixels of a JPEG once it is scaled, the part of them that is wanted, and the scale."""

    shape: tuple[int, ...]
    part: _ScaledPart
    scale: int


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
    (plan,) = _jpeg_plans([data], mode, most_pixels=most_pixels, size=least)
    if plan is None:
        return None
    pixels = np.empty(plan.shape, np.uint8)
    return JpegPixels(pixels, plan.part[2:]) if _are_decoded([data], mode, plan, [pixels]) else None


def _jpeg_plans(
    data: Sequence[bytes],
    mode: str,
    *,
    most_pixels: int | None,
    size: tuple[int, int] | None,
    parts: Sequence[PartOf] | None = None,
) -> list[_JpegPlan | None]:
    """Return how to decode each JPEG; None for an image that Pillow must decode."""
    library = _simplejpeg()
    if library is None:
        return [None] * len(data)
    # Loops in C: between two images the code of the interpreter leaves the cache of the processor.
    try:
        headers = list(map(library.decode_jpeg_header, data))
    except ValueError:
        headers = [_jpeg_header(library, one) for one in data]
    plan = partial(_jpeg_plan, mode=mode, most_pixels=most_pixels, size=size)
    if parts is None and headers.count(headers[0]) == len(headers):
        return [plan(headers[0], None)] * len(data)
    return list(map(plan, headers, _each(parts, data)))


_JpegHeader = tuple[int, int, str, str]


def _jpeg_header(library: Any, data: bytes) -> _JpegHeader | None:
    if data[:3] != _JPEG_START:
        return None
    try:
        header: _JpegHeader = library.decode_jpeg_header(data)
    except ValueError:
        return None
    return header


def _jpeg_plan(
    header: _JpegHeader | None,
    part_of: PartOf | None,
    *,
    mode: str,
    most_pixels: int | None,
    size: tuple[int, int] | None,
) -> _JpegPlan | None:
    if header is None:
        return None
    height, width, colors, _ = header
    # Grey from colours is a matter of weights, and Pillow has its own.
    is_alike = colors == "Gray" or (colors == "YCbCr" and mode != "L")
    if (most_pixels is not None and height * width > most_pixels) or not is_alike:
        return None
    part = (0, 0, height, width) if part_of is None else part_of(height, width)
    scale = 1 if size is None else _scale_of(part, size)
    # The size that this scale gives, rounded up as by libjpeg.
    shape = -(-height // scale), -(-width // scale), *_BANDS[mode]
    return _JpegPlan(shape, _scaled(part, scale), scale)


def _are_plain(data: Sequence[bytes], mode: str, shape: tuple[int, ...]) -> bool:
    """Return True for JPEGs of JFIF, whose colours are YCbCr or grey, that may have this shape in RGB."""
    return _simplejpeg() is not None and mode != "L" and shape[2:] == _BANDS[mode] and all(map(_starts_jfif, data))


def _are_decoded(data: Sequence[bytes], mode: str, plan: _JpegPlan, pixels: Sequence[NDArray[np.uint8]]) -> bool:
    """Decode JPEGs of one plan into ``pixels``; return False if Pillow must decode one of them."""
    height, width = plan.shape[:2]
    settings: tuple[Any, ...] = (_JPEG_COLORS[mode], False, False, height, width, plan.scale)
    # An image of another size is refused, or does not fill its row.
    try:
        written = list(map(_simplejpeg().decode_jpeg, data, *map(repeat, settings), pixels))
    except ValueError:
        return False
    return all(each.shape[:2] == (height, width) for each in written)


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


def open_image(data: bytes) -> Any:
    """Open an image without reading its pixels; Pillow's errors are passed on."""
    return pillow("an image").open(io.BytesIO(data), formats=_formats())


@cache
def _formats() -> tuple[str, ...]:
    """Return the allowed formats that this Pillow supports."""
    library = pillow("an image")
    library.init()
    return tuple(sorted(_READ & library.OPEN.keys()))


def pillow(what: str) -> Any:
    """Return Pillow's module of images. Raises `UsageError`, which names ``what``, if Pillow is missing."""
    try:
        from PIL import Image  # noqa: PLC0415  # optional
    except ImportError:
        raise UsageError(
            f"{what} needs Pillow, which is not installed", hint=pip_install("pillow", "simplejpeg")
        ) from None
    return Image


def torch_for(what: str, instead: str) -> Any:
    """Return torch. Raises `UsageError`, which names ``what`` and the decoders ``instead``, if torch is missing."""
    try:
        import torch  # noqa: PLC0415  # optional, and slow to import
    except ImportError:
        msg = f"{what} needs torch, which is not installed"
        raise UsageError(msg, hint=f"install it as pytorch.org says, or take arrays: {instead}") from None
    return torch
