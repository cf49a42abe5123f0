"""Rows of episodes whose frames are in videos: Parquet rows, with a reference to a frame for each camera.

A reference is the number of a video and a time in it, 12 bytes. `shoal.pipeline.stages.decode_frames` turns references
into pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.decoding.video.video_table import VideoFile
from shoal.formats.field_columns import Columns, Kind
from shoal.formats.shard_format import Format, ReadBytes, Records, Sample, Span, Spilled, SpillSpace
from shoal.formats.tables.arrow_columns import stored_column
from shoal.formats.tables.arrow_types import arrow_library
from shoal.formats.tables.parquet import Parquet
from shoal.index.shard_scan import Buffer, ShardScan

FRAME = np.dtype([("video", np.int32), ("seconds", np.float64)])
"""The type of a reference to a frame: the number of a video, and the time of the frame in it."""

EPISODE, TIMESTAMP = "episode_index", "timestamp"
_HINT = "the rows and the description of episodes belong to different datasets: copy or download it again"


class Cameras(NamedTuple):
    """The videos of all episodes by camera, and the texts that numbers in the rows stand for.

    ``videos`` and ``first_seconds`` have, for each camera, the number of the video and the time of its first frame
    there by episode: int32 and float64, shape (num_episodes,). ``texts`` has, for a new field, the field with the
    number of the text, and the texts: ``{"task": ("task_index", [...])}``. Videos are ``files`` below ``root``.
    """

    root: str
    files: Sequence[VideoFile]
    videos: Mapping[str, NDArray[np.int32]]
    first_seconds: Mapping[str, NDArray[np.float64]]
    texts: Mapping[str, tuple[str, Sequence[str]]]

    @property
    def fields(self) -> list[str]:
        """The fields that are added to the rows."""
        return [*self.videos, *self.texts]

    def needed(self, names: Sequence[str]) -> list[str]:
        """Return the stored fields for some fields."""
        stored: dict[str, None] = {}
        for name in names:
            if name in self.videos:
                stored |= {EPISODE: None, TIMESTAMP: None}
            else:
                stored[self.texts[name][0] if name in self.texts else name] = None
        return list(stored)

    def frames(self, camera: str, episodes: Any, timestamps: Any) -> NDArray[Any]:
        """Return references to frames of a camera; raises `LookupError` for an episode without a video."""
        videos = self.videos[camera]
        episodes = np.asarray(episodes)
        if bool((episodes < 0).any()) or bool((episodes >= len(videos)).any()) or bool((videos[episodes] < 0).any()):
            raise LookupError(f"an episode of {np.unique(episodes)[:3].tolist()} has no video of {camera}")
        frames = np.empty(episodes.shape, FRAME)
        frames["video"] = videos[episodes]
        frames["seconds"] = self.first_seconds[camera][episodes] + np.asarray(timestamps, dtype=np.float64)
        return frames


class EpisodeRows(Format):
    """The format of Parquet shards of episodes; ``cameras`` says where each frame is. A sample is a row."""

    name = Parquet.name
    suffixes = Parquet.suffixes
    has_columns = reads_fields = True

    def __init__(self, cameras: Cameras, *, rows: Parquet | None = None, names: Sequence[str] | None = None) -> None:
        self.cameras = cameras
        self._rows, self._names = rows or Parquet(), None if names is None else tuple(names)
        self.spilled_as = self._rows.spilled_as

    def projected(self, names: Sequence[str]) -> EpisodeRows:
        """Return a copy that decodes only the columns that these fields need."""
        return EpisodeRows(self.cameras, rows=self._rows.projected(self.cameras.needed(names)), names=names)

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Read the footer of a shard."""
        return self._rows.scan(read, num_bytes, shard=shard)

    def parse(self, buffer: Buffer, span: Span) -> FrameRecords:
        """Decode row groups; raises `ShardError` as `Parquet.parse`."""
        return self._with_frames(self._rows.parse(buffer, span), span)

    def read_fields(self, read: ReadBytes, end_byte: int, span: Span) -> FrameRecords:
        """Decode row groups and read only the pages of the wanted columns."""
        return self._with_frames(self._rows.read_fields(read, end_byte, span), span)

    def spill(self, read: ReadBytes, end_byte: int, span: Span, space: SpillSpace) -> Spilled:
        """Spill the rows of row groups."""
        return self._rows.spill(read, end_byte, span, space)

    def parse_part(self, data: bytes, span: Span) -> FrameRecords:
        """Open one spilled part."""
        return self._with_frames(self._rows.parse_part(data, span), span)

    def features(self, head: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the Hugging Face ``datasets`` features in the footer of a shard."""
        return self._rows.features(head)

    def schema(self, head: Mapping[str, Any]) -> Any:
        """Return the Arrow schema of the stored columns and of the texts; references to frames have no Arrow type."""
        schema, pa = self._rows.schema(head), arrow_library("Parquet")
        for name in self.cameras.texts:
            schema = schema.append(pa.field(name, pa.string()))
        return schema

    def field_names(self, head: Mapping[str, Any]) -> Sequence[str] | None:
        """Return the names of the stored columns and of the added fields."""
        stored = self._rows.field_names(head)
        return None if stored is None else [*stored, *self.cameras.fields]

    def _with_frames(self, records: Records, span: Span) -> FrameRecords:
        return FrameRecords(records, self.cameras, span, self._names)


class FrameRecords:
    """Rows with references to frames, and with texts for numbers; ``names`` are the wanted fields, None for all."""

    def __init__(self, records: Any, cameras: Cameras, span: Span, names: Sequence[str] | None) -> None:
        self._records, self._cameras, self._span, self._names = records, cameras, span, names
        self.layout_crcs = records.layout_crcs

    def __len__(self) -> int:
        return len(self._records)

    def sample(self, number: int) -> Sample:
        """Return a row; raises `ShardError` if its episode has no video, or a number no text."""
        sample: Sample = self._records.sample(number)
        added: Sample = {}
        try:
            for name in self._added(sample):
                if name in self._cameras.videos:
                    added[name] = self._cameras.frames(name, _present(sample, EPISODE), sample[TIMESTAMP])[()]
                else:
                    source, texts = self._cameras.texts[name]
                    added[name] = texts[_checked(_present(sample, source), texts)]
        except LookupError as error:
            raise self._wrong(error) from None
        return self._wanted({**sample, **added})

    def columns(self) -> Columns | None:
        """Return the columns of all rows; None if the stored rows have no columns."""
        columns = self._records.columns()
        if columns is None:
            return None
        fields = {name: (kind, array) for (name, kind), array in zip(columns.kinds, columns.arrays, strict=True)}
        arrays = columns.by_name()
        try:
            for name in self._added(arrays):
                fields[name] = self._column(name, arrays)
        except LookupError as error:
            raise self._wrong(error) from None
        except TypeError:
            return None  # a number is missing in some row, whose sample says so
        wanted = self._wanted(fields)
        kinds = tuple((name, kind) for name, (kind, _) in wanted.items())
        return Columns(kinds, tuple(array for _, array in wanted.values()))

    def _column(self, name: str, arrays: Mapping[str, Any]) -> tuple[Kind, Any]:
        if name in self._cameras.videos:
            frames = self._cameras.frames(name, _numbers(arrays[EPISODE]), _numbers(arrays[TIMESTAMP]))
            return Kind("array", FRAME), frames
        source, texts = self._cameras.texts[name]
        numbers = [texts[_checked(number, texts)] for number in _numbers(arrays[source]).tolist()]
        pa = arrow_library("Parquet")
        return stored_column(pa.array(numbers, pa.string()))

    def _added(self, stored: Mapping[str, Any]) -> list[str]:
        """Return the added fields that are wanted, and whose stored fields are there."""
        names = [name for name in self._cameras.fields if self._names is None or name in self._names]
        return [name for name in names if all(each in stored for each in self._cameras.needed([name]))]

    def _wanted(self, fields: dict[str, Any]) -> dict[str, Any]:
        names = self._names
        if names is None or any(name not in fields for name in names):
            return fields
        return {name: value for name, value in fields.items() if name in names}

    def _wrong(self, error: LookupError) -> ShardError:
        return ShardError(str(error.args[0]), shard=self._span.shard, byte=self._span.first_byte, hint=_HINT)


def _numbers(column: Any) -> NDArray[Any]:
    """Return a column of numbers; raises `TypeError` for other columns, which have missing values."""
    if not isinstance(column, np.ndarray):
        raise TypeError("not a column of numbers")
    return column.reshape(len(column))


def _present(sample: Sample, name: str) -> Any:
    if sample[name] is None:
        raise LookupError(f"a row has no {name}")
    return sample[name]


def _checked(number: int, texts: Sequence[str]) -> int:
    if not 0 <= number < len(texts):
        raise LookupError(f"a row has the number {number} of a text, but there are {len(texts)} texts")
    return number
