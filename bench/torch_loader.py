"""What a resume and an end cost, and what threads and worker processes gain, with `shoal.torch.DataLoader`.

``python bench/torch_loader.py`` makes 400,000 JSON lines (90 MB) and 4,000 JPEGs of 256 x 256 (80 MB) in a temporary
directory. It prints the time from a new loader to its first batch at the start, in the middle and at 99 % of the epoch;
samples a second with threads (``num_workers=0``) and with processes, where the samples are small, where each costs
0.2 ms of Python, and where each is an image; and how long it takes to leave a loop. The best of three, but for the
last: there it is the worst of twenty.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import shoal
import shoal.torch
from shoal.errors import ShuffleWarning
from shoal.testing import RangeServer

NUM_SHARDS, LINES = 20, 20_000
NUM_IMAGES, SIDE = 4_000, 256
BATCH, BATCH_OF_IMAGES = 256, 64


def write(directory: Path) -> None:
    directory.mkdir()
    for shard in range(NUM_SHARDS):
        lines = (json.dumps({"id": shard * LINES + i, "text": "x" * 200}) + "\n" for i in range(LINES))
        (directory / f"s-{shard:03d}.jsonl").write_text("".join(lines))


def write_images(path: Path, num_images: int = NUM_IMAGES) -> None:
    """JPEGs of smooth noise: as large as photographs of their size."""
    draw = np.random.default_rng(0)
    with tarfile.open(path, "w") as tar:
        for number in range(num_images):
            coarse = draw.integers(0, 255, (SIDE // 8, SIDE // 8, 3), dtype=np.uint8)
            buffer = io.BytesIO()
            Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
            info = tarfile.TarInfo(f"{number:05d}.jpg")
            info.size = buffer.tell()
            buffer.seek(0)
            tar.addfile(info, buffer)


def work(sample: dict[str, Any]) -> dict[str, Any]:
    """A function of the user that takes 0.2 ms."""
    until = time.perf_counter() + 0.0002
    while time.perf_counter() < until:
        pass
    return sample


def main() -> None:
    warnings.simplefilter("ignore", ShuffleWarning)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["SHOAL_CACHE_DIR"] = f"{scratch}/cache"
        data, images = Path(scratch, "data"), Path(scratch, "images.tar")
        write(data)
        write_images(images)
        plain = shoal.open(data).shuffle(seed=0, window="8MiB").with_ids()
        print("milliseconds to the first batch of a new loader, by position; bytes of the state")
        for num_workers in (0, 2):
            for share in (0.0, 0.5, 0.99):
                state = plain.state_at(int(plain.num_samples * share))
                best = min(first_batch(plain, num_workers, state) for _ in range(3))
                print(f"  {num_workers} workers, {share:4.0%}: {1000 * best:5.0f} ms, {len(json.dumps(state))} bytes")
        print("samples a second, the start left out")
        for name, ds, num_steps in (("small samples", plain, 200), ("0.2 ms each", plain.map(work), 40)):
            for num_workers in (0, 1, 2):
                best = max(rate(ds.batch(BATCH), num_steps, num_workers=num_workers) for _ in range(3))
                print(f"  {name}, {num_workers} workers: {best * BATCH:9,.0f}")
        pictures = shoal.open(images).shuffle(seed=0).decode("rgb8").batch(BATCH_OF_IMAGES)
        ways: list[dict[str, int]] = [{"num_threads": count} for count in (1, 2, 4)]
        for way in (*ways, *({"num_workers": count} for count in (1, 2, 4))):
            best = max(rate(pictures, 20, **way) for _ in range(3)) * BATCH_OF_IMAGES
            name, count = next(iter(way.items()))
            print(f"  images, {count} {name.removeprefix('num_')}: {best:9,.0f}")
        print("milliseconds to leave a loop, at worst")
        for name, ds in (("small samples", plain.batch(BATCH)), ("images", pictures)):
            for num_workers in (0, 2):
                worst = max(leaving(ds, num_workers) for _ in range(20))
                print(f"  {name}, {num_workers} workers: {1000 * worst:5.0f}")
        with RangeServer(data) as server:
            far = shoal.open([server.url_of(path.name) for path in sorted(data.iterdir())], index=index_of(data))
            far = far.shuffle(seed=0, window="8MiB")
            list(zip(range(3), far, strict=False))  # the shards are those of the index
            worst = max(leaving(far.batch(BATCH), 0, server=server) for _ in range(3))
            print(f"  a server that is silent, 0 workers: {1000 * worst:5.0f}")


def index_of(data: Path) -> Path:
    """The index of the shards, written to a file."""
    path = data.parent / "lines.index"
    subprocess.run(
        [sys.executable, "-m", "shoal", "index", str(data), "--output", str(path)], check=True, capture_output=True
    )
    return path


def first_batch(ds: shoal.Dataset, num_workers: int, state: dict[str, Any]) -> float:
    loader = shoal.torch.DataLoader(ds.batch(BATCH), num_workers=num_workers)
    loader.load_state_dict(state)
    began = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    seconds = time.perf_counter() - began
    iterator.close()
    return seconds


def rate(ds: shoal.Dataset, num_steps: int, **way: int) -> float:
    """Batches a second."""
    iterator = iter(shoal.torch.DataLoader(ds, **way))
    next(iterator)
    began = time.perf_counter()
    for _ in range(num_steps):
        next(iterator)
    seconds = time.perf_counter() - began
    iterator.close()
    return num_steps / seconds


def leaving(ds: shoal.Dataset, num_workers: int, server: RangeServer | None = None) -> float:
    """Seconds from the third batch to the end of the loop, with all that was made ahead under way."""
    iterator = iter(shoal.torch.DataLoader(ds, num_workers=num_workers))
    for _ in range(3):
        next(iterator)
    if server is not None:
        server.latency_seconds = 5.0
        time.sleep(0.1)
    began = time.perf_counter()
    iterator.close()
    seconds = time.perf_counter() - began
    if server is not None:
        server.latency_seconds = 0.0
    return seconds


if __name__ == "__main__":
    main()
