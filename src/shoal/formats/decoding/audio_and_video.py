"""Decoders of audio and video to arrays or tensors, with the suffixes and values of WebDataset.

libsndfile decodes audio, and FFmpeg video; its libraries come with PyAV.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.formats.decoding.images import torch_for
from shoal.hints import pip_install

AUDIO_SUFFIXES = ("wav", "flac", "ogg", "oga", "opus", "mp3", "aif", "aiff", "aifc", "au", "caf", "w64", "rf64")
AUDIO_SPECS: Mapping[str, str] = {"audio": "numpy", "torchaudio": "torch"}
"""Audio decoders by name, with the library of their results."""

VIDEO_SUFFIXES = ("mp4", "m4v", "mov", "mkv", "webm", "avi", "mpg", "mpeg", "ogv", "wmv", "flv")
VIDEO_SPECS: Mapping[str, str] = {"video": "numpy", "torchvideo": "torch"}
"""Video decoders by name, with the library of their results."""

# The format of a file follows from its bytes. libsndfile also reads formats that are rare or have no header.
_READ = frozenset(("WAV", "WAVEX", "FLAC", "OGG", "MP3", "MPEG", "AIFF", "AU", "CAF", "W64", "RF64"))
# Only containers that hold their own frames: FFmpeg also reads playlists, which name files and addresses. No protocol
# that would open those is allowed either.
_OPTIONS = {"format_whitelist": "mov,matroska,avi,mpeg,ogg,asf,flv", "protocol_whitelist": ""}
_LIMIT_BYTES = 1 << 30  # of the samples of one file, or of the pixels of one video
_SAMPLE_BYTES = 4


def audio_decoder(name: str) -> Callable[[bytes], tuple[Any, int]]:
    """Return a decoder of `AUDIO_SPECS`: to samples and their rate in Hz.

    Samples are float32 from -1 to 1, shape (num_channels, num_frames): an array for "audio", a tensor for "torchaudio".
    A file of more than 1 GiB of samples is an error, and so is a file that ends before its last frame. Raises
    `UsageError` if a library is missing.
    """
    try:
        import soundfile  # noqa: PLC0415  # optional
    except (ImportError, OSError) as error:  # OSError: libsndfile is missing
        msg = f"decode({name!r}) needs soundfile with libsndfile: {error}"
        raise UsageError(msg, hint=pip_install("soundfile")) from None
    torch = torch_for(f"decode({name!r})", "audio") if AUDIO_SPECS[name] == "torch" else None

    def decode(data: bytes) -> tuple[Any, int]:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.format not in _READ:
                raise ValueError(f"audio of the format {file.format}, which shoal does not read")
            if file.frames * file.channels * _SAMPLE_BYTES > _LIMIT_BYTES:
                msg = f"audio of {file.frames} frames and {file.channels} channels has more than {_LIMIT_BYTES} bytes"
                raise ValueError(msg)
            samples = file.read(dtype="float32", always_2d=True)
            if len(samples) != file.frames:
                raise ValueError(f"audio of {file.frames} frames ends after {len(samples)}")
            array = np.ascontiguousarray(samples.T)
            return array if torch is None else torch.from_numpy(array), int(file.samplerate)

    return decode


def video_decoder(name: str) -> Callable[[bytes], tuple[Any, float]]:
    """Return a decoder of `VIDEO_SPECS`: to all frames in RGB, and their mean number per second.

    "video" gives a uint8 array of shape (num_frames, height, width, 3), "torchvideo" a tensor of shape (num_frames, 3,
    height, width). More than 1 GiB of frames is an error. A video that ends early gives the frames before its end, if
    its container can be opened. Raises `UsageError` if a library is missing.
    """
    try:
        import av  # noqa: PLC0415  # optional
    except ImportError as error:
        raise UsageError(f"decode({name!r}) needs PyAV with FFmpeg: {error}", hint=pip_install("av")) from None
    torch = torch_for(f"decode({name!r})", "video") if VIDEO_SPECS[name] == "torch" else None

    def decode(data: bytes) -> tuple[Any, float]:
        frames, num_bytes = [], 0
        with av.open(io.BytesIO(data), "r", options=_OPTIONS) as container:
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
