"""Draws ``live_page.png``: ``python docs/images/draw_live_page.py`` (20 seconds; needs Chromium and Pillow).

A run reads shards from a slow server on this machine, and trains for 10 ms a step; the picture is its page after 15 s.
"""

from __future__ import annotations

import io
import sys
import tarfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

import shoal
from shoal.testing import RangeServer

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.integration.browser import browser

from shoal.watch.page_reporter import address_of

_NUM_SHARDS, _SAMPLES, _SAMPLE_BYTES = 8, 600, 20_000


def shard(number: int) -> bytes:
    """A tar with random samples."""
    file, random = io.BytesIO(), np.random.default_rng(number)
    with tarfile.open(fileobj=file, mode="w") as tar:
        for sample in range(_SAMPLES):
            info = tarfile.TarInfo(f"{number}-{sample:05d}.bin")
            info.size = _SAMPLE_BYTES
            tar.addfile(info, io.BytesIO(random.bytes(_SAMPLE_BYTES)))
    return file.getvalue()


def main() -> None:
    """Run, and take the picture."""
    warnings.simplefilter("ignore")
    objects = {f"bucket/train-{number:03d}.tar": shard(number) for number in range(_NUM_SHARDS)}
    with RangeServer(objects, latency_seconds=0.4, bytes_per_second=2e6) as server:
        urls = [server.url_of(name) for name in objects]
        train = shoal.open(urls).shuffle(seed=0, window="16MiB").batch(32).reading(progress="page")

        is_over = threading.Event()

        def run() -> None:
            while not is_over.is_set():
                for _ in train:
                    time.sleep(0.01)
                    if is_over.is_set():
                        return

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(15)
        url = address_of(train.stream.counters)
        assert url is not None  # noqa: S101
        try:
            with browser() as tab:
                tab.look(url, width=1000)
                tab.evaluate("new Promise(done => setTimeout(done, 1500))")
                height = round(
                    tab.evaluate("[...document.querySelectorAll('figure')].at(-1).getBoundingClientRect().bottom")
                )
                path = Path(__file__).with_name("live_page.png")
                tab.screenshot(path)
        finally:
            is_over.set()
            thread.join()
    picture = Image.open(path)
    picture.crop((0, 0, picture.width, height + 20)).quantize(64).save(path, optimize=True)


if __name__ == "__main__":
    main()
