"""JPEG by libjpeg-turbo: the pixels of Pillow, or nothing, and then Pillow decides."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shoal.formats.decoding.images import image_decoder, jpeg_pixels


def jpeg(height: int, width: int, mode: str = "RGB", **options: Any) -> bytes:
    noise = np.random.default_rng(height * 1000 + width).integers(0, 60, (height, width, 3))
    slope = np.mgrid[:height, :width].sum(axis=0)[..., None] * [1, 2, 3] % 190
    stream = io.BytesIO()
    Image.fromarray((noise + slope).astype(np.uint8)).convert(mode).save(stream, "JPEG", **options)
    return stream.getvalue()


def by_pillow(data: bytes, mode: str) -> Any:
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode))


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    mode=st.sampled_from(["RGB", "L"]),
    quality=st.integers(1, 100),
    subsampling=st.sampled_from(["4:4:4", "4:2:2", "4:2:0"]),
    progressive=st.booleans(),
)
def test_pixels_equal_those_of_pillow(
    size: tuple[int, int], mode: str, quality: int, subsampling: str, progressive: bool
) -> None:
    data = jpeg(*size, mode, quality=quality, subsampling=subsampling, progressive=progressive)
    for wanted in ("RGB", "RGBA", "L"):
        decoded = jpeg_pixels(data, wanted, most_pixels=None)
        if decoded is None:
            assert (mode, wanted) == ("RGB", "L")
            continue
        expected = by_pillow(data, wanted)
        assert (decoded.pixels.shape, decoded.pixels.dtype) == (expected.shape, expected.dtype)
        assert np.array_equal(decoded.pixels, expected)
        assert decoded.extent == size


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (jpeg(20, 20, "CMYK"), "RGB"),
        (jpeg(20, 20, keep_rgb=True), "RGB"),
        (jpeg(20, 20), "L"),
        (jpeg(20, 20)[:2] + b"xx" + jpeg(20, 20)[2:], "RGB"),
        (jpeg(20, 20)[:-40], "RGB"),
        (b"\xff\xd8\xff" + b"0" * 50, "RGB"),
        (b"\x89PNG\r\n\x1a\n", "RGB"),
        (b"", "RGB"),
    ],
)
def test_what_is_left_to_pillow(data: bytes, wanted: str) -> None:
    assert jpeg_pixels(data, wanted, most_pixels=None) is None


def test_too_many_pixels_are_left_to_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    data = jpeg(20, 20)
    assert jpeg_pixels(data, "RGB", most_pixels=400) is not None
    assert jpeg_pixels(data, "RGB", most_pixels=399) is None
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(Image.DecompressionBombError):
        image_decoder("rgb8")(data)


@pytest.mark.parametrize("names", [("l8", "rgb8", "rgba8", "l", "rgb"), ("torchrgb8", "torchl")])
def test_decoders_give_the_same_with_and_without(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    if names[0].startswith("torch"):
        pytest.importorskip("torch")
    images = [jpeg(33, 47), jpeg(33, 47, "L"), jpeg(9, 9, "CMYK"), jpeg(33, 47, exif=_turned())]
    fast = [np.asarray(image_decoder(name)(data)) for name in names for data in images]
    monkeypatch.setattr("shoal.formats.decoding.images._simplejpeg", lambda: None)
    slow = [np.asarray(image_decoder(name)(data)) for name in names for data in images]
    for one, other in zip(fast, slow, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


def _turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6  # a camera that was held upright; neither library turns the image
    return exif.tobytes()


def test_damage_is_the_error_of_pillow() -> None:
    with pytest.raises(OSError, match="truncated"):
        image_decoder("rgb8")(jpeg(200, 200)[:-1000])
