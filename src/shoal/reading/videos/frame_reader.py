"""Frames of videos by reference: which groups of pictures they need, their bytes, and their pixels."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.decoding.video.boxes import VideoError
from shoal.formats.decoding.video.video_table import VideoTable
from shoal.reading.remote.request_stats import RequestStats
from shoal.reading.videos.group_bytes import GroupBytes
from shoal.reading.videos.kept_decoders import KeptDecoders
from shoal.reading.videos.video_tables import VideoFiles, VideoTables
from shoal.stats.counters import Counters
from shoal.storage.retry import RetryControl, current_retry_control, retry_control

_LIMIT_BYTES = 1 << 30  # of the pixels of one call


class FrameReader:
    """A reader of frames of the videos of a dataset, for all threads of a process.

    A frame matches a time if it is nearer than ``tolerance_seconds``; ``keep_bytes`` limits the
    encoded bytes that are kept for later frames. Requests are counted in ``counters``.
    """

    def __init__(self, videos: VideoFiles, counters: Counters, *, tolerance_seconds: float, keep_bytes: int) -> None:
        self.videos, self._counters, self._tolerance_seconds = videos, counters, tolerance_seconds
        self._tables = VideoTables(videos, self._began)
        self.groups = GroupBytes(keep_bytes, self._served)
        self._requests = None if videos.store.reads_ahead else RequestStats(counters)
        self._decoders, self._lock = KeptDecoders(), threading.Lock()

    def frames(self, video: int, seconds: NDArray[np.float64]) -> NDArray[np.uint8]:
        """Return the frames nearest to some times, shape (num_frames, height, width, 3); each is decoded once.

        Raises `ShardError`: no frame is near a time, or the video is damaged; the error names the file, the bytes and
        the frame. `StorageError`: bytes could not be read.
        """
        if not 0 <= video < len(self.videos.files):
            msg = f"a row refers to the video {video}, but the dataset has {len(self.videos.files)}"
            raise ShardError(msg, shard=self.videos.root, hint="open the dataset again")
        table = self._table(video)
        packets, distances = table.nearest(seconds)
        if not bool((distances < self._tolerance_seconds).all()):  # a time may be no number
            raise self._too_far(video, table, seconds, distances)
        times = table.packets.times
        distinct = np.unique(packets)
        if len(distinct) * table.width * table.height * 3 > _LIMIT_BYTES:
            msg = f"{len(distinct)} frames of {table.width} x {table.height} have more than {_LIMIT_BYTES} bytes"
            raise self.videos.damage(video, msg)
        frames: dict[int, NDArray[np.uint8]] = {}
        num_decoded = 0
        for run in table.runs(distinct):
            wanted = [int(times[packet]) for packet in distinct if run[0] <= packet < run[1]]
            decoded, num = self._decoded(video, table, run, wanted)
            frames |= decoded
            num_decoded += num
        with self._lock:
            self._counters.num_frames += len(seconds)
            self._counters.num_decoded_frames += num_decoded
            self._counters.peak_video_bytes = max(self._counters.peak_video_bytes, self.groups.held_bytes)
        return np.stack([frames[int(time)] for time in times[packets]])

    def _table(self, video: int) -> VideoTable:
        with retry_control(self._control()):
            return self._tables[video]

    def _decoded(
        self, video: int, table: VideoTable, run: tuple[int, int], wanted: Sequence[int]
    ) -> tuple[dict[int, NDArray[np.uint8]], int]:
        path, store = self.videos.path(video), self.videos.store

        def read(first_byte: int, end_byte: int) -> bytes:
            self._began(end_byte - first_byte)
            with retry_control(self._control()):
                try:
                    return store.read_range(path, first_byte, end_byte)
                finally:
                    if self._requests is not None:
                        self._requests.ended(end_byte - first_byte)

        data = self.groups.packets(video, table, run, read)
        times = table.packets.times[run[0] : run[1]].tolist()
        try:
            packets = zip(times, data, strict=True)
            frames, num_decoded = self._decoders.of(video, table).frames(packets, wanted)
        except VideoError as error:
            raise self._damaged(video, table, run, str(error)) from None
        if missing := [time for time in wanted if time not in frames]:
            seconds = missing[0] / table.packets.timescale
            raise self._damaged(video, table, run, f"the decoder gives no frame at {seconds:.3f} s")
        return frames, num_decoded

    def _began(self, num_bytes: int) -> None:
        with self._lock:
            self._counters.num_video_reads += 1
            self._counters.video_bytes += num_bytes
        if self._requests is not None:
            self._requests.began(num_bytes)

    def _served(self, num_bytes: int) -> None:
        with self._lock:
            self._counters.served_video_bytes += num_bytes

    def _control(self) -> RetryControl:
        current, requests = current_retry_control(), self._requests
        return current if requests is None else RetryControl(current.pause, requests.retried)

    def _damaged(self, video: int, table: VideoTable, run: tuple[int, int], what: str) -> ShardError:
        positions, sizes = table.packets.positions[run[0] : run[1]], table.packets.sizes[run[0] : run[1]]
        first, end = int(positions.min()), int((positions + sizes).max())
        seconds = table.packets.times[run[0]] / table.packets.timescale
        msg = f"{what}; the packets of the group at {seconds:.3f} s are the bytes [{first}, {end})"
        return self.videos.damage(video, msg, first)

    def _too_far(
        self, video: int, table: VideoTable, seconds: NDArray[np.float64], distances: NDArray[np.float64]
    ) -> ShardError:
        worst = int(distances.argmax())
        msg = f"no frame within {self._tolerance_seconds} s of {seconds[worst]:.4f} s: the nearest is "
        msg += f"{distances[worst]:.4f} s away, and the {table.num_frames} frames are from {table.seconds[0]:.3f} s "
        msg += f"to {table.seconds[-1]:.3f} s"
        return self.videos.damage(video, msg)
