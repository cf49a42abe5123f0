"""Windows with frames from a LeRobot dataset: shoal beside lerobot's own readers.

``python bench/robot_windows.py [--episodes N] [--samples N]`` has lerobot write a dataset (two cameras of 240 x 320,
AV1 with its defaults), and reads shuffled windows of it (two frames of a camera, one of the other, 16 actions) with
shoal, with `LeRobotDataset` and with `StreamingLeRobotDataset`: samples and processor seconds, bytes that the process
read, and frames decoded, per delivered frame. Each reader is a process of its own with one thread for decoding; rounds
alternate.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
FPS, HEIGHT, WIDTH = 30, 240, 320
TOP, WRIST = "observation.images.top", "observation.images.wrist"
OFFSETS = {TOP: [-1, 0], "action": list(range(16)), "observation.state": [-1, 0]}
FRAMES_OF_A_SAMPLE = 3
READERS = ("shoal", "shoal as floats", "shoal, all shuffled", "lerobot torchcodec", "lerobot pyav", "lerobot streaming")


def of_lerobot() -> Any:
    """Return lerobot's module of datasets, inside of its environment."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)
    # PyPI's torchvision does not load its operators without CUDA; the reader of videos needs none.
    torch.library.define("torchvision::nms", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    from lerobot.datasets import lerobot_dataset  # noqa: PLC0415

    return lerobot_dataset


def write(root: Path, num_episodes: int) -> None:
    """Write a dataset with lerobot."""
    names = ["height", "width", "channels"]
    vector = {"dtype": "float32", "shape": (6,), "names": None}
    video = {"dtype": "video", "shape": (HEIGHT, WIDTH, 3), "names": names}
    features = {"observation.state": vector, "action": vector, TOP: video, WRIST: video}
    ds = of_lerobot().LeRobotDataset.create("shoal/bench", fps=FPS, features=features, root=root, use_videos=True)
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    for episode in range(num_episodes):
        still = rng.integers(0, 60, (HEIGHT, WIDTH, 3)) + np.stack([x // 2, y // 2, (x + y) // 4], -1)
        for row in range(150):
            image = still.copy()
            image[row % 200 : row % 200 + 40, (3 * row + episode) % 280 : (3 * row + episode) % 280 + 40] = 200
            frame = {TOP: image.astype(np.uint8), WRIST: image[::-1].astype(np.uint8), "task": "move the block"}
            ds.add_frame(
                {**frame, **{n: rng.normal(size=6).astype(np.float32) for n in ("observation.state", "action")}}
            )
        ds.save_episode(parallel_encoding=False)
    ds.finalize()


def shoal_samples(root: Path, reader: str) -> tuple[Iterable[Any], Callable[[], dict[str, Any]]]:
    """Return shuffled samples, and the counts of their stream."""
    import shoal  # noqa: PLC0415

    windows = shoal.open(f"lerobot://{root}").windows(offsets=OFFSETS, pad="edge").decode_frames(max_concurrency=1)
    ds = windows.shuffle("full" if "all" in reader else "window", seed=0)
    if "floats" in reader:
        ds = ds.map(as_lerobot)
    return ds, lambda: {name: ds.stats()[name] for name in ("num_decoded_frames", "num_frames", "video_bytes")}


def as_lerobot(sample: dict[str, Any]) -> dict[str, Any]:
    """Frames as lerobot gives them: float32 from 0 to 1, channels first."""
    return {n: np.moveaxis(v, -1, -3).astype(np.float32) / 255 if n in (TOP, WRIST) else v for n, v in sample.items()}


def lerobot_samples(root: Path, reader: str) -> tuple[Iterable[Any], Callable[[], dict[str, Any]]]:
    """Return shuffled samples of one of lerobot's readers, and counts."""
    seconds = {name: [offset / FPS for offset in offsets] for name, offsets in OFFSETS.items()}
    module = of_lerobot()
    if "streaming" in reader:
        from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset  # noqa: PLC0415

        return StreamingLeRobotDataset("shoal/bench", root=root, delta_timestamps=seconds, buffer_size=1000), dict
    backend = reader.rpartition(" ")[2]
    ds = module.LeRobotDataset("shoal/bench", root=root, delta_timestamps=seconds, video_backend=backend)
    decoded = 0
    if backend == "pyav":
        import torchvision  # noqa: PLC0415

        following = torchvision.io.VideoReader.__next__

        def counted(video: Any) -> Any:
            nonlocal decoded
            decoded += 1
            return following(video)

        torchvision.io.VideoReader.__next__ = counted
    numbers = np.random.default_rng(0).permutation(len(ds)).tolist()

    def samples() -> Iterator[Any]:
        return (ds[number] for number in numbers)

    return samples(), lambda: {"num_decoded_frames": decoded} if decoded else {}


def read_bytes() -> int:
    """Return the bytes that this process has read from files, from the page cache or not."""
    return int(Path("/proc/self/io").read_text().split()[1])


def measure(root: Path, reader: str, num_samples: int) -> dict[str, Any]:
    """Read some samples, after the first, which opens files."""
    make = shoal_samples if reader.startswith("shoal") else lerobot_samples
    samples, counts = make(root, reader)
    iterator = iter(samples)
    next(iterator)
    before, began, used = read_bytes(), time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    num = sum(1 for _ in islice(iterator, num_samples))
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    found = {"samples": num, "seconds": seconds, "cpu": cpu, "bytes": read_bytes() - before, "peak": after.ru_maxrss}
    return found | counts()


def run(python: str | Path, *words: str) -> str:
    """Run this script with a Python, and return the last line that it prints."""
    from tests.environments import run as ran  # noqa: PLC0415

    outside = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return (ran(python, __file__, *words, env=outside).strip().splitlines() or [""])[-1]


def main() -> None:
    """Write, measure in rounds, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dataset", type=Path)
    parser.add_argument("--inside", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        what, *words = options.inside
        if what == "write":
            write(Path(words[0]), int(words[1]))
        else:
            print(json.dumps(measure(Path(words[0]), words[1], int(words[2]))))
        return
    sys.path.insert(0, str(ROOT))
    from tests.compat.lerobot.robots import python_of  # noqa: PLC0415

    theirs = python_of("0.4.4")
    with tempfile.TemporaryDirectory(prefix="shoal-bench-lerobot-") as home:
        root = options.dataset or Path(home) / "robot"
        if not root.exists():
            run(theirs, "--inside", "write", str(root), str(options.episodes))
        found: dict[str, list[dict[str, Any]]] = {reader: [] for reader in READERS}
        for _ in range(options.rounds):
            for reader in READERS:
                python = sys.executable if reader.startswith("shoal") else theirs
                found[reader].append(
                    json.loads(run(python, "--inside", "read", str(root), reader, str(options.samples)))
                )
        size = sum(path.stat().st_size for path in root.rglob("*.mp4"))
        print(f"{size:,} bytes of video, {subprocess.list2cmdline(sys.argv)}")
    print("| reader | samples/s | CPU ms a sample | bytes read a frame | frames decoded a frame | peak MiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for reader, rounds in found.items():
        best = min(rounds, key=lambda each: each["cpu"])
        frames = best["samples"] * FRAMES_OF_A_SAMPLE
        decoded = (
            f"{best['num_decoded_frames'] / best.get('num_frames', frames + FRAMES_OF_A_SAMPLE):.2f}"
            if "num_decoded_frames" in best
            else "not counted"
        )
        cells = (
            f"{best['samples'] / best['seconds']:.0f}",
            f"{1000 * best['cpu'] / best['samples']:.2f}",
            f"{best['bytes'] / frames:,.0f}",
            decoded,
            f"{best['peak'] / 1024:.0f}",
        )
        print(f"| {reader} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
