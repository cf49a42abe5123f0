"""Small LeRobot datasets for tests: each frame shows the number of its row, also after lossy compression."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FPS, HEIGHT, WIDTH = 10, 48, 64
BITS, BLOCK = 16, 8
CAMERAS = ("observation.image", "observation.wrist")
TASKS = ("put the cup away", "open the drawer")


def picture(number: int, camera: int) -> NDArray[np.uint8]:
    """A picture of a number: blocks of black and white for its bits, and a shade for the camera."""
    image = np.full((HEIGHT, WIDTH, 3), 90 + 40 * camera, np.uint8)
    for bit in range(BITS):
        row, column = divmod(bit, WIDTH // BLOCK)
        image[row * BLOCK : (row + 1) * BLOCK, column * BLOCK : (column + 1) * BLOCK] = 255 * (number >> bit & 1)
    return image


def number_in(image: NDArray[np.uint8]) -> int:
    """The number that a picture shows."""
    blocks = image[: 2 * BLOCK].reshape(2, BLOCK, WIDTH // BLOCK, BLOCK, 3).mean(axis=(1, 3, 4)).ravel()
    return sum(int(value > 127) << bit for bit, value in enumerate(blocks))


def write_video(path: Path, images: Sequence[NDArray[np.uint8]], *, codec: str, options: dict[str, str]) -> None:
    """Write images as a video of `FPS` frames a second."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        track: Any = container.add_stream(codec, rate=FPS, options=options)
        track.height, track.width, track.pix_fmt = (*images[0].shape[:2], "yuv420p")
        track.codec_context.thread_count = 1
        for image in images:
            container.mux(track.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(track.encode())


def write_robot(
    root: Path,
    lengths: Sequence[int] = (7, 12, 3, 9, 1, 14),
    *,
    version: str = "v3.0",
    episodes_per_file: int = 3,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
) -> Path:
    """Write a dataset of episodes of these lengths, as LeRobot v3.0 or v2.1 lays it out; return its directory.

    Row ``index`` has the state ``[index, -index]``, and each camera shows ``index``.
    """
    per_file = 1 if version.startswith("v2") else episodes_per_file
    firsts = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    files = [range(first, min(first + per_file, len(lengths))) for first in range(0, len(lengths), per_file)]
    how = {"g": "4", "bf": "2", "threads": "1"} if options is None else options
    described = []
    for number, episodes in enumerate(files):
        _write_rows(root / _data_path(version, number), firsts, episodes)
        rows = range(firsts[episodes[0]], firsts[episodes[-1] + 1])
        for camera, name in enumerate(CAMERAS):
            images = [picture(row, camera) for row in rows]
            write_video(root / _video_path(version, number, name), images, codec=codec, options=how)
        for episode in episodes:
            row = {"episode_index": episode, "tasks": [TASKS[episode % 2]], "length": lengths[episode]}
            row |= {"data/chunk_index": 0, "data/file_index": number}
            for name in CAMERAS:
                begin = (firsts[episode] - rows[0]) / FPS
                row |= {f"videos/{name}/chunk_index": 0, f"videos/{name}/file_index": number}
                row |= {
                    f"videos/{name}/from_timestamp": begin,
                    f"videos/{name}/to_timestamp": begin + lengths[episode] / FPS,
                }
            described.append(row)
    _describe(root, version, described, num_frames=firsts[-1])
    return root


def _data_path(version: str, number: int) -> str:
    name = f"file-{number:03d}" if version == "v3.0" else f"episode_{number:06d}"
    return f"data/chunk-000/{name}.parquet"


def _video_path(version: str, number: int, camera: str) -> str:
    if version == "v3.0":
        return f"videos/{camera}/chunk-000/file-{number:03d}.mp4"
    return f"videos/chunk-000/{camera}/episode_{number:06d}.mp4"


def _write_rows(path: Path, firsts: Sequence[int], episodes: range) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, list[Any]] = {name: [] for name in ("state", "seconds", "frame", "episode", "index", "task")}
    for episode in episodes:
        for frame, index in enumerate(range(firsts[episode], firsts[episode + 1])):
            values = ([index, -index], frame / FPS, frame, episode, index, episode % 2)
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
    table = pa.table({
        "observation.state": pa.array(columns["state"], pa.list_(pa.float32(), 2)),
        "action": pa.array(columns["state"], pa.list_(pa.float32(), 2)),
        "timestamp": pa.array(columns["seconds"], pa.float32()),
        "frame_index": columns["frame"],
        "episode_index": columns["episode"],
        "index": columns["index"],
        "task_index": columns["task"],
    })  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=8)


def _describe(root: Path, version: str, episodes: list[dict[str, Any]], *, num_frames: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ["height", "width", "channels"]
    features: dict[str, Any] = {
        name: {"dtype": "video", "shape": [HEIGHT, WIDTH, 3], "names": names} for name in CAMERAS
    }
    features |= {name: {"dtype": "float32", "shape": [2], "names": None} for name in ("observation.state", "action")}
    features["timestamp"] = {"dtype": "float32", "shape": [1], "names": None}
    for name in ("frame_index", "episode_index", "index", "task_index"):
        features[name] = {"dtype": "int64", "shape": [1], "names": None}
    is_new = version == "v3.0"
    info = {
        "codebase_version": version, "fps": FPS, "chunks_size": 1000, "features": features,
        "total_episodes": len(episodes), "total_frames": num_frames, "total_tasks": len(TASKS),
        "splits": {"train": f"0:{len(episodes) - 1}", "val": f"{len(episodes) - 1}:{len(episodes)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet" if is_new
        else "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4" if is_new
        else "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    }  # fmt: skip
    meta = root / "meta"
    meta.mkdir(parents=True, exist_ok=True)
    (meta / "info.json").write_text(json.dumps(info))
    if is_new:
        path = meta / "episodes" / "chunk-000" / "file-000.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(episodes), path)
        pq.write_table(pa.table({"task_index": [0, 1], "__index_level_0__": list(TASKS)}), meta / "tasks.parquet")
        return
    kept = ("episode_index", "tasks", "length")
    lines = [json.dumps({name: row[name] for name in kept}) for row in episodes]
    (meta / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    (meta / "episodes_stats.jsonl").write_text(
        "".join(json.dumps({"episode_index": row["episode_index"]}) + "\n" for row in episodes)
    )
    tasks = [json.dumps({"task_index": number, "task": task}) for number, task in enumerate(TASKS)]
    (meta / "tasks.jsonl").write_text("\n".join(tasks) + "\n")


if __name__ == "__main__":
    write_robot(Path(__file__).parent / "guides" / "robot", (12, 9, 14, 10), episodes_per_file=2)
