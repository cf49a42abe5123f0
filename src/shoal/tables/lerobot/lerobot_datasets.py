"""LeRobot datasets by name: ``lerobot://`` and a path or URL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import SourceError, StorageError
from shoal.formats.decoding.video.video_table import VideoFile
from shoal.formats.tables.episode_rows import Cameras, EpisodeRows
from shoal.hints import did_you_mean
from shoal.indexing.tables.snapshot_protocol import Snapshot, TableRequest
from shoal.reading.videos.video_tables import VideoFiles
from shoal.storage.cache_directory import expand_home
from shoal.storage.sources.source import Source
from shoal.storage.stat_many import stat_all
from shoal.storage.store_protocol import ObjectInfo, Store
from shoal.storage.urls import join, scheme_of
from shoal.tables.lerobot.dataset_info import DatasetInfo, read_info
from shoal.tables.lerobot.episode_tables import Episodes, read_episodes, read_texts

_LISTED = 64  # videos; fewer are looked up one by one


class LeRobot:
    """The kind of LeRobot datasets: rows are the frames of episodes, and cameras are references into videos.

    Opening reads ``meta`` and the index boxes of all videos, which are then cached on this machine.
    """

    name = "lerobot"

    def snapshot(self, request: TableRequest) -> Snapshot:
        """Resolve a dataset to its data files; raises `SourceError` if its description cannot be read."""
        request.wanted.refuse_for(request.root)
        root = request.root if scheme_of(request.root) else str(Path(expand_home(request.root)).absolute())
        info = read_info(root, request.store)
        episodes = read_episodes(root, info, request.store)
        names = episodes.data_names
        if not names:
            raise SourceError(f"{root}: the dataset has no episodes", hint="record some first")
        source = Source("list", f"lerobot://{request.root}", root, names, tuple(join(root, name) for name in names))
        videos = _videos(root, episodes.video_names, request.store)
        videos.make_tables()
        texts = read_texts(root, info, request.store)
        cameras = Cameras(root, videos.files, episodes.videos, episodes.first_seconds, texts)
        version = {"lerobot": f"v{info.version[0]}.{info.version[1]}", "videos": videos.digest()}
        return Snapshot(
            source, EpisodeRows(cameras), version, deleted=_rows_outside(info, episodes, request.split, root)
        )


def _videos(root: str, names: Sequence[str], store: Store) -> VideoFiles:
    """Return the videos with sizes and versions; raises `StorageError` if one is missing."""
    paths = [join(root, name) for name in names]
    listed = _listed(root, store) if len(names) > _LISTED else {}
    missing = [path for path in paths if path not in listed]
    listed |= {info.path: info for info in stat_all(missing, store)}
    files = [
        VideoFile(name, listed[path].num_bytes, listed[path].version) for name, path in zip(names, paths, strict=True)
    ]
    return VideoFiles(store, root, tuple(files))


def _listed(root: str, store: Store) -> dict[str, ObjectInfo]:
    try:
        return {info.path: info for info in store.list(f"{join(root, 'videos')}/")}
    except StorageError:
        return {}  # each is looked up


def _rows_outside(info: DatasetInfo, episodes: Episodes, split: Any, root: str) -> dict[str, NDArray[np.int64]]:
    """Return the rows that the chosen splits do not have, by data file."""
    if split is None or split == "all":
        return {}
    wanted = [split] if isinstance(split, str) else list(split)
    if unknown := [name for name in wanted if name not in info.splits]:
        known = ", ".join(info.splits) or "none"
        msg = f"{root}: there is no split {unknown[0]!r}; the splits in meta/info.json are {known}"
        raise SourceError(msg, hint=did_you_mean(unknown[0], info.splits) + "leave out split= for all episodes")
    is_wanted = np.zeros(len(episodes.lengths), dtype=np.bool_)
    for name in wanted:
        first, end = info.splits[name]
        is_wanted[first:end] = True
    outside = {}
    for number, name in enumerate(episodes.data_names):
        inside = np.flatnonzero(episodes.data == number)
        rows = np.repeat(is_wanted[inside], episodes.lengths[inside])
        if not rows.all():
            outside[name] = np.flatnonzero(~rows)
    return outside
