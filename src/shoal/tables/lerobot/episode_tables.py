"""The episodes of a LeRobot dataset: their files, where they begin in their videos, and the texts of tasks."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import SourceError, StorageError
from shoal.formats.tables.arrow_types import arrow_library
from shoal.indexing.manifests_beside import read_whole
from shoal.storage.store_protocol import ObjectInfo, Store
from shoal.storage.urls import join
from shoal.tables.lerobot.dataset_info import DatasetInfo, filled

_MOST_FILES = 1 << 20
_TEXTS = {"task": ("meta/tasks", "task_index"), "subtask": ("meta/subtasks", "subtask_index")}


class Episodes(NamedTuple):
    """The episodes of a dataset, by their number: all arrays have shape (num_episodes,).

    ``data`` has the number of the data file in ``data_names``. ``videos`` and ``first_seconds`` have, by camera, the
    number of the video in ``video_names`` and the time of the episode's first frame there.
    """

    data_names: tuple[str, ...]
    data: NDArray[np.int32]
    lengths: NDArray[np.int64]
    video_names: tuple[str, ...]
    videos: Mapping[str, NDArray[np.int32]]
    first_seconds: Mapping[str, NDArray[np.float64]]


def read_episodes(root: str, info: DatasetInfo, store: Store) -> Episodes:
    """Read which files have which episodes; raises `SourceError` if episodes are missing or described twice."""
    try:
        columns = _shared(root, info, store) if info.has_shared_files else _alone(root, info, store)
        return _episodes_of(columns, info)
    except (LookupError, ValueError, TypeError) as error:
        msg = f"{root}: the description of episodes in meta cannot be read: {error}"
        raise SourceError(msg, hint="copy or download the directory meta again") from None


def read_texts(root: str, info: DatasetInfo, store: Store) -> dict[str, tuple[str, Sequence[str]]]:
    """Return the texts of tasks, and of subtasks if there are any, with the fields that have their numbers."""
    texts: dict[str, tuple[str, Sequence[str]]] = {}
    for name, (path, field) in _TEXTS.items():
        if field in info.fields and (rows := _numbered_texts(root, path, name, field, info, store)):
            listed = [""] * (max(rows) + 1)
            for number, text in rows.items():
                listed[number] = text
            texts[name] = (field, listed)
    return texts


def _numbered_texts(root: str, path: str, name: str, field: str, info: DatasetInfo, store: Store) -> dict[int, str]:
    suffix = ".parquet" if info.has_shared_files else ".jsonl"
    file = store.find(join(root, path + suffix))
    if file is None:
        return {}
    if not info.has_shared_files:
        return {int(row[field]): str(row[name]) for row in _lines(file, store)}
    table = _table(file, store)
    (text_name,) = [column for column in table.column_names if column != field][:1]  # the index of a pandas table
    return dict(zip(map(int, table[field].to_pylist()), map(str, table[text_name].to_pylist()), strict=True))


def _shared(root: str, info: DatasetInfo, store: Store) -> dict[str, list[Any]]:
    """Return the columns of v3: files with many episodes each."""
    wanted = ["episode_index", "length", "data/chunk_index", "data/file_index"]
    for camera in info.cameras:
        wanted += [f"videos/{camera}/{each}" for each in ("chunk_index", "file_index", "from_timestamp")]
    rows: dict[str, list[Any]] = {name: [] for name in wanted}
    for file in _description_files(root, store):
        table = _table(file, store, columns=wanted)
        for name in wanted:
            rows[name] += table[name].to_pylist()
    columns: dict[str, list[Any]] = {"episode": rows["episode_index"], "length": rows["length"]}
    places = zip(rows["data/chunk_index"], rows["data/file_index"], strict=True)
    columns["data"] = [filled(info.data_path, chunk_index=chunk, file_index=file) for chunk, file in places]
    for camera in info.cameras:
        chunks, files = (rows[f"videos/{camera}/{each}"] for each in ("chunk_index", "file_index"))
        columns[camera] = [
            filled(info.video_path, video_key=camera, chunk_index=chunk, file_index=file)
            for chunk, file in zip(chunks, files, strict=True)
        ]
        columns[f"first of {camera}"] = rows[f"videos/{camera}/from_timestamp"]
    return columns


def _alone(root: str, info: DatasetInfo, store: Store) -> dict[str, list[Any]]:
    """Return the columns of v2: a file for each episode and camera."""
    rows = list(_lines(store.stat(join(root, "meta/episodes.jsonl")), store))
    episodes = [int(row["episode_index"]) for row in rows]

    def names(pattern: str, **more: str) -> list[str]:
        return [
            filled(pattern, episode_chunk=episode // info.chunk_episodes, episode_index=episode, **more)
            for episode in episodes
        ]

    columns: dict[str, list[Any]] = {
        "episode": episodes,
        "length": [int(row["length"]) for row in rows],
        "data": names(info.data_path),
    }
    for camera in info.cameras:
        columns[camera] = names(info.video_path, video_key=camera)
        columns[f"first of {camera}"] = [0.0] * len(episodes)
    return columns


def _episodes_of(columns: Mapping[str, list[Any]], info: DatasetInfo) -> Episodes:
    numbers = np.array(columns["episode"], dtype=np.int64)
    if sorted(numbers.tolist()) != list(range(len(numbers))):
        raise ValueError(f"{len(numbers)} episodes are described, but not each number from 0 on once")
    order = np.argsort(numbers)
    data_names, data = _numbered([columns["data"][number] for number in order])
    videos, first_seconds, video_names = {}, {}, dict[str, int]()
    for camera in info.cameras:
        names = [columns[camera][number] for number in order]
        for name in names:
            video_names.setdefault(name, len(video_names))
        videos[camera] = np.array([video_names[name] for name in names], dtype=np.int32)
        first_seconds[camera] = np.array(columns[f"first of {camera}"], dtype=np.float64)[order]
    lengths = np.array(columns["length"], dtype=np.int64)[order]
    return Episodes(tuple(data_names), data, lengths, tuple(video_names), videos, first_seconds)


def _numbered(names: Sequence[str]) -> tuple[list[str], NDArray[np.int32]]:
    """Return the distinct names in their order, and the number of each name among them."""
    distinct = list(dict.fromkeys(names))
    numbers = {name: number for number, name in enumerate(distinct)}
    return distinct, np.array([numbers[name] for name in names], dtype=np.int32)


def _description_files(root: str, store: Store) -> list[ObjectInfo]:
    """Return the files that describe episodes: from a listing, or by their numbers if the store cannot list."""
    prefix = join(root, "meta/episodes")
    try:
        files = [info for info in store.list(f"{prefix.rstrip('/')}/") if info.path.endswith(".parquet")]
    except StorageError:
        files = list(_by_number(root, store))
    if not files:
        raise ValueError("there are no files in meta/episodes")
    return files


def _by_number(root: str, store: Store) -> Iterator[ObjectInfo]:
    for chunk in range(_MOST_FILES):
        for number in range(_MOST_FILES):
            file = store.find(join(root, f"meta/episodes/chunk-{chunk:03d}/file-{number:03d}.parquet"))
            if file is None:
                break
            yield file
        if not number:
            return


def _table(file: ObjectInfo, store: Store, *, columns: list[str] | None = None) -> Any:
    arrow_library("a LeRobot dataset")
    import pyarrow.parquet as pq  # noqa: PLC0415  # optional, and slow to import

    try:
        return pq.ParquetFile(io.BytesIO(read_whole(file, store))).read(columns, use_threads=False)
    except OSError as error:
        raise ValueError(f"{file.path}: {error}") from None


def _lines(file: ObjectInfo, store: Store) -> Iterator[Any]:
    for line in read_whole(file, store).splitlines():
        if line.strip():
            yield json.loads(line)
