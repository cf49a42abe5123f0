"""Batches in pinned memory, with an accelerator that is not there: tests run without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.integrations import stages

import shoal.pack
from shoal.integrations.torch import batch_transfer, torch_loader
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset
from shoal.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
NUM, LENGTH = 300, 33


def tokens_of(number: int, dtype: str) -> np.ndarray:
    return (np.arange(LENGTH) * 7 + number * 101).astype(dtype)


@pytest.fixture(scope="module", params=["uint16", "uint32"])
def tokens(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Samples of tokens, and their number."""
    directory = tmp_path_factory.mktemp("tokens") / request.param
    options = {"columns": {"tokens": f"ndarray:{request.param}:{LENGTH}", "number": "int"}}
    sizes: dict[str, Any] = {"shard_bytes": "8KiB", "extent_bytes": 2000}
    with shoal.pack.Writer(directory, format="mds", options=options, **sizes) as writer:
        for number in range(NUM):
            writer.write({"tokens": tokens_of(number, request.param), "number": number})
    return request.param, directory


@pytest.fixture
def pins(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is made in or brought to the memory of an accelerator."""
    found: list[Any] = []

    def pinned_array(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        found.append(np.zeros(shape, dtype))
        return found[-1]

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        if not any(tensor.data_ptr() == array.ctypes.data for array in found if isinstance(array, np.ndarray)):
            found.append(tensor)
        return tensor

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch_loader, "pinned_array", pinned_array)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    return found


@pytest.mark.parametrize("columns", [("tokens",), ("tokens", "number")])
@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_tokens_are_gathered_into_pinned_memory(
    columns: tuple[str, ...], prefetch_factor: int, tokens: tuple[str, Path], pins: list[Any]
) -> None:
    dtype, directory = tokens
    ds = open_dataset(directory).shuffle(seed=1).columns(*columns).with_ids().batch(16)
    seen = []
    for batch in DataLoader(ds, pin_memory=True, prefetch_factor=prefetch_factor):
        assert batch["tokens"].dtype == getattr(torch, dtype)
        made = [array for array in pins if isinstance(array, np.ndarray)]
        assert any(batch["tokens"].data_ptr() == array.ctypes.data for array in made)
        for row, number in zip(batch["tokens"].numpy(), batch["__id__"].tolist(), strict=True):
            assert (row == tokens_of(number, dtype)).all()
            seen.append(number)
    assert seen == ds.ids().tolist()
    tensors = [tensor for tensor in pins if isinstance(tensor, torch.Tensor)]
    assert all(tensor.ndim == 1 for tensor in tensors)  # of the tokens nothing was copied a second time


def test_what_is_no_column_is_copied(tars: Dataset, pins: list[Any]) -> None:
    batches = list(DataLoader(tars.map(stages.plain).with_ids().batch(50), pin_memory=True))
    copied = [column for batch in batches for column in (batch["__id__"], batch["__epoch__"])]
    assert [tensor.tolist() for tensor in pins] == [column.tolist() for column in copied]
    assert isinstance(batches[0]["bin"], list)


@pytest.mark.parametrize("prefetch_factor", [0, 2])
def test_tensors_and_arrays_are_stacked_in_pinned_memory(prefetch_factor: int, tars: Dataset, pins: list[Any]) -> None:
    ds = tars.map(stages.in_torch).map(stages.with_array).batch(50)
    for step, batch in enumerate(DataLoader(ds, pin_memory=True, prefetch_factor=prefetch_factor)):
        made = {array.ctypes.data for array in pins if isinstance(array, np.ndarray)}
        numbers = list(range(50 * step, min(50 * step + 50, 197)))
        stacked = [batch["label"], batch["array"], batch["meta"]["box"][1], *batch["views"]]
        assert all(tensor.data_ptr() in made for tensor in stacked)
        assert stacked[0].tolist() == stacked[1][:, 0].tolist() == stacked[2][:, 3].tolist() == numbers
        copied = [tensor for tensor in pins if isinstance(tensor, torch.Tensor)]
        assert {id(batch["image"]), id(batch["meta"]["box"][0])} <= {id(tensor) for tensor in copied}
        assert not any(tensor.data_ptr() in made for tensor in copied)


def test_gradients_go_through_a_stack(tars: Dataset, pins: list[Any]) -> None:
    ds = tars.map(stages.with_gradient).batch(50)
    batch = next(iter(DataLoader(ds, pin_memory=True, prefetch_factor=0)))
    assert batch["x"].requires_grad


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_without_an_accelerator_there_is_a_warning(num_workers: int, tars: Dataset) -> None:
    loader = DataLoader(tars.with_ids().batch(50), num_workers=num_workers, pin_memory=True)
    with pytest.warns(UserWarning, match="no accelerator is found"):
        batches = list(loader)
    assert torch.cat([batch["__id__"] for batch in batches]).tolist() == list(range(197))
    assert not batches[0]["__id__"].is_pinned()


def test_pinned_arrays_are_of_torchs_types() -> None:
    assert batch_transfer.pinned_array((2, 3), np.dtype("S4")).shape == (2, 3)
    if torch.accelerator.is_available():
        assert torch.from_numpy(batch_transfer.pinned_array((2, 3), np.dtype("uint16"))).is_pinned()
