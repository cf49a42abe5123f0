"""Decoders of audio to arrays or tensors, by libsndfile, with the suffixes and values of WebDataset."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.formats.decoding.images import torch_for
from shoal.hints import pip_install

AUDIO_SUFFIXES = ("wav", "flac", "ogg", "oga", "opus", "mp3", "aif", "aiff", "aifc", "au", "caf", "w64", "rf64")
# The format of a file follows from its bytes. libsndfile also reads formats that are rare or have no header.
_READ = frozenset(("WAV", "WAVEX", "FLAC", "OGG", "MP3", "MPEG", "AIFF", "AU", "CAF", "W64", "RF64"))
_LIMIT_BYTES = 1 << 30  # of the samples of one file
_SAMPLE_BYTES = 4

AUDIO_SPECS: Mapping[str, str] = {"audio": "numpy", "torchaudio": "torch"}
"""Audio decoders by name, with the library of their results."""


def audio_decoder(name: str) -> Callable[[bytes], tuple[Any, int]]:
    """Return a decoder of `AUDIO_SPECS`: to samples and their rate in Hz.

    Samples are float32 from -1 to 1, shape (num_channels, num_frames): an array for "audio", a tensor for "torchaudio".
    A file of more than 1 GiB of samples is an error, and so is a file that ends before its last frame. Raises
    `UsageError` if a library is missing.
    """
    library = _soundfile(f"decode({name!r})")
    torch = torch_for(f"decode({name!r})", "audio") if AUDIO_SPECS[name] == "torch" else None

    def decode(data: bytes) -> tuple[Any, int]:
        with library.SoundFile(io.BytesIO(data)) as file:
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


def _soundfile(what: str) -> Any:
    try:
        import soundfile  # noqa: PLC0415  # optional
    except (ImportError, OSError) as error:  # OSError: libsndfile is missing
        raise UsageError(f"{what} needs soundfile with libsndfile: {error}", hint=pip_install("audio")) from None
    return soundfile
