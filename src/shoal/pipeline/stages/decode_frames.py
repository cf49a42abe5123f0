"""The stage that reads and decodes the frames that a sample refers to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.tables.episode_rows import FRAME
from shoal.pipeline.stages.callers import Callers
from shoal.pipeline.stages.chosen_fields import fields_of
from shoal.pipeline.stages.concurrent_functions import Begun
from shoal.pipeline.stages.running import DecodeError
from shoal.pipeline.stages.stage import Stage
from shoal.processes.interrupts import wait_in_slices
from shoal.processes.process_ends import is_done
from shoal.reading.videos.frame_reader import FrameReader
from shoal.reading.videos.video_tables import VideoFiles
from shoal.stats.counters import Counters


class _Readers:
    """The reader of each process that runs a stage; a reader holds bytes of videos, so it is never pickled."""

    def __init__(self, counters: Counters | None = None) -> None:
        self._counters = counters or Counters()
        self._readers: dict[int, FrameReader] = {}  # by process number

    def __reduce__(self) -> tuple[object, ...]:
        return _Readers, ()

    def reader(self, stage: DecodeFrames) -> FrameReader:
        """Return the reader of this process."""
        reader = self._readers.get(os.getpid())
        if reader is None:
            made = FrameReader(
                stage.videos, self._counters, tolerance_seconds=stage.tolerance_seconds, keep_bytes=stage.keep_bytes
            )
            reader = self._readers.setdefault(os.getpid(), made)
        return reader


@dataclass(frozen=True, slots=True)
class DecodeFrames(Stage):
    """A stage that replaces references to frames by pixels: uint8, shape (height, width, 3), or with a first axis.

    References have the type `FRAME`. All references of a sample to one video are read together, and each frame is
    decoded once. ``num_threads`` samples are read and decoded at a time.
    """

    videos: VideoFiles
    tolerance_seconds: float
    keep_bytes: int
    num_threads: int
    readers: _Readers = field(default_factory=_Readers, repr=False, compare=False)

    def __repr__(self) -> str:
        return f"decode_frames(tolerance={self.tolerance_seconds!r})"

    @property
    def max_concurrency(self) -> int:  # type: ignore[override]
        """Most samples in this stage at a time."""
        return self.num_threads

    def metered(self, counters: Counters) -> DecodeFrames:
        """Return this stage with a reader of its own, which counts there."""
        return replace(self, readers=_Readers(counters))

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the sample with pixels; raises `DecodeError` if a video is damaged or lacks a frame."""
        fields = fields_of(sample, "decode_frames()")
        references = {name: value for name, value in fields.items() if getattr(value, "dtype", None) == FRAME}
        if not references:
            return sample
        try:
            return {**fields, **self._pixels(references)}
        except ShardError as error:
            raise DecodeError(error) from None

    def begin(self, sample: Any, sample_id: int, callers: Callers) -> Begun | None:
        """Begin to read and decode the frames of a sample."""
        result = callers.in_thread(self, sample, sample_id)
        return Begun(_Decoding(self, result), result)

    def blames_data(self, error: Exception) -> bool:
        """Return True for damage of a video."""
        return isinstance(error, ShardError)

    def _pixels(self, references: Mapping[str, Any]) -> dict[str, NDArray[np.uint8]]:
        reader = self.readers.reader(self)
        flat = {name: np.atleast_1d(np.asarray(value, FRAME)).ravel() for name, value in references.items()}
        joined = np.concatenate(list(flat.values()))
        pixels: dict[int, NDArray[np.uint8]] = {}
        for video in np.unique(joined["video"]).tolist():
            at = np.flatnonzero(joined["video"] == video)
            pixels |= dict(zip(at.tolist(), reader.frames(video, joined["seconds"][at]), strict=True))
        named, first = {}, 0
        for name, value in references.items():
            end = first + len(flat[name])
            frames = np.stack([pixels[number] for number in range(first, end)])
            named[name] = frames.reshape(*np.shape(value), *frames.shape[1:])
            first = end
        return named


@dataclass(frozen=True, slots=True)
class _Decoding(Stage):
    """The wait for the frames of a sample; errors name the stage."""

    stage: DecodeFrames
    result: Future[Any]

    def __repr__(self) -> str:
        return repr(self.stage)

    def __call__(self, _: Any, __: int) -> Any:
        """Return the sample with its pixels."""
        if not self.result.done():
            wait_in_slices(partial(is_done, self.result))
        return self.result.result()

    def blames_data(self, error: Exception) -> bool:
        """Return True for damage of a video."""
        return self.stage.blames_data(error)
