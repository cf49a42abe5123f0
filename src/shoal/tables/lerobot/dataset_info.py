"""The description of a LeRobot dataset: ``meta/info.json``, checked, and its patterns of paths."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.errors import SourceError
from shoal.indexing.manifests_beside import read_whole
from shoal.storage.store_protocol import Store
from shoal.storage.urls import join

INFO = "meta/info.json"

_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_READ = ((2, 0), (2, 1), (3, 0))
_FIELD = re.compile(r"\{(\w+)(?::0(\d+)d)?\}")
_HINT = "shoal reads LeRobot datasets v2.0, v2.1 and v3.0; lerobot's scripts convert older ones"


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """The contents of ``meta/info.json``.

    ``version`` is (3, 0), for example. ``cameras`` are the features that are videos. ``data_path`` and ``video_path``
    are patterns of paths below the root. ``splits`` have the episodes ``[first, end)`` of each split.
    """

    version: tuple[int, int]
    fps: float
    cameras: tuple[str, ...]
    fields: tuple[str, ...]
    data_path: str
    video_path: str
    chunk_episodes: int
    num_frames: int
    splits: Mapping[str, tuple[int, int]]

    @property
    def has_shared_files(self) -> bool:
        """True if a file has several episodes."""
        return self.version >= (3, 0)


def read_info(root: str, store: Store) -> DatasetInfo:
    """Read the description of a dataset; raises `SourceError` if there is none, or shoal does not read its version."""
    path = join(root, INFO)
    described = store.find(path)
    if described is None:
        msg = f"{root}: there is no {INFO}, so this is no LeRobot dataset"
        raise SourceError(
            msg, hint='shoal.open("lerobot://PATH-OR-URL") takes the directory that has data, meta and videos'
        )
    try:
        info = json.loads(read_whole(described, store))
        return _info_of(info)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SourceError(f"{path} is not the description of a LeRobot dataset: {error}", hint=_HINT) from None


def _info_of(info: Mapping[str, Any]) -> DatasetInfo:
    numbers = _VERSION.match(str(info["codebase_version"]))
    version = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if version not in _READ:
        raise ValueError(f"its codebase_version is {info['codebase_version']!r}")
    features = info["features"]
    cameras = tuple(name for name, feature in features.items() if feature["dtype"] == "video")
    fields = tuple(name for name in features if name not in cameras)
    return DatasetInfo(
        version,
        float(info["fps"]),
        cameras,
        fields,
        str(info["data_path"]),
        str(info["video_path"]) if cameras else "",
        int(info.get("chunks_size") or 1000),
        int(info["total_frames"]),
        {str(name): _episodes(text) for name, text in (info.get("splits") or {}).items()},
    )


def _episodes(text: Any) -> tuple[int, int]:
    first, mark, end = str(text).partition(":")
    if not mark:
        raise ValueError(f"the split {text!r} is no range of episodes")
    return int(first or 0), int(end) if end else 1 << 62


def filled(pattern: str, **values: Any) -> str:
    """Return a path of a pattern, such as ``data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet``.

    >>> filled("videos/{video_key}/file-{file_index:03d}.mp4", video_key="top", file_index=7)
    'videos/top/file-007.mp4'

    Raises `LookupError` if the pattern has another field.
    """

    def value(field: re.Match[str]) -> str:
        shown = values[field[1]]
        return str(shown) if field[2] is None else f"{shown:0{field[2]}d}"

    path = _FIELD.sub(value, pattern)
    if path.startswith("/") or ".." in path.split("/") or "{" in path:
        raise ValueError(f"the pattern {pattern!r} is no path below the dataset")
    return path
