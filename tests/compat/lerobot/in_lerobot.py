"""Datasets written by lerobot, and what its own reader gives for them.

``python in_lerobot.py write ROOT CODEC``, in an environment with lerobot, writes a dataset, and prints its version.
``python in_lerobot.py read ROOT BACKEND FILE`` keeps all rows, and windows at random rows, as lerobot's dataset gives
them with this decoder of videos. Frames are uint8 of shape (height, width, 3) or with a first axis.

Each is a process of its own: PyAV and torchcodec load an FFmpeg each, and a process that wrote and read has aborted.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

# PyPI's torchvision is built for CUDA, and does not load its operators without it; its reader of videos needs none.
torch.library.define("torchvision::nms", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")

from lerobot.datasets.lerobot_dataset import CODEBASE_VERSION, LeRobotDataset  # noqa: E402

try:
    from lerobot.datasets.video_utils import FrameTimestampError
except ImportError:  # older releases assert
    FrameTimestampError = AssertionError

FPS, HEIGHT, WIDTH = 10, 128, 160
TOP, WRIST = "observation.images.top", "observation.images.wrist"
OFFSETS = {TOP: [-2, 0, 1], "action": list(range(16)), "observation.state": [-1, 0]}
NUM_WINDOWS, NUM_EPISODES = 120, 12
REFUSED = "refused"  # the field of a sample that its reader cannot read


def picture(rng: np.random.Generator, height: int, width: int, episode: int, row: int) -> np.ndarray:
    """A picture that no other row has: gradients that move, and a block of noise."""
    y, x = np.mgrid[:height, :width]
    image = np.stack(
        [x * 2 + row * 5 + episode * 40, y * 3 + row * 9, np.full((height, width), row * 6 + episode * 17)], -1
    )
    image = (image % 256).astype(np.uint8)
    image[:16, :16] = rng.integers(0, 256, (16, 16, 3))
    return image


def features() -> dict[str, Any]:
    """Two cameras, vectors and a number."""
    names = ["height", "width", "channels"]
    return {
        "observation.state": {"dtype": "float32", "shape": (6,), "names": None},
        "action": {"dtype": "float32", "shape": (4,), "names": None},
        "next.reward": {"dtype": "float32", "shape": (1,), "names": None},
        TOP: {"dtype": "video", "shape": (HEIGHT, WIDTH, 3), "names": names},
        WRIST: {"dtype": "video", "shape": (HEIGHT // 2, WIDTH // 2, 3), "names": names},
    }


def write(root: Path, codec: str, num_episodes: int) -> None:
    """Write a dataset by lerobot's own recorder."""
    options = {"vcodec": codec} if "vcodec" in inspect.signature(LeRobotDataset.create).parameters else {}
    ds = LeRobotDataset.create("shoal/robot", fps=FPS, features=features(), root=root, use_videos=True, **options)
    if hasattr(ds.meta, "update_chunk_settings"):
        ds.meta.update_chunk_settings(video_files_size_in_mb=0.05, data_files_size_in_mb=0.02)
    rng = np.random.default_rng(len(codec))
    takes_task = "task" in inspect.signature(ds.add_frame).parameters
    for episode in range(num_episodes):
        for row in range(int(rng.integers(3, 40))):
            frame = {
                "observation.state": rng.normal(size=6).astype(np.float32),
                "action": rng.normal(size=4).astype(np.float32),
                "next.reward": rng.random(1).astype(np.float32),
                TOP: picture(rng, HEIGHT, WIDTH, episode, row),
                WRIST: picture(rng, HEIGHT // 2, WIDTH // 2, episode, row),
            }
            task = f"task {episode % 3}: stäck"
            if takes_task:
                ds.add_frame(frame, task)
            else:
                ds.add_frame({**frame, "task": task})
        # A forked process that encodes may abort: encoders have threads.
        has_processes = "parallel_encoding" in inspect.signature(ds.save_episode).parameters
        ds.save_episode(**({"parallel_encoding": False} if has_processes else {}))
    if hasattr(ds, "finalize"):
        ds.finalize()


def plain(value: Any, name: str) -> np.ndarray:
    """A value as an array: frames as bytes, with channels last."""
    if not torch.is_tensor(value):
        return np.array(value)
    array = value.numpy()
    if name in (TOP, WRIST):
        array = np.moveaxis(np.rint(array * 255).astype(np.uint8), -3, -1)
    return array


def read(root: Path, backend: str, path: Path) -> None:
    """Keep all rows, and some windows."""
    kept: dict[str, Any] = {}
    rows = LeRobotDataset("shoal/robot", root=root, video_backend=backend)
    seconds = {name: [offset / FPS for offset in offsets] for name, offsets in OFFSETS.items()}
    windows = LeRobotDataset("shoal/robot", root=root, video_backend=backend, delta_timestamps=seconds)
    anchors = np.random.default_rng(1).permutation(len(rows))[:NUM_WINDOWS].tolist()
    for kind, ds, numbers in (("rows", rows, range(len(rows))), ("windows", windows, anchors)):
        for row in numbers:
            try:
                sample = ds[row]
            except FrameTimestampError:  # its reader begins at a keyframe, and does not get frames shown before it
                kept[f"{kind}/{row}/{REFUSED}"] = np.array(True)
                continue
            kept |= {f"{kind}/{row}/{name}": plain(value, name) for name, value in sample.items()}
    np.savez(path, **kept)


def main() -> None:
    """Write or read."""
    what, root, *words = sys.argv[1:]
    if what == "write":
        write(Path(root), words[0], NUM_EPISODES)
        print(CODEBASE_VERSION)
    else:
        read(Path(root), words[0], Path(words[1]))


if __name__ == "__main__":
    main()
