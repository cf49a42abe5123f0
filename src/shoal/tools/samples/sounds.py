"""Sounds of samples: a player for short files, an outline of decoded samples, and facts."""

from __future__ import annotations

import base64
import io
import wave
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.figures import format_seconds

_MOST_PLAYED = 1 << 17  # bytes of a file that a page holds
_MOST_RATE = 400_000  # Hz
_COLUMNS = 120
_TYPES = {b"fLaC": "flac", b"OggS": "ogg", b"ID3": "mpeg", b"\xff\xfb": "mpeg", b"\xff\xf3": "mpeg"}


class Sound(NamedTuple):
    """A sound: its address for a player, "" if the file is too large; its outline from 0 to 1; and its facts."""

    url: str
    outline: NDArray[np.float64]
    words: str


def sound_of(value: Any) -> Sound | None:
    """Return a stored audio file, or samples with their rate as `decode("audio")` gives them; None for other values."""
    if isinstance(value, bytes | memoryview):
        data = bytes(value)
        is_wave = data[:4] == b"RIFF" and data[8:12] == b"WAVE"
        kind = "wav" if is_wave else next((kind for start, kind in _TYPES.items() if data.startswith(start)), None)
        return None if kind is None else _of_file(data, kind)
    if isinstance(value, tuple) and len(value) == 2 and hasattr(value[0], "shape") and len(value[0].shape) == 2:
        rate, shape = value[1], value[0].shape
        if isinstance(rate, int) and 1000 <= rate <= _MOST_RATE and shape[0] <= 16 and shape[1] > shape[0]:
            return _of_samples(np.asarray(value[0], dtype=np.float64), rate)
    return None


def _of_file(data: bytes, kind: str) -> Sound:
    words = kind.upper()
    if kind == "wav":
        try:
            with wave.open(io.BytesIO(data)) as file:
                seconds = file.getnframes() / max(1, file.getframerate())
                words = _words(seconds, file.getframerate(), file.getnchannels())
        except (wave.Error, EOFError):
            words = "WAV"  # of floating numbers, or damaged: the player may still know it
    return Sound(_url(data, kind) if len(data) <= _MOST_PLAYED else "", np.empty(0), words)


def _of_samples(samples: NDArray[np.float64], rate: int) -> Sound:
    num_channels, num_frames = samples.shape
    loudness = np.abs(np.nan_to_num(samples)).max(axis=0)
    borders = np.linspace(0, num_frames, min(_COLUMNS, num_frames) + 1).astype(np.int64)[:-1]
    outline = np.maximum.reduceat(loudness, borders).clip(0.0, 1.0)
    url = ""
    if 2 * num_frames <= _MOST_PLAYED:
        file = io.BytesIO()
        with wave.open(file, "wb") as writer:
            writer.setnchannels(1)
            writer.setsampwidth(2)
            writer.setframerate(rate)
            writer.writeframes((samples.mean(axis=0).clip(-1.0, 1.0) * 32767).astype("<i2").tobytes())
        url = _url(file.getvalue(), "wav")
    return Sound(url, outline, _words(num_frames / rate, rate, num_channels))


def _words(seconds: float, rate: int, num_channels: int) -> str:
    channels = {1: "mono", 2: "stereo"}.get(num_channels, f"{num_channels} channels")
    return f"{format_seconds(seconds)} at {rate:,} Hz, {channels}"


def _url(data: bytes, kind: str) -> str:
    return f"data:audio/{kind};base64,{base64.b64encode(data).decode('ascii')}"
