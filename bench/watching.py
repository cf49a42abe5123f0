"""Cost of watching a run: the same batches plain, with a page, and with a trace.

``python bench/watching.py [--rounds 7]`` streams tars of small samples from the page cache: in a window, in single
samples, in the order "full" (a read for each sample) and through a function for each sample. Settings take turns, so
that a busy machine slows all alike; the best round of each counts. ``--only plain`` runs on versions without pages and
traces, to compare commits.
"""

from __future__ import annotations

import argparse
import gc
import io
import tarfile
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import shoal

NUM_SHARDS, SAMPLES_PER_SHARD, PAYLOAD_BYTES, EPOCHS = 8, 4000, 2000, 4


def write_shards(directory: Path) -> None:
    """Write tars of samples of 2 KB."""
    for shard in range(NUM_SHARDS):
        with tarfile.open(directory / f"{shard}.tar", "w") as tar:
            for number in range(SAMPLES_PER_SHARD):
                info = tarfile.TarInfo(f"{shard}-{number:06d}.bin")
                info.size = PAYLOAD_BYTES
                tar.addfile(info, io.BytesIO(bytes(PAYLOAD_BYTES)))


def _counted(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "n": len(sample["bin"])}


STREAMS: dict[str, Callable[[Any], Any]] = {
    "window, batches of 64": lambda ds: ds.shuffle(seed=0).batch(64),
    "window, single samples": lambda ds: ds.shuffle(seed=0),
    "full, batches of 64": lambda ds: ds.shuffle("full", seed=0).batch(64),
    "window, map, batches of 64": lambda ds: ds.shuffle(seed=0).map(_counted).batch(64),
}


def main() -> None:
    """Measure and print samples a second, and the loss against plain."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=["plain"])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as directory:
        write_shards(Path(directory))
        settings: dict[str, dict[str, Any]] = {"plain": {}}
        if arguments.only is None:
            settings |= {"page": {"progress": "page"}, "trace": {"trace": f"{directory}/trace.json"}}
        opened = shoal.open(f"{directory}/*.tar")
        for name, make in STREAMS.items():
            best = dict.fromkeys(settings, 0.0)
            for _ in range(arguments.rounds):
                for setting, options in settings.items():
                    stream = make(opened).reading(**options) if options else make(opened)
                    deque(stream, maxlen=0)
                    began = time.perf_counter()
                    for _ in range(EPOCHS):
                        deque(stream, maxlen=0)
                    speed = EPOCHS * opened.num_samples / (time.perf_counter() - began)
                    del stream
                    gc.collect()  # the page ends with its dataset
                    best[setting] = max(best[setting], speed)
            shown = [f"{setting} {speed:9,.0f}/s {speed / best['plain'] - 1:+6.1%}" for setting, speed in best.items()]
            print(f"{name:28}{'   '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
