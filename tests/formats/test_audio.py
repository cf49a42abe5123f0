"""Audio by name: the samples that were written, the damage that is found, the libraries that are missed."""

from __future__ import annotations

import io
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.samples import write_tar

import shoal
from shoal.errors import ShardError, UsageError
from shoal.formats.decoding.audio_and_video import audio_decoder

soundfile = pytest.importorskip("soundfile")

RATE = 8000
TONES = np.sin(np.arange(2000)[:, None] / [9, 7]).astype(np.float32) / 2  # two channels


def written(kind: str, samples: Any = TONES, **options: Any) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, samples, RATE, format=kind, **options)
    return stream.getvalue()


def test_the_samples_of_a_wav_are_exact() -> None:
    numbers = np.arange(-32768, 32768, 7, dtype=np.int16)
    with wave.open(stream := io.BytesIO(), "wb") as file:
        file.setparams((1, 2, RATE, len(numbers), "NONE", ""))
        file.writeframes(numbers.tobytes())
    samples, rate = audio_decoder("audio")(stream.getvalue())
    assert (samples.shape, samples.dtype, rate) == ((1, len(numbers)), np.float32, RATE)
    assert np.array_equal(samples[0], numbers / np.float32(32768))
    assert samples.flags.c_contiguous


@pytest.mark.parametrize(
    ("kind", "most"), [("WAV", 4e-5), ("FLAC", 4e-5), ("AIFF", 4e-5), ("AU", 4e-5), ("CAF", 4e-5), ("OGG", 0.1)]
)
def test_formats(kind: str, most: float) -> None:
    samples, rate = audio_decoder("audio")(written(kind))
    assert (samples.shape, rate) == ((2, 2000), RATE)
    assert np.abs(samples - TONES.T).max() <= most


def test_an_mp3_is_read() -> None:
    samples, rate = audio_decoder("audio")(written("MP3"))
    assert (samples.shape[0], rate) == (2, RATE)
    assert samples.shape[1] >= 2000
    assert 0.2 < np.abs(samples).max() < 0.7


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    samples, rate = audio_decoder("torchaudio")(written("FLAC"))
    assert (samples.shape, samples.dtype, rate) == ((2, 2000), torch.float32, RATE)
    assert np.array_equal(samples.numpy(), audio_decoder("audio")(written("FLAC"))[0])


def test_damage_is_found() -> None:
    noise = np.random.default_rng(0).normal(0, 0.2, (40_000, 1)).astype(np.float32)
    whole = written("FLAC", noise)
    for data in (whole[: len(whole) // 2], whole[:20], b"", b"no audio at all"):
        with pytest.raises((ValueError, RuntimeError)):
            audio_decoder("audio")(data)


def test_unusual_formats_and_large_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="audio of the format VOC, which shoal does not read"):
        audio_decoder("audio")(written("VOC"))
    monkeypatch.setattr("shoal.formats.decoding.audio_and_video._LIMIT_BYTES", 2 * 2000 * 4 - 1)
    with pytest.raises(ValueError, match="2000 frames and 2 channels has more than 15999 bytes"):
        audio_decoder("audio")(written("WAV"))


def test_audio_in_a_dataset(tmp_path: Path) -> None:
    members = [{"__key__": b"%d" % n, "flac": written("FLAC", TONES[: 100 + n]), "cls": b"1"} for n in range(5)]
    members[3]["flac"] = members[3]["flac"][:60]
    write_tar(tmp_path / "a.tar", members)
    data = shoal.open(tmp_path / "a.tar")
    assert isinstance(data.decode()[0]["flac"], bytes)
    decoded = data.decode("audio")
    assert decoded[2]["flac"][0].shape == (2, 102)
    with pytest.raises(ShardError, match=r"the field 'flac' \(60 bytes\) of the sample with id 3 cannot be decoded"):
        decoded[3]
    (batch,) = decoded.reading(on_error="skip").batch(5)
    samples, rates = batch["flac"]
    assert [one.shape for one in samples] == [(2, 100), (2, 101), (2, 102), (2, 104)]
    assert rates.tolist() == [RATE] * 4


@pytest.mark.parametrize("error", [None, OSError("sndfile library not found")])
def test_what_is_missing_is_named(error: OSError | None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "soundfile" and error is not None:
                raise error

    if error is None:
        monkeypatch.setitem(sys.modules, "soundfile", None)
    else:
        monkeypatch.delitem(sys.modules, "soundfile")
        monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(UsageError, match=r"'audio'.* needs soundfile with libsndfile") as caught:
        audio_decoder("audio")
    assert "pip install soundfile" in str(caught.value.hint)
