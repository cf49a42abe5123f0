"""From the bytes of a field to what they mean, by the field's suffix, as WebDataset names them.

Nothing here can run code from a dataset: pickles and torch files stay bytes.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shoal.errors import UsageError

__all__ = ["DECODERS", "IMAGE_SPECS", "Decoder", "image_decoder"]

Decoder = Callable[[bytes], Any]

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "bmp", "gif", "tif", "tiff", "webp")
IMAGE_SPECS = {"pil": None, "pilrgb": "RGB", "rgb8": "RGB", "l8": "L", "rgb": "RGB", "l": "L"}
"""Names of image decoders: PIL images as stored or RGB; arrays of uint8; arrays of float32 from 0 to 1."""


def _text(data: bytes) -> str:
    return data.decode("utf-8")


def _npy(data: bytes) -> Any:
    return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)


def _npz(data: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name.removesuffix(".npy"): _npy(archive.read(name)) for name in archive.namelist()}


DECODERS: Mapping[str, Decoder] = {
    "txt": _text,
    "text": _text,
    "transcript": _text,
    "cls": int,
    "cls2": int,
    "index": int,
    "count": int,
    "inx": int,
    "id": int,
    "json": json.loads,
    "jsn": json.loads,
    "npy": _npy,
    "npz": _npz,
}
"""What `Dataset.decode` does unless told otherwise, by the last part of a field's suffix."""


def image_decoder(spec: str) -> dict[str, Decoder]:
    """Decoders of all image suffixes for one of `IMAGE_SPECS`; needs Pillow.

    "pil" gives images as they are stored, "pilrgb" RGB images; "rgb8" and "l8" uint8 arrays of shape (height, width, 3)
    and (height, width); "rgb" and "l" the same as float32 from 0 to 1.
    """
    try:
        from PIL import Image  # noqa: PLC0415  # optional
    except ImportError:
        msg = f"decode({spec!r}) needs Pillow, which is not installed"
        raise UsageError(msg, hint="pip install pillow") from None
    mode = IMAGE_SPECS[spec]

    def decode(data: bytes) -> Any:
        image: Image.Image = Image.open(io.BytesIO(data))
        if mode is None:
            image.load()  # now, while an error still knows its sample
            return image
        image = image.convert(mode)
        if spec.startswith("pil"):
            return image
        array = np.asarray(image)
        return array if spec.endswith("8") else array.astype(np.float32) / np.float32(255)

    return dict.fromkeys(IMAGE_SUFFIXES, decode)
