"""Speed of decoding a JPEG by Pillow and by libjpeg-turbo without the interpreter's lock, in one thread and in two.

``python bench/jpeg.py [IMAGES]`` decodes noisy 256 x 256 images to "rgb8", in interleaved rounds, and prints the median
of images a second, CPU microseconds an image, and how far a thread that only counts comes beside it: what the lock
leaves to the training loop.

``python bench/jpeg.py loader [IMAGES]`` prints the same of loaders that read these images from tars and give batches
of 64, beside their limit, simplejpeg in two threads that decode straight into batches, and beside the same with stacked
images, or with images that are dropped. ``python bench/jpeg.py size [IMAGES]`` decodes pictures of
600 x 800 to 224 x 224 in one thread, scaled or as a whole, and prints how much that differs. ``python bench/jpeg.py
lock`` prints the CPU time of an image of 8 x 8 beside one of 256 x 256, as samples through their stage: about the part
of the time in which a thread that decodes holds the interpreter's lock.
"""

from __future__ import annotations

import io
import os
import statistics
import sys
import tarfile
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

import shoal.torch
from shoal.formats.decoding import images as image_decoding
from shoal.formats.decoding.images import image_decoder
from shoal.pipeline.stages.decode import Decode
from shoal.pipeline.stages.running import run_stages

ROUNDS = 7
BATCH = 64
GROUP = 8  # images given to a thread at a time, as shoal does


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


def in_two_threads(data: list[bytes], batches: str) -> None:
    """Decode by simplejpeg, with what becomes of the images: "none", "stacked", or "direct"."""
    waiting: deque[Future[Any]] = deque()
    held: list[Any] = []

    def decode(group: list[bytes], room: Any) -> list[Any]:
        if room is None:
            return [simplejpeg.decode_jpeg(one) for one in group]
        return [simplejpeg.decode_jpeg(one, buffer=row) for one, row in zip(group, room, strict=True)]

    def collect() -> None:
        held.extend(waiting.popleft().result())
        if len(held) == BATCH or batches != "stacked":
            if batches == "stacked":
                np.stack(held, out=np.empty((BATCH, 256, 256, 3), np.uint8))
            held.clear()

    with ThreadPoolExecutor(2) as threads:
        for first in range(0, len(data), GROUP):
            if batches == "direct" and first % BATCH == 0:
                batch = np.empty((BATCH, 256, 256, 3), np.uint8)
            room = batch[first % BATCH :][:GROUP] if batches == "direct" else None
            waiting.append(threads.submit(decode, data[first : first + GROUP], room))
            if len(waiting) > 4:
                collect()
        while waiting:
            collect()


def through(loader: Any) -> None:
    for _ in loader:
        pass


def write_tars(directory: Path, data: list[bytes]) -> None:
    for shard in range(4):
        with tarfile.open(directory / f"{shard}.tar", "w") as tar:
            for number in range(shard, len(data), 4):
                member = tarfile.TarInfo(f"{number:06}.jpg")
                member.size = len(data[number])
                tar.addfile(member, io.BytesIO(data[number]))


def print_medians(works: dict[str, Callable[[], None]], count: int, rounds: int = ROUNDS) -> None:
    """Run each in turn, and print images a second, CPU microseconds an image, and the share of the first speed."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            began, cpu = time.perf_counter(), time.process_time()
            work()
            elapsed, spent = time.perf_counter() - began, time.process_time() - cpu
            found[name].append((count / elapsed, spent / count * 1e6))
    first = next(iter(found.values()))
    for name, measured_rounds in found.items():
        speeds, costs = zip(*measured_rounds, strict=True)
        shares = [one[0] / other[0] for one, other in zip(measured_rounds, first, strict=True)]
        line = f"{name:34} {statistics.median(speeds):7,.0f} images/s ({min(speeds):,.0f} to {max(speeds):,.0f})"
        print(f"{line}, {statistics.median(costs):5.0f} us of CPU, {statistics.median(shares):.2f} of the first")


def compare_loaders(count: int) -> None:
    """Print the table of loaders."""
    base = images(16)
    count -= count % BATCH
    data = [base[number % 16] for number in range(count)]
    with tempfile.TemporaryDirectory() as directory:
        write_tars(Path(directory), data)
        stored = shoal.open(Path(directory)).shuffle(seed=0)
        works: dict[str, Callable[[], None]] = {
            "simplejpeg in 2 threads, the limit": lambda: in_two_threads(data, "direct"),
            "the same, stacked to batches": lambda: in_two_threads(data, "stacked"),
            "the same, images dropped": lambda: in_two_threads(data, "none"),
        }
        plain = stored.batch(BATCH)
        works["shoal without decoding"] = lambda: through(plain)
        here = stored.decode("rgb8").batch(BATCH)
        works["shoal, rgb8, one thread"] = lambda: through(here)
        for name in ("rgb8", "torchrgb8"):
            loader = shoal.torch.DataLoader(stored.decode(name).batch(BATCH))
            works[f"shoal.torch.DataLoader, {name}"] = lambda loader=loader: through(loader)  # type: ignore[misc]
        two = shoal.torch.DataLoader(stored.decode("rgb8").batch(BATCH), num_workers=2, persistent_workers=True)
        works["the same, rgb8, 2 workers"] = lambda: through(two)
        print(f"a load of {os.getloadavg()[0]:.1f}; {loader!r}")
        print_medians(works, count)
        two.close()


def compare_sizes(count: int) -> None:
    """Print the table of pictures that are resized."""
    base = [Image.open(io.BytesIO(one)).resize((800, 600), Image.Resampling.BICUBIC) for one in images(8)]
    data = []
    for image in base:
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=85)
        data.append(stream.getvalue())
    whole, scaled = image_decoder("rgb8"), image_decoder("rgb8", (224, 224))

    def resized(one: bytes) -> Any:
        return np.asarray(Image.fromarray(whole(one)).resize((224, 224), Image.Resampling.BILINEAR))

    def each(decode: Callable[[bytes], Any]) -> Callable[[], None]:
        return lambda: [decode(data[number % 8]) for number in range(count)] and None

    print_medians({"whole, resized": each(resized), "whole": each(whole), "size=224": each(scaled)}, count)
    apart = [np.abs(resized(one).astype(int) - scaled(one)).mean() for one in data]
    print(f"resized and scaled differ by {min(apart):.2f} to {max(apart):.2f} of 255 on average")


def compare_lock(count: int) -> None:
    """Print the table of a small image and a larger one."""
    stream = io.BytesIO()
    Image.open(io.BytesIO(images(1)[0])).crop((0, 0, 8, 8)).save(stream, "JPEG", quality=85)
    for name in ("rgb8", "torchrgb8", "rgb", "torchrgb"):
        stages = (Decode([name]),)
        costs = {}
        for size, data in ((8, stream.getvalue()), (256, images(1)[0])):
            rounds = []
            for _ in range(ROUNDS):
                began = time.thread_time()
                for _ in range(count):
                    run_stages(stages, {"jpg": data}, 0, index=None)
                rounds.append((time.thread_time() - began) / count * 1e6)
            costs[size] = statistics.median(rounds)
        print(f"{name:10} {costs[8]:5.1f} us of CPU for 8 x 8, {costs[256]:5.1f} for 256 x 256")


def main(count: int) -> None:
    """Print the table."""
    base = images(16)
    data = [base[number % 16] for number in range(count)]
    decode = image_decoder("rgb8")
    found: dict[tuple[str, int], list[tuple[float, float]]] = {}
    beside: dict[str, list[float]] = {}
    libraries = {"pillow": lambda: None, "libjpeg-turbo": image_decoding._simplejpeg}  # noqa: SLF001
    for _ in range(ROUNDS):
        beside.setdefault("nothing", []).append(counted_beside(data, None))
        for name, library in libraries.items():
            image_decoding._simplejpeg = library  # type: ignore[assignment]  # noqa: SLF001
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
    words = [word for word in sys.argv[1:] if not word.isdecimal()]
    works = {"": main, "loader": compare_loaders, "size": compare_sizes, "lock": compare_lock}
    works["".join(words)](int(sys.argv[-1]) if sys.argv[-1].isdecimal() else 400)
