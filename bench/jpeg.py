"""Speed of decoding a JPEG by Pillow and by libjpeg-turbo without the interpreter's lock, in one thread and in two.

``python bench/jpeg.py [IMAGES]`` decodes noisy 256 x 256 images to "rgb8", in interleaved rounds, and prints the median
of images a second, CPU microseconds an image, and how far a thread that only counts comes beside it: what the lock
leaves to the training loop.
"""

from __future__ import annotations

import io
import statistics
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from shoal.formats.decoding import jpeg_pixels
from shoal.formats.decoding.images import image_decoder

ROUNDS = 7


def images(count: int) -> list[bytes]:
    """Images of about 18 KB."""
    draw = np.random.default_rng(0)
    rows, columns = np.mgrid[:256, :256]
    made = []
    for number in range(count):
        waves = [np.sin(columns / (9 + number) + band) + np.cos(rows / 7 * band + 1) for band in range(3)]
        pixels = np.stack(waves, -1) * 60 + 128 + draw.normal(0, 8, (256, 256, 3))
        stream = io.BytesIO()
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=85)
        made.append(stream.getvalue())
    return made


def measured(data: list[bytes], decode: Callable[[bytes], Any], num_threads: int) -> tuple[float, float]:
    """Images a second, and CPU microseconds an image."""
    began, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(num_threads) as threads:
        for _ in threads.map(decode, data):
            pass
    return len(data) / (time.perf_counter() - began), (time.process_time() - cpu) / len(data) * 1e6


def counted_beside(data: list[bytes], decode: Callable[[bytes], Any] | None) -> float:
    """Counts a second of a thread that only counts, beside one that decodes."""
    stop = threading.Event()

    def work() -> None:
        while decode is not None and not stop.is_set():
            for one in data[:8]:
                decode(one)

    other = threading.Thread(target=work)
    other.start()
    count, end = 0, time.perf_counter() + 0.5
    while time.perf_counter() < end:
        count += 1
    stop.set()
    other.join()
    return count / 0.5


def main(count: int) -> None:
    """Print the table."""
    base = images(16)
    data = [base[number % 16] for number in range(count)]
    decode = image_decoder("rgb8")
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    beside: dict[str, list[float]] = {}
    libraries = {"pillow": lambda: None, "libjpeg-turbo": jpeg_pixels._simplejpeg}  # noqa: SLF001
    for _ in range(ROUNDS):
        beside.setdefault("nothing", []).append(counted_beside(data, None))
        for name, library in libraries.items():
            jpeg_pixels._simplejpeg = library  # type: ignore[assignment]  # noqa: SLF001
            for num_threads in (1, 2):
                found.setdefault((name, num_threads), []).append(measured(data, decode, num_threads))
            beside.setdefault(name, []).append(counted_beside(data, decode))
    for (name, num_threads), rounds in found.items():
        speeds, costs = zip(*rounds, strict=True)
        line = f"{name:14} {num_threads} thread(s): {statistics.median(speeds):7,.0f} images/s"
        print(f"{line}, {statistics.median(costs):5.0f} us of CPU an image")
    alone = statistics.median(beside.pop("nothing"))
    for name, counts in beside.items():
        print(f"{name:14} leaves {statistics.median(counts) / alone:.2f} to a thread that only counts")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)
