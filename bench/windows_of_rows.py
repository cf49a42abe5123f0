"""What a window of rows costs, beside a row, and beside windows that are stacked sample by sample; and what is read.

``python bench/windows_of_rows.py`` writes episodes of rows in three formats: Parquet as LeRobot writes it (two fields
of 14 float32, a row group for each episode, and once with row groups that know no episodes), a JSON Lines time series,
and tars of pictures (bytes of 20 KB). It streams windows in batches of 64, shuffled, from the page cache, and prints
processor seconds per window and per row of a window, interleaved over ``--rounds``, the better of them; and the bytes
read per window beside the bytes of its own rows and beside the ideal, each byte of a shard once an epoch.

"by sample" is the same dataset whose windows come as dicts, which the collator stacks. "rows" are the plain rows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import shoal
from shoal.errors import ShuffleWarning
from shoal.formats.windows.window_format import Windows

EPISODE, BATCH = 250, 64


def parquet(directory: Path, num_episodes: int, group_rows: int) -> None:
    """Write two fields of 14 numbers, a frame and an episode."""
    directory.mkdir()
    rng, num_rows = np.random.default_rng(0), num_episodes * EPISODE
    columns = {
        name: pa.FixedSizeListArray.from_arrays(rng.random(num_rows * 14, dtype=np.float32), 14)
        for name in ("observation.state", "action")
    }
    columns["frame_index"] = np.tile(np.arange(EPISODE), num_episodes)
    columns["episode_index"] = np.repeat(np.arange(num_episodes), EPISODE)
    table, part = pa.table(columns), num_rows // 4
    for shard in range(4):
        pq.write_table(table.slice(shard * part, part), directory / f"{shard}.parquet", row_group_size=group_rows)


def lines(directory: Path, num_episodes: int) -> None:
    """Write a time series of six numbers."""
    directory.mkdir()
    rng = np.random.default_rng(0)
    for shard in range(4):
        with (directory / f"{shard}.jsonl").open("w") as file:
            for row in range(num_episodes * EPISODE // 4):
                values = rng.random(4).round(6).tolist()
                named = dict(zip("abcd", values, strict=True))
                file.write(json.dumps({"t": row, "episode_index": shard * 10_000 + row // EPISODE, **named}) + "\n")


def tars(directory: Path, num_episodes: int) -> None:
    """Write pictures as bytes."""
    data = np.random.default_rng(0).bytes(20_000 + EPISODE)
    rows = (
        {"__key__": f"{episode:05d}/{row:04d}", "jpg": data[row : row + 20_000], "cls": episode}
        for episode in range(num_episodes)
        for row in range(EPISODE)
    )
    shoal.pack.pack(rows, directory, format="tar", shard_bytes="1TiB")


def cases(home: Path) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Return the rows of each case, and the function that makes windows of them."""
    parquet(home / "episodes", 2000, EPISODE)
    parquet(home / "groups", 2000, 1700)
    lines(home / "lines", 400)
    tars(home / "tars", 16)
    by_offsets = {"observation.state": [-1, 0], "action": range(16)}
    episodes, groups, series = (shoal.open(home / name) for name in ("episodes", "groups", "lines"))
    pictures = shoal.open(home / "tars", index_columns=["cls"])
    return {
        "parquet, 16 rows": (episodes, lambda rows: rows.windows(16)),
        "parquet, offsets, padded": (episodes, lambda rows: rows.windows(offsets=by_offsets, pad="edge")),
        "parquet, other row groups": (groups, lambda rows: rows.windows(16)),
        "jsonl, 16 rows": (series, lambda rows: rows.windows(16)),
        "tar of pictures, 8 rows": (pictures, lambda rows: rows.windows(8, by="cls")),
        "tar, 8 rows, stride 8": (pictures, lambda rows: rows.windows(8, stride=8, by="cls")),
    }


def timed(ds: Any, num_batches: int) -> tuple[float, int, dict[str, Any]]:
    """Return the processor seconds of some batches, the samples in them, and the counts."""
    iterator, num_samples = iter(ds), 0
    first = next(iterator)
    began = time.process_time()
    for _, batch in zip(range(num_batches), iterator, strict=False):
        num_samples += len(next(iter(batch.values())))
    seconds, stats = time.process_time() - began, ds.stats()
    iterator.close()
    del first
    return seconds, num_samples, stats


def main() -> None:
    """Print the tables."""
    warnings.simplefilter("ignore", ShuffleWarning)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batches", type=int, default=400)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        made = {name: (rows, make(rows)) for name, (rows, make) in cases(Path(home)).items()}
        best: dict[tuple[str, str], float] = {}
        for _ in range(arguments.rounds):
            for name, (rows, windows) in made.items():
                for how, ds in (("rows", rows), ("windows", windows), ("by sample", windows)):
                    Windows.has_columns = how != "by sample"
                    stream = ds.shuffle(seed=0, window="64MiB").batch(BATCH)
                    seconds, num_samples, _ = timed(stream, arguments.batches)
                    each = seconds / num_samples * 1e6
                    best[name, how] = min(best.get((name, how), each), each)
        Windows.has_columns = True
        print(f"{'':28}{'us a row':>10}{'us a window':>13}{'by sample':>11}{'us a row of it':>16}")
        for name, (_, windows) in made.items():
            shape = windows.stream.opened.format.table.shape
            row, window, by_sample = (best[name, how] for how in ("rows", "windows", "by sample"))
            per_row = window / (shape.length if not shape.offsets else 18)
            print(f"{name:28}{row:10.2f}{window:13.2f}{by_sample:11.2f}{per_row:16.3f}")
        print(f"\n{'':28}{'read a window':>14}{'own rows':>10}{'ideal':>9}{'epoch reads the shards':>25}")
        for name, (rows, windows) in made.items():
            stream = windows.columns(*[n for n in windows[0] if n == "cls"] or [*windows[0]][:1])
            stream = stream.shuffle(seed=0, window="64MiB").batch(512)
            for _ in stream:
                pass
            index, shape = rows.stream.opened.index, windows.stream.opened.format.table.shape
            stored, num_windows = int(index.shard_bytes.sum()), windows.num_samples
            read_bytes = stream.stats()["read_bytes"]
            own = stored / index.num_samples * shape.rows_used
            line = f"{read_bytes / num_windows:14,.0f}{own:10,.0f}{stored / num_windows:9,.0f}"
            print(f"{name:28}{line}{read_bytes / stored:19.2f} times")


if __name__ == "__main__":
    main()
