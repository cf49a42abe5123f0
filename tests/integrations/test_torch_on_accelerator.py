"""Batches on their way to a real accelerator; skipped where there is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.integrations import stages

import shoal.pack
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset
from shoal.torch import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.skipif(not torch.accelerator.is_available(), reason="there is no accelerator"),
]
NUM, LENGTH, BATCH = 4000, 8193, 64  # batches of 1 MB: small copies are made when they are asked for


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Rows of tokens, each of its number."""
    directory = tmp_path_factory.mktemp("tokens") / "mds"
    options = {"columns": {"tokens": f"ndarray:uint16:{LENGTH}"}}
    sizes: dict[str, Any] = {"shard_bytes": "8MiB", "extent_bytes": 1 << 18}
    with shoal.pack.Writer(directory, format="mds", options=options, **sizes) as writer:
        for number in range(NUM):
            writer.write({"tokens": np.full(LENGTH, number, np.uint16)})
    return open_dataset(directory).shuffle(seed=1).with_ids()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("prefetch_factor", [1, 4])
@pytest.mark.parametrize("first", [0, BATCH // 2], ids=["whole", "second half"])
def test_memory_is_not_used_again_while_copies_of_it_are_under_way(
    num_workers: int, prefetch_factor: int, first: int, tokens: Dataset
) -> None:
    """Copies queue up behind work of milliseconds, and the loop lets go of each batch at once."""
    ds = tokens.batch(BATCH)
    loader = DataLoader(ds, pin_memory=True, num_workers=num_workers, prefetch_factor=prefetch_factor)
    busy = torch.zeros(4096, 4096, device=torch.accelerator.current_accelerator())
    there = []
    for batch in loader:
        assert batch["tokens"].is_pinned()
        assert batch["__id__"].is_pinned()
        busy = busy @ busy
        there.append(batch["tokens"][first:].to(busy.device, non_blocking=True))
        del batch
    rows = torch.cat(there).cpu()
    assert (rows == rows[:, :1]).all()
    ids = ds.ids()
    assert rows[:, 0].tolist() == [
        number for step in range(0, len(ids), BATCH) for number in ids[step + first : step + BATCH]
    ]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_resumed_loader_gives_the_same_pinned_batches(num_workers: int, tokens: Dataset) -> None:
    loader = DataLoader(tokens.batch(BATCH), pin_memory=True, num_workers=num_workers)
    iterator = iter(loader)
    for _ in range(20):
        next(iterator)
    state = loader.state_dict()
    expected = [batch["__id__"].tolist() for batch in iterator]
    again = DataLoader(tokens.batch(BATCH), pin_memory=True, num_workers=2 - num_workers)
    again.load_state_dict(state)
    resumed = list(again)
    assert [batch["__id__"].tolist() for batch in resumed] == expected
    assert all(batch["tokens"].is_pinned() for batch in resumed)


def test_what_is_no_column_is_pinned_too(tars: Dataset) -> None:
    batches = list(DataLoader(tars.map(stages.plain).with_ids().batch(50), pin_memory=True))
    assert all(batch["__id__"].is_pinned() for batch in batches)
    assert torch.cat([batch["__id__"] for batch in batches]).tolist() == list(range(197))
