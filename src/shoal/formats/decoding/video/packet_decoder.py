"""Frames from packets: FFmpeg's decoders by PyAV, without a container.

A decoder gets the packets of a group from its keyframe up to the last needed frame, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.formats.decoding.video.boxes import VideoError
from shoal.formats.decoding.video.video_table import VideoTable
from shoal.hints import pip_install

_DECODERS = {"av1": ("libdav1d", "libaom-av1", "av1"), "vp9": ("vp9", "libvpx-vp9")}
_COLORS = ("color_primaries", "color_trc", "colorspace")


def video_library(what: str) -> Any:
    """Return PyAV; raises `UsageError` if ``what`` needs it, and it is missing."""
    try:
        import av  # noqa: PLC0415  # optional
    except ImportError as error:
        raise UsageError(f"{what} needs PyAV with FFmpeg: {error}", hint=pip_install("av")) from None
    return av


class PacketDecoder:
    """The decoder of one video in one thread."""

    def __init__(self, table: VideoTable) -> None:
        av = video_library("decode_frames()")
        self._codec = _decoder_of(av, table)
        self._reformatter = av.video.reformatter.VideoReformatter()
        self._packet, self._error = av.Packet, av.FFmpegError
        self._time_base = Fraction(1, table.packets.timescale)

    def frames(
        self, packets: Iterable[tuple[int, bytes]], wanted: Sequence[int]
    ) -> tuple[dict[int, NDArray[np.uint8]], int]:
        """Decode packets in order, and return the wanted frames by time, and the number of decoded frames.

        ``packets`` are presentation times, each with the bytes of a packet; the first is a keyframe. Frames are uint8,
        shape (height, width, 3). Raises `VideoError` if the decoder refuses a packet.
        """
        frames: dict[int, NDArray[np.uint8]] = {}
        missing, num_decoded, time = set(wanted), 0, None
        try:
            for time, data in packets:
                num_decoded += self._take(self._decoded(time, data), missing, frames)
            num_decoded += self._take(self._codec.decode(None), missing, frames)
        except self._error as error:
            raise VideoError(f"the decoder refuses the packet of the frame at {self._words(time)}: {error}") from None
        finally:
            self._codec.flush_buffers()
        return frames, num_decoded

    def _decoded(self, time: int, data: bytes) -> Any:
        packet = self._packet(data)
        packet.pts = time
        packet.time_base = self._time_base
        return self._codec.decode(packet)

    def _take(self, decoded: Iterable[Any], missing: set[int], frames: dict[int, NDArray[np.uint8]]) -> int:
        num_decoded = 0
        for frame in decoded:
            num_decoded += 1
            if frame.pts in missing:
                missing.remove(frame.pts)
                frames[frame.pts] = self._in_rgb(frame).to_ndarray()
        return num_decoded

    def _in_rgb(self, frame: Any) -> Any:
        """Convert a frame in this thread.

        Else the converter keeps a thread for each processor, and a forked child, which lacks these threads, waits for
        them forever when it drops the converter.
        """
        try:
            return self._reformatter.reformat(frame, format="rgb24", threads=1)
        except TypeError:  # older releases have no argument, and no threads
            return self._reformatter.reformat(frame, format="rgb24")

    def _words(self, time: int | None) -> str:
        return "its begin" if time is None else f"{float(time * self._time_base):.3f} s"


def _decoder_of(av: Any, table: VideoTable) -> Any:
    """Return an open decoder for packets of a video."""
    for name in _DECODERS.get(table.codec, (table.codec,)):
        try:
            codec = av.CodecContext.create(name, "r")
        except (ValueError, av.FFmpegError):  # this build of FFmpeg has no such decoder
            continue
        codec.extradata = table.extradata or None
        codec.thread_count = 1  # samples are decoded side by side
        codec.width, codec.height = table.width, table.height
        for attribute, number in zip(_COLORS, table.colors, strict=False):
            setattr(codec, attribute, number)
        if table.colors:
            codec.color_range = 2 if table.colors[3] else 1
        return codec
    raise UsageError(
        f"this build of FFmpeg cannot decode {table.codec}", hint="install PyAV from its wheel: pip install av"
    )
