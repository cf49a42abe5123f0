"""Video by name: every frame that was written, nothing that is not in the bytes, the libraries that are missed."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.samples import write_tar

import shoal
from shoal.errors import ShardError, UsageError
from shoal.formats.decoding.audio_and_video import video_decoder

av = pytest.importorskip("av")


def written(kind: str = "mp4", codec: str = "mpeg4", num_frames: int = 6) -> bytes:
    """Frames of 48 x 64, each of one colour: number n is 40 n grey."""
    stream = io.BytesIO()
    with av.open(stream, "w", format=kind) as container:
        track = container.add_stream(codec, rate=10)
        track.width, track.height, track.pix_fmt = 64, 48, "yuv420p"
        for number in range(num_frames):
            pixels = np.full((48, 64, 3), 40 * number, np.uint8)
            container.mux(track.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(track.encode())
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["mp4", "mov", "matroska", "avi"])
def test_all_frames_come(kind: str) -> None:
    frames, rate = video_decoder("video")(written(kind))
    assert (frames.shape, frames.dtype, rate) == ((6, 48, 64, 3), np.uint8, 10.0)
    assert np.abs(frames.mean(axis=(1, 2, 3)) - np.arange(6) * 40).max() < 8


def test_tensors_have_the_bands_first() -> None:
    torch = pytest.importorskip("torch")
    frames, rate = video_decoder("torchvideo")(written())
    assert (frames.shape, frames.dtype, rate) == ((6, 3, 48, 64), torch.uint8, 10.0)
    assert frames.is_contiguous()
    assert np.array_equal(frames.permute(0, 2, 3, 1).numpy(), video_decoder("video")(written())[0])


def test_nothing_but_the_bytes_is_opened(tmp_path: Path) -> None:
    (tmp_path / "other.mp4").write_bytes(written())
    lists = [
        f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile://{tmp_path}/other.mp4\n#EXT-X-ENDLIST\n",
        f"ffconcat version 1.0\nfile {tmp_path}/other.mp4\n",
    ]
    for text in lists:
        with pytest.raises((ValueError, OSError)):
            video_decoder("video")(text.encode())
    transport = written("mpegts", "mpeg2video")
    assert len(transport) > 1000
    with pytest.raises((ValueError, OSError)):  # a container that is not allowed
        video_decoder("video")(transport)


def test_damaged_and_large_videos(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (b"", b"no video at all", written()[:200]):
        with pytest.raises((ValueError, OSError)):
            video_decoder("video")(data)
    monkeypatch.setattr("shoal.formats.decoding.audio_and_video._LIMIT_BYTES", 6 * 48 * 64 * 3 - 1)
    with pytest.raises(ValueError, match="video of 64 x 48 has more than 55295 bytes of frames"):
        video_decoder("video")(written())


def test_video_in_a_dataset(tmp_path: Path) -> None:
    members: list[dict[str, Any]] = [{"__key__": b"%d" % n, "mp4": written(num_frames=3)} for n in range(3)]
    members[1]["mp4"] = b"damaged"
    write_tar(tmp_path / "a.tar", members)
    data = shoal.open(tmp_path / "a.tar").decode("video")
    with pytest.raises(ShardError, match=r"the field 'mp4' \(7 bytes\) of the sample with id 1 cannot be decoded"):
        data[1]
    (batch,) = data.reading(on_error="skip").batch(3)
    frames, rates = batch["mp4"]
    assert frames.shape == (2, 3, 48, 64, 3)
    assert rates.tolist() == [10.0, 10.0]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(UsageError, match=r"'video'.* needs PyAV with FFmpeg") as caught:
        video_decoder("video")
    assert "pip install av" in str(caught.value.hint)
