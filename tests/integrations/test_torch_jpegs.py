"""JPEGs decoded on an accelerator that is not there, by a torchvision that is made here: tests run without either."""

from __future__ import annotations

import copy
import enum
import io
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shoal
import shoal.pack
from shoal.errors import UsageError
from shoal.integrations.torch.batch_transfer import pinned
from shoal.torch import DataLoader, JpegDecoder

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
image = pytest.importorskip("PIL.Image")


class Mode(enum.Enum):
    RGB = "RGB"


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices that were asked to decode; number 3 is the current one."""
    asked: list[torch.device] = []

    def decode_jpeg(files: list[torch.Tensor], *, mode: Mode, device: torch.device) -> list[torch.Tensor]:
        asked.append(device)
        opened = [image.open(io.BytesIO(file.numpy().tobytes())).convert(mode.value) for file in files]
        return [torch.from_numpy(np.array(each)).permute(2, 0, 1) for each in opened]

    module = types.ModuleType("torchvision.io")
    vars(module).update(ImageReadMode=Mode, decode_jpeg=decode_jpeg)
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.io", module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    return asked


def jpeg(number: int, height: int = 16) -> bytes:
    stream = io.BytesIO()
    image.fromarray(np.full((height, 24, 3), number, np.uint8)).save(stream, "JPEG")
    return stream.getvalue()


def packed(directory: Path, heights: list[int]) -> Any:
    with shoal.pack.Writer(directory, format="mds", options={"columns": {"jpg": "bytes", "n": "int"}}) as writer:
        for number, height in enumerate(heights):
            writer.write({"jpg": jpeg(number, height), "n": number})
    return shoal.open(directory).shuffle(seed=0)


def test_a_batch_is_one_tensor_on_the_device_that_was_current(tmp_path: Path, devices: list[torch.device]) -> None:
    ds = packed(tmp_path, [16] * 20).batch(8).map(JpegDecoder("jpg"))
    seen = 0
    for batch in DataLoader(ds):
        assert batch["jpg"].dtype == torch.uint8
        assert batch["jpg"].shape == (len(batch["n"]), 3, 16, 24)
        assert (batch["jpg"].amax((1, 2, 3)) - batch["n"]).abs().max() <= 1
        seen += len(batch["n"])
    assert seen == 20
    assert set(devices) == {torch.device("cuda", 3)}


def test_images_of_several_sizes_are_a_list(tmp_path: Path, devices: list[torch.device]) -> None:
    (batch,) = DataLoader(packed(tmp_path, [16, 8, 16]).batch(3).map(JpegDecoder(device="cuda:1")))
    assert sorted(tuple(each.shape) for each in batch["jpg"]) == [(3, 8, 24), (3, 16, 24), (3, 16, 24)]
    assert devices == [torch.device("cuda", 1)]


@pytest.mark.usefixtures("devices")
def test_batches_of_any_form_are_decoded(tmp_path: Path) -> None:
    ds = packed(tmp_path, [16] * 4)
    for form in (ds, ds.reading(copy=False), ds.format("numpy"), ds.format("torch"), ds.format("python")):
        (batch,) = DataLoader(form.batch(4).map(JpegDecoder()))
        assert batch["jpg"].shape == (4, 3, 16, 24)
    assert JpegDecoder()({"jpg": [memoryview(jpeg(0))]})["jpg"].shape == (1, 3, 16, 24)


@pytest.mark.usefixtures("devices")
def test_what_it_cannot_decode_is_named() -> None:
    with pytest.raises(UsageError, match=r"(?s)list of bytes in 'jpeg'; got 'jpg' \(list\).* did you mean 'jpg'\?"):
        JpegDecoder("jpeg")({"jpg": [jpeg(0)]})
    with pytest.raises(UsageError, match=r"(?s)'jpg' \(Tensor\).*without decoding these images before"):
        JpegDecoder()({"jpg": torch.zeros(2, 3, 4, 4)})
    with pytest.raises(UsageError, match="got bytes"):
        JpegDecoder()(jpeg(0))


def test_it_stays_in_its_process(tmp_path: Path, devices: list[torch.device]) -> None:
    ds = packed(tmp_path, [16] * 4).batch(2).map(JpegDecoder())
    loader = DataLoader(ds, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(
        UsageError, match=r"(?s)cannot be sent to worker processes: .*process that has the GPU.*num_workers=0"
    ):
        next(iter(loader))
    with pytest.raises(TypeError, match="process that has the GPU"):
        copy.copy(JpegDecoder())
    assert not devices


def test_without_a_gpu_or_torchvision_it_says_so(devices: list[torch.device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"(?s)needs a GPU.*finds none.*torchrgb8"):
        JpegDecoder()
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    with pytest.raises(UsageError, match=r"(?s)needs torchvision.*for your torch"):
        JpegDecoder()
    assert not devices


def test_what_is_on_a_device_is_not_pinned() -> None:
    there = torch.empty(3, device="meta")
    assert pinned({"x": [there]})["x"][0] is there
