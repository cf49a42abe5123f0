"""Images have exactly the requested size, and are close to the resized whole image."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.formats.test_jpeg_pixels import jpeg
from tests.samples import write_tar

import shoal
from shoal.errors import UsageError
from shoal.formats.decoding.images import exact_size, image_decoder, jpeg_pixels
from shoal.pipeline.stages.decode import Decode


def resized(data: bytes, mode: str, size: tuple[int, int]) -> Any:
    """The pixels of the whole image, resized."""
    image = Image.open(io.BytesIO(data)).convert(mode)
    return np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR))


def encoded(image: Any, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


@settings(max_examples=80, deadline=None)
@given(
    size=st.tuples(st.integers(40, 400), st.integers(40, 400)),
    wanted=st.tuples(st.integers(8, 400), st.integers(8, 400)),
    mode=st.sampled_from(["RGB", "L"]),
    subsampling=st.sampled_from(["4:4:4", "4:2:0"]),
)
def test_a_scaled_jpeg_differs_little_from_the_whole(
    size: tuple[int, int], wanted: tuple[int, int], mode: str, subsampling: str
) -> None:
    # Noise of up to 60 on a slope, which repeats from 190 to 0; a shift by a pixel would be seen at once.
    data = jpeg(*size, mode, quality=90, subsampling=subsampling)
    resized_pixels, expected = image_decoder("rgb8", wanted)(data), resized(data, "RGB", wanted)
    assert (resized_pixels.shape, resized_pixels.dtype) == ((*wanted, 3), np.uint8)
    assert np.abs(resized_pixels.astype(int) - expected).mean() <= 4
    if min(size[0] // wanted[0], size[1] // wanted[1]) < 2:
        assert np.array_equal(resized_pixels, expected)


def test_a_scaled_jpeg_is_not_moved() -> None:
    """333 / 4 is no whole number: the last row and column of the scaled image show only a part of a pixel."""
    data = jpeg(333, 517, quality=90)
    assert np.abs(image_decoder("rgb8", (64, 96))(data).astype(int) - resized(data, "RGB", (64, 96))).mean() <= 2


@pytest.mark.parametrize(
    ("size", "wanted", "decoded"),
    [
        ((256, 256), (256, 256), (256, 256)),
        ((256, 256), (129, 10), (256, 256)),
        ((256, 256), (128, 128), (128, 128)),
        ((257, 300), (128, 128), (129, 150)),
        ((256, 2048), (32, 32), (32, 256)),
        ((1600, 1600), (10, 10), (200, 200)),
        ((20, 20), (40, 40), (20, 20)),
    ],
)
def test_the_smallest_scale_that_is_no_smaller(
    size: tuple[int, int], wanted: tuple[int, int], decoded: tuple[int, int]
) -> None:
    jpeg_read = jpeg_pixels(jpeg(*size), "RGB", most_pixels=None, least=wanted)
    assert jpeg_read is not None
    assert jpeg_read.pixels.shape == (*decoded, 3)


@pytest.mark.parametrize("names", [("l8", "rgb8", "rgba8", "l", "rgb", "pil", "pill"), ("torchrgb8", "torchl")])
def test_the_same_with_and_without_libjpeg_turbo(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    if names[0].startswith("torch"):
        pytest.importorskip("torch")
    images = [jpeg(333, 147), jpeg(61, 90, "L"), jpeg(99, 99, "CMYK"), jpeg(200, 100), jpeg(30, 20, progressive=True)]
    cases = [(name, data, size) for name in names for data in images for size in ((30, 20), (50, 60), (7, 90))]
    fast = [np.asarray(image_decoder(name, size)(data)) for name, data, size in cases]
    monkeypatch.setattr("shoal.formats.decoding.images._simplejpeg", lambda: None)
    slow = [np.asarray(image_decoder(name, size)(data)) for name, data, size in cases]
    for one, other, (name, _, (height, width)) in zip(fast, slow, cases, strict=True):
        bands = {"t": (3, height, width), "r": (height, width, 4 if "a" in name else 3), "p": (height, width, 3)}
        grey = name.removeprefix("torch") in {"l8", "l", "pill"}
        assert one.shape == ((height, width) if grey else bands[name[0]])
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


@pytest.mark.parametrize("kind", ["PNG", "PPM", "TIFF", "GIF", "WEBP"])
def test_other_formats_are_resized_as_a_whole(kind: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(pixels), kind)
    for name, mode in (("rgb8", "RGB"), ("l8", "L"), ("pil", "RGB")):
        assert np.array_equal(np.asarray(image_decoder(name, (16, 25))(data)), resized(data, mode, (16, 25)))


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@pytest.mark.parametrize("size", [None, (7, 9), (16, 20)])
def test_arrays_may_be_changed(kind: str, size: tuple[int, int] | None) -> None:
    data = encoded(Image.new("RGB", (20, 16), "red"), kind)
    for name in ("rgb8", "l8", "rgb", "rgba8"):
        image_decoder(name, size)(data)[...] = 0


def test_colours_behind_transparency_do_not_shine_through() -> None:
    image = Image.new("RGBA", (40, 40), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, 0, 20, 40))
    pixels = image_decoder("rgba8", (5, 5))(encoded(image, "PNG"))
    assert set(pixels[..., 0].ravel().tolist()) == {0}
    assert 0 < pixels[0, 2, 3] < 255


@pytest.mark.parametrize("size", [0, -1, (0, 4), (1, 2, 3), (4,), 2.5, "224", (2.0, 3.0), None])
def test_sizes_that_are_refused(size: object) -> None:
    with pytest.raises(UsageError, match="takes a height and a width in pixels") as caught:
        exact_size(size)
    assert "size=224" in str(caught.value.hint)


def test_what_cannot_be_resized(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [{"__key__": b"a", "png": b""}])
    data = shoal.open(tmp_path / "a.tar")
    with pytest.raises(UsageError, match="no decoder of images is named"):
        data.decode(size=3)
    with pytest.raises(UsageError, match="no decoder of images is named"):
        data.decode({"png": bytes}, size=3)
    with pytest.raises(UsageError, match="no decoder of images is named") as misspelt:
        data.decode("rbg8", size=3)
    assert "did you mean 'rgb8'?" in misspelt.value.hint
    with pytest.raises(UsageError, match="as they are stored"):
        data.decode("pilraw", size=3)


def test_images_of_every_shape_make_one_array(tmp_path: Path) -> None:
    members = [{"__key__": b"%d" % n, "jpg": jpeg(30 + n, 50 - n), "cls": b"1"} for n in range(8)]
    write_tar(tmp_path / "a.tar", members)
    data = shoal.open(tmp_path / "a.tar").decode("rgb8", size=(24, 32))
    (batch,) = data.batch(8)
    assert batch["jpg"].shape == (8, 24, 32, 3)
    assert np.array_equal(batch["jpg"][3], data[3]["jpg"])


def test_a_stage_with_a_size_travels() -> None:
    stage = pickle.loads(pickle.dumps(Decode(["rgb8"], size=(3, 4))))
    assert repr(stage) == "decode('rgb8', size=(3, 4))"
    assert stage({"jpg": jpeg(20, 20)}, 0)["jpg"].shape == (3, 4, 3)
