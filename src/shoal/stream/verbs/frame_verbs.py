"""The method of a dataset that decodes frames of videos."""

from __future__ import annotations

from typing import Any, Self

from shoal.errors import UsageError
from shoal.figures import parse_bytes
from shoal.formats.decoding.video.packet_decoder import video_library
from shoal.formats.shard_format import Format
from shoal.formats.tables.episode_rows import EpisodeRows
from shoal.indexing.opened_dataset import Opened
from shoal.order.protocol import as_within
from shoal.pipeline.stages.decode_frames import DecodeFrames
from shoal.reading.videos.video_tables import VideoFiles
from shoal.stream.verbs.window_verbs import WindowVerbs

_MOST_THREADS = 1 << 10


class FrameVerbs(WindowVerbs):
    """Methods of `Dataset` for samples that refer to frames of videos."""

    def decode_frames(self, *, tolerance: float = 1e-4, keep: int | str = "64MiB", max_concurrency: int = 4) -> Self:
        """Read and decode the frames of videos that samples refer to: the camera fields of LeRobot datasets.

        A reference becomes a uint8 array in RGB, shape (height, width, 3); the references of a window become one array,
        shape (num_frames, height, width, 3). Of each video, only the groups of pictures of these frames are read, up to
        the last needed frame, and a frame that several fields or offsets need is decoded once. `stats` counts bytes,
        reads and decoded frames. Call `decode_frames` after `windows` and before `batch`. Needs PyAV, the extra
        ``video`` (docs/guides/train-on-robot-data.md).

        Parameters
        ----------
        tolerance
            Seconds: a frame must be nearer than this to its time, else the sample is damaged.
        keep
            Bytes of encoded video that each process keeps for the next frames of the same groups.
        max_concurrency
            Samples whose frames are read and decoded at a time in each process.

        Raises
        ------
        UsageError
            The dataset has no videos, PyAV is missing, or `batch` was called before. When samples are read,
            `ShardError` for a damaged video (``reading(on_error="skip")`` leaves out its samples).

        Examples
        --------
        >>> robot = shoal.open("lerobot://robot")
        >>> robot[3]["observation.image"]
        np.void((0, 0.30000001192092896), dtype=[('video', '<i4'), ('seconds', '<f8')])
        >>> robot.decode_frames()[3]["observation.image"].shape
        (48, 64, 3)
        """
        opened = self.stream.spec.opened.one("decode_frames()")
        cameras = cameras_of(opened)
        if cameras is None:
            msg = f"decode_frames() decodes frames of videos, but samples of {opened.index.format} shards refer to none"
            raise UsageError(msg, hint='shoal.open("lerobot://..."); decode("video") decodes fields that are videos')
        video_library("decode_frames()")
        if not 0 < tolerance < float("inf"):
            raise UsageError(f"decode_frames(tolerance={tolerance!r}) is a number of seconds above 0")
        stage = DecodeFrames(
            VideoFiles(opened.store, cameras.root, cameras.files),
            float(tolerance),
            parse_bytes(keep, "decode_frames(keep=)"),
            as_within("decode_frames(max_concurrency=)", max_concurrency, 1, _MOST_THREADS),
        )
        return type(self)(self.stream.spec.then(stage, "decode_frames()"))


def cameras_of(opened: Opened) -> Any:
    """Return the videos of the rows of a dataset; None if rows have no videos."""
    rows: Format = opened.format if opened.derivation is None else opened.derivation.rows.format
    return rows.cameras if isinstance(rows, EpisodeRows) and rows.cameras.videos else None
