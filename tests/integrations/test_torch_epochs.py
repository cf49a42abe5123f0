"""The epoch beside the id, in samples that loaders make in other threads and processes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch.utils.data as torch_data
from tests.integrations import stages

import shoal.torch
from shoal.stream.dataset import Dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


def seen(batches: Any) -> list[tuple[int, int]]:
    return sorted(
        pair
        for batch in batches
        for pair in zip(batch["__id__"].tolist(), batch["seen_epoch"].tolist(), strict=True)
    )  # fmt: skip


def whole(epoch: int, ids: Any = range(197)) -> list[tuple[int, int]]:
    return sorted((int(number), epoch) for number in ids)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_threads": 2}, {"num_workers": 2, "persistent_workers": True}],
    ids=["thread", "threads", "workers"],
)
def test_in_the_loader(options: dict[str, Any], tars: Dataset) -> None:
    ds = tars.shuffle(seed=1).with_ids().map(stages.with_seen_epoch).batch(20)
    loader = shoal.torch.DataLoader(ds, **options)
    assert seen(loader) == whole(0)
    assert seen(loader) == whole(1)
    loader.set_epoch(5)
    head = seen(itertools.islice(loader, 4))
    loader.load_state_dict(loader.state_dict())
    assert sorted(head + seen(loader)) == whole(5)
    loader.close()


def test_in_torchs_loader_with_workers_that_stay(tars: Dataset) -> None:
    ds = tars.shuffle(seed=1).with_ids().map(stages.with_seen_epoch)
    part = shoal.torch.IterableDataset(ds.batch(20))
    sampler = shoal.torch.BatchSampler(ds.batch(20))
    options: dict[str, Any] = {
        "num_workers": 1, "persistent_workers": True, "multiprocessing_context": "forkserver",
    }  # fmt: skip
    of_part = torch_data.DataLoader(part, batch_size=None, **options)
    view: Any = ds.columns("__id__", "seen_epoch").as_map()
    of_map: Any = torch_data.DataLoader(view, batch_sampler=sampler, **options)
    for epoch in (0, 3, 1):
        part.set_epoch(epoch)
        sampler.set_epoch(epoch)
        assert seen(of_part) == seen(of_map) == whole(epoch)
