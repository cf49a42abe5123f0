"""The samples that all loaders stream: made once as one flat file for each workload, which every writer reads.

A hundred classes lie in contiguous blocks, so that a loader that does not mix delivers one class a batch. Needs numpy
alone, and Pillow where images are made.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

NUM_CLASSES = 100
BATCH = 64
SIDE = 256  # of an image


class Workload(NamedTuple):
    """What a sample holds ("tokens", "blob", "text" or "jpeg"), and how many there are at ``--scale 1``.

    Without a kind, `other_runs` makes the samples.
    """

    kind: str
    num_samples: int
    title: str


WORKLOADS = {
    "W1": Workload("tokens", 262_144, "4 KiB of tokens"),
    "W2": Workload("blob", 20_000, "100 KB blobs"),
    "W3": Workload("text", 250_000, "documents of 2 KB with metadata"),
    "W4": Workload("jpeg", 16_000, "JPEGs of 256 x 256, decoded"),
    "far": Workload("blob", 12_000, "100 KB blobs, 20 ms away"),
    "first": Workload("blob", 4_000, "100 KB blobs, until the first batch"),
    "growing": Workload("", 0, "2.5 KB from tars without an index, 20 ms away"),
    "index": Workload("", 0, "an index of 3e8 samples of 100 KB"),
}


class Sample(NamedTuple):
    """A sample as it is written."""

    number: int
    label: int
    payload: bytes


def make_flat(directory: Path, name: str, scale: float) -> int:
    """Write ``data.bin`` and ``offsets.npy``, unless they are there; return the number of samples."""
    kind, whole, _ = WORKLOADS[name]
    num_samples = max(2 * NUM_CLASSES, int(whole * scale) // NUM_CLASSES * NUM_CLASSES)
    offsets = directory / "offsets.npy"
    if not offsets.exists():
        directory.mkdir(parents=True, exist_ok=True)
        ends = [0]
        with (directory / "data.bin").open("wb", buffering=1 << 20) as file:
            for payload in payloads(kind, num_samples):
                file.write(payload)
                ends.append(ends[-1] + len(payload))
        np.save(offsets, np.array(ends, np.int64))
    return num_samples


def payloads(kind: str, count: int) -> Iterator[bytes]:
    """Generate payloads from a fixed seed."""
    draw = np.random.default_rng(11)
    if kind == "tokens":
        for _ in range(count):
            yield draw.integers(0, 50_000, 2048, dtype=np.uint16).tobytes()
    elif kind == "blob":
        for _ in range(count):
            yield draw.bytes(100_000)
    elif kind == "text":
        letters = [draw.integers(97, 123, length, dtype=np.uint8).tobytes() for length in draw.integers(2, 11, 20_000)]
        words = np.array([word.decode() for word in letters])
        for length in draw.integers(100, 500, count):
            chosen = np.minimum(draw.zipf(1.3, length) - 1, len(words) - 1)
            yield " ".join(words[chosen]).encode()
    else:
        yield from images(draw, count)


def images(draw: np.random.Generator, count: int) -> Iterator[bytes]:
    """JPEGs of about 18 KB: waves and noise, 64 different ones in turn."""
    from PIL import Image  # noqa: PLC0415  # where images are made alone

    rows, columns = np.mgrid[:SIDE, :SIDE]
    made = []
    for number in range(64):
        waves = [np.sin(columns / (9 + number % 16) + band) + np.cos(rows / 7 * band + 1) for band in range(3)]
        pixels = np.stack(waves, -1) * 60 + 128 + draw.normal(0, 8, (SIDE, SIDE, 3))
        stream = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=85)
        made.append(stream.getvalue())
    for number in range(count):
        yield made[number % len(made)]


def samples_of(directory: Path) -> Iterator[Sample]:
    """Read a flat file, in order."""
    offsets = np.load(directory / "offsets.npy").tolist()
    count = len(offsets) - 1
    with (directory / "data.bin").open("rb", buffering=1 << 20) as file:
        for number in range(count):
            payload = file.read(offsets[number + 1] - offsets[number])
            yield Sample(number, number * NUM_CLASSES // count, payload)


def metadata(number: int) -> dict[str, Any]:
    """What a document has beside its text."""
    language = ("en", "de", "fr")[number % 3]
    return {"url": f"https://example.org/{number % 977}/{number}.html", "lang": language, "score": number % 1000 / 1000}


def document(sample: Sample) -> bytes:
    """A document as JSON, where a format has no columns."""
    return json.dumps({"text": sample.payload.decode(), "class": sample.label, **metadata(sample.number)}).encode()


def pixels(data: bytes) -> Any:
    """Decode an image as users of Pillow do."""
    from PIL import Image  # noqa: PLC0415  # where images are read alone

    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
