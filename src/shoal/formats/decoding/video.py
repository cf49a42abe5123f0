"""Decoders of video to arrays or tensors, by FFmpeg, whose libraries come with PyAV."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.formats.decoding.images import torch_for
from shoal.hints import pip_install

VIDEO_SUFFIXES = ("mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "ogv", "wmv", "flv")
# Only containers that hold their own frames: FFmpeg also reads playlists, which name files and addresses. No protocol
# that would open those is allowed either.
_OPTIONS = {"format_whitelist": "mov,matroska,avi,mpeg,ogg,asf,flv", "protocol_whitelist": ""}
_LIMIT_BYTES = 1 << 30  # of the pixels of one video

VIDEO_SPECS: Mapping[str, str] = {"video": "numpy", "torchvideo": "torch"}
"""Video decoders by name, with the library of their results."""


def video_decoder(name: str) -> Callable[[bytes], tuple[Any, float]]:
    """Return a decoder of `VIDEO_SPECS`: to all frames in RGB, and their mean number per second.

    "video" gives a uint8 array of shape (num_frames, height, width, 3), "torchvideo" a tensor of shape (num_frames, 3,
    height, width). More than 1 GiB of frames is an error. A video that ends early gives the frames before its end, if
    its container can be opened. Raises `UsageError` if a library is missing.
    """
    library = _av(f"decode({name!r})")
    torch = torch_for(f"decode({name!r})", "video") if VIDEO_SPECS[name] == "torch" else None

    def decode(data: bytes) -> tuple[Any, float]:
        frames, num_bytes = [], 0
        with library.open(io.BytesIO(data), options=_OPTIONS) as container:
            if not container.streams.video:
                raise ValueError(f"{container.format.name} without a stream of video")
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1  # videos are decoded side by side
            for frame in container.decode(stream):
                frames.append(frame.to_ndarray(format="rgb24"))
                num_bytes += frames[-1].nbytes
                if num_bytes > _LIMIT_BYTES:
                    msg = f"video of {frame.width} x {frame.height} has more than {_LIMIT_BYTES} bytes of frames"
                    raise ValueError(msg)
            rate = float(stream.average_rate or stream.guessed_rate or 0)
        if not frames:
            raise ValueError("video without a frame")
        pixels = np.stack(frames)
        return pixels if torch is None else torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()), rate

    return decode


def _av(what: str) -> Any:
    try:
        import av  # noqa: PLC0415  # optional
    except ImportError as error:
        raise UsageError(f"{what} needs PyAV with FFmpeg: {error}", hint=pip_install("video")) from None
    return av
