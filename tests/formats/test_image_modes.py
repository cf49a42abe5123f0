"""Pixels of every mode become what the table in docs/formats.md says."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.formats.decoding.images import image_decoder

Image = pytest.importorskip("PIL.Image")

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
RAMP = np.arange(65536, dtype=np.uint16).reshape(256, 256)


def rows() -> list[tuple[str, ...]]:
    """Return the rows of the table: mode, pixel, and what three decoders give."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = lines.index("| mode | pixel | `l8` | `rgb8` | `rgba8` |") + 2
    table = lines[first : lines.index("", first)]
    return [tuple(cell.strip().replace("`", "") for cell in line.strip("|").split("|")) for line in table]


def saved(image: Any, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png16(pixel: Sequence[int]) -> bytes:
    """Return a PNG of one pixel with 16 bits for each of its three bands, which Pillow does not write."""

    def part(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    data = zlib.compress(b"\0" + struct.pack(">3H", *pixel))
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", data) + part(b"IEND", b"")


def tiff12(value: int) -> bytes:
    """Return a TIFF of two pixels with 12 bits each."""
    tags = {256: 2, 257: 1, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: 1, 279: 3}
    data = (value << 12 | value).to_bytes(3, "big") + b"\0"
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, number) for tag, number in tags.items())
    return b"II*\0" + struct.pack("<I", 12) + data + struct.pack("<H", len(tags)) + entries + bytes(4)


def written(mode: str, pixel: list[float]) -> bytes:
    """Return a file in which Pillow finds one pixel in this mode."""
    whole = tuple(map(int, pixel))
    name, _, note = mode.partition(" ")
    name = name.rstrip(",")
    if note == "of 16 bits":
        return png16(whole)
    if note == "of 12 bits":
        return tiff12(whole[0])
    if name == "P":
        image = Image.new("P", (1, 1), 0)
        image.putpalette(whole[:3])
        return saved(image, "PNG", **({"transparency": bytes(whole[3:])} if len(whole) > 3 else {}))
    if note == "in a PGM":
        return b"P5 1 1 65535\n" + struct.pack(">H", whole[0])
    if name in ("I;16", "I;16B", "I", "F"):
        dtype = {"I;16": "<u2", "I;16B": ">u2", "I": "<i4", "F": "<f4"}[name]
        return saved(Image.fromarray(np.array([pixel], dtype)), "TIFF")
    image = Image.new(name, (1, 1), whole if len(whole) > 1 else whole[0])
    return saved(image, "TIFF" if name == "CMYK" else "PNG")


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
@pytest.mark.filterwarnings("ignore:Palette images with Transparency:UserWarning")
def test_the_table_of_modes_is_true(row: tuple[str, ...]) -> None:
    mode, pixel, *expected = row
    data = written(mode, [float(number) for number in pixel.split()])
    assert image_decoder("pilraw")(data).mode == mode.split(" ")[0].rstrip(",")
    for name, numbers in zip(("l8", "rgb8", "rgba8"), expected, strict=True):
        for size in (None, (1, 1)):
            if numbers == "error":
                with pytest.raises(ValueError, match=r'the values of black and white are unknown: decode\("pilraw"\)'):
                    image_decoder(name, size)(data)
            else:
                pixels = image_decoder(name, size)(data)
                assert pixels.reshape(-1, max(1, 0 if pixels.ndim == 2 else pixels.shape[2]))[0].tolist() == [
                    int(number) for number in numbers.split()
                ]


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM", "JPEG2000"])
def test_a_ramp_of_16_bits_keeps_256_values(kind: str) -> None:
    if kind == "JPEG2000" and not pytest.importorskip("PIL.features").check("jpg_2000"):
        pytest.skip("this Pillow reads no JPEG 2000")
    data = saved(Image.fromarray(RAMP), kind)
    for name in ("l8", "rgb8", "rgba8", "pil", "l"):
        pixels = np.asarray(image_decoder(name)(data))
        grey = pixels.reshape(256, 256, -1)[:, :, 0]
        assert np.array_equal(np.round(grey * (255 if name == "l" else 1)), RAMP >> 8)
    small = image_decoder("l8", (64, 64))(data)
    assert small.min() <= 2
    assert small.max() >= 253
    assert len(np.unique(small)) > 60


def test_tensors_are_scaled_alike() -> None:
    torch = pytest.importorskip("torch")
    found = image_decoder("torchrgb8")(saved(Image.fromarray(RAMP), "PNG"))
    assert found.dtype == torch.uint8
    assert np.array_equal(found.numpy()[1], RAMP >> 8)


def test_lab_becomes_grey_by_way_of_colours() -> None:
    data = saved(Image.new("LAB", (2, 2), (200, 128, 128)), "TIFF")
    assert image_decoder("l8")(data).shape == (2, 2)
