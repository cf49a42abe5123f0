"""Rows of episodes in several formats, and the windows that a plain loop makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.samples import write_tar
from tests.stream.made import open_finely

from shoal.stream.dataset import Dataset

Shards = Sequence[Sequence[int]]
"""The number of rows of each episode of each shard."""


def rows_of(shards: Shards) -> Iterator[list[dict[str, Any]]]:
    """The rows of each shard; each row says which it is."""
    number = episode = 0
    for lengths in shards:
        rows = []
        for length in lengths:
            for frame in range(length):
                state = np.arange(number, number + 3, dtype=np.float32)
                rows.append({"episode_index": episode, "frame": frame, "number": number, "state": state})
                rows[-1] |= {"text": f"row {number} " + "x" * (number * 37 % 200)}
                number += 1
            episode += 1
        yield rows


def write_rows(directory: Path, shards: Shards, form: str, *, group_rows: int = 7) -> Path:
    directory.mkdir(parents=True)
    for shard, rows in enumerate(rows_of(shards)):
        path = directory / f"s-{shard:03d}.{form}"
        if form == "jsonl":
            lines = ({**row, "state": row["state"].tolist()} for row in rows)
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        elif form == "parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            kinds = {"episode_index": pa.int64(), "frame": pa.int32(), "number": pa.int64()}
            kinds |= {"state": pa.list_(pa.float32(), 3), "text": pa.string()}
            table = pa.Table.from_pylist([{**row, "state": row["state"].tolist()} for row in rows], pa.schema(kinds))
            pq.write_table(table, path, row_group_size=group_rows)
        else:
            write_tar(path, [_members(row) for row in rows])
    return directory


def _members(row: Mapping[str, Any]) -> dict[str, bytes]:
    named = {name: str(row[name]).encode() for name in ("episode_index", "frame", "number", "text")}
    return {"__key__": f"{row['number']:06d}".encode(), **named, "json": json.dumps(row["state"].tolist()).encode()}


def open_rows(directory: Path, form: str, extent_bytes: int) -> Dataset:
    if form == "parquet":
        import shoal

        return shoal.open(directory)
    return open_finely(directory, extent_bytes=extent_bytes)


def naive(rows: Sequence[dict[str, Any]], shape: Mapping[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The anchor and the values of every window of the samples of all rows."""
    length, stride, pad = shape.get("length"), shape.get("stride", 1), shape.get("pad")
    offsets = shape.get("offsets") or {}
    for episode in dict.fromkeys(int(row["episode_index"]) for row in rows):
        own = [number for number, row in enumerate(rows) if int(row["episode_index"]) == episode]
        reach = [0, *range(length or 1), *(offset for some in offsets.values() for offset in some)]
        anchors = [
            place
            for place in range(len(own))
            if pad is not None or all(0 <= place + offset < len(own) for offset in reach)
        ]
        for place in anchors[::stride]:
            yield own[place], _window(rows, own, place, length, offsets, pad)


def _window(
    rows: Sequence[dict[str, Any]], own: list[int], place: int, length: int | None, offsets: Any, pad: Any
) -> dict[str, Any]:
    window: dict[str, Any] = {}
    for name, value in rows[own[place]].items():
        some = offsets.get(name) if offsets else range(length or 1)
        if some is None or name == "__key__":
            window[name] = value
            continue
        places = [place + offset for offset in some]
        outside = [not 0 <= each < len(own) for each in places]
        values = [rows[own[min(max(each, 0), len(own) - 1)]][name] for each in places]
        if pad not in (None, "edge"):
            values = [_filled(each, pad) if out else each for each, out in zip(values, outside, strict=True)]
        numeric = all(isinstance(each, int | float | np.number | np.ndarray) for each in values)
        window[name] = np.stack([np.asarray(each) for each in values]) if numeric else values
        if pad is not None:
            window[f"{name}_is_pad" if offsets else "is_pad"] = np.array(outside)
    return window


def _filled(value: Any, pad: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.full_like(value, pad)
    return type(value)(pad) if isinstance(value, int | float | np.number) else None


def assert_same(one: Any, other: Any) -> None:
    """Equal samples, in values, types and shapes."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(other[name], np.ndarray):
            assert value.dtype == other[name].dtype
            np.testing.assert_array_equal(value, other[name])
        elif isinstance(other[name], list):
            assert [*map(_plain, value)] == [*map(_plain, other[name])]
        else:
            assert type(value) is type(other[name])
            assert value == other[name]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
