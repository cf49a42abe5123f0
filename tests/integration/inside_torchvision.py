"""`JpegDecoder` with the real torchvision, on a processor in place of the GPU."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.samples import write_photos

import shoal
from shoal.integrations.torch import jpegs_on_accelerator
from shoal.torch import DataLoader, JpegDecoder

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> JpegDecoder:
    """A decoder for GPU 0, whose calls of torchvision name the processor instead."""
    decode = jpegs_on_accelerator._decoder()
    monkeypatch.setattr(jpegs_on_accelerator, "_decoder", lambda: lambda files, _: decode(files, torch.device("cpu")))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return JpegDecoder("jpg")


def test_torchvision_decodes_the_batches_of_a_loader(
    decoder: JpegDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    write_photos(tmp_path / "photos")
    ds = shoal.open(tmp_path / "photos").shuffle(seed=0).with_ids().batch(8)
    loader = DataLoader(ds.map(decoder))
    num_samples = 0
    for batch, stored in zip(loader, ds, strict=True):
        assert batch["__id__"].tolist() == stored["__id__"].tolist()
        for image, file in zip(batch["jpg"], stored["jpg"], strict=True):
            expected = pixels(file)
            assert image.dtype == torch.uint8
            assert tuple(image.shape) == expected.shape
            assert np.abs(image.numpy().astype(int) - expected).max() <= 2
            num_samples += 1
        if num_samples == 24:
            assert loader.state_dict()["position"] == 24  # not what the thread has decoded ahead
    assert num_samples == 80


def pixels(file: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(file)).convert("RGB")).astype(int).transpose(2, 0, 1)
