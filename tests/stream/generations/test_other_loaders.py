"""Loaders of other libraries over a dataset that grows: refused where their parts would be of different datasets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.stream.generations.arriving import Arriving, joined, order_of, shuffled, taken

from shoal.errors import UsageError
from shoal.huggingface import to_hf
from shoal.torch import BatchSampler, IterableDataset, Sampler

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.fixture
def arriving(tmp_path: Path) -> Arriving:
    arriving = Arriving(tmp_path / "data")
    arriving.arrive(["b.jsonl", "d.jsonl"], 10)
    return arriving


@pytest.mark.parametrize(
    ("loader", "is_batched"), [(IterableDataset, True), (BatchSampler, True), (Sampler, False), (to_hf, False)]
)
def test_a_followed_dataset_is_refused(arriving: Arriving, loader: Callable[[Any], Any], is_batched: bool) -> None:
    """Each worker would look at the source by itself, and a state names the dataset before the look."""
    ds = shuffled(arriving.directory, follow=True)
    with pytest.raises(UsageError, match="follow=True") as caught:
        loader(ds.batch(4) if is_batched else ds)
    assert "shoal.torch.DataLoader" in (caught.value.hint or "")


def test_workers_of_an_extended_dataset_read_both_datasets(arriving: Arriving) -> None:
    ds = shuffled(arriving.directory).batch(4)
    first = taken(ds, 2)
    arriving.arrive(["a.jsonl"], 9)
    loader = IterableDataset(ds.extended())
    shards = [str(arriving.directory / name) for name in arriving.arrivals]
    assert joined(first) + joined([b["id"].tolist() for b in loader]) == order_of(arriving, shards[:2], 0)
    loader.set_epoch(1)
    assert joined([b["id"].tolist() for b in loader]) == order_of(arriving, shards, 1)


def test_a_sampler_is_refused_while_its_ids_belong_to_another_dataset_than_the_map(arriving: Arriving) -> None:
    ds = shuffled(arriving.directory).batch(4)
    taken(ds, 2)
    arriving.arrive(["a.jsonl"], 9)
    extended = ds.extended()
    with pytest.raises(UsageError, match="epoch 0 reads another dataset than as_map"):
        BatchSampler(extended)
    taken(extended)
    view = extended.as_map()
    shards = [str(arriving.directory / name) for name in arriving.arrivals]
    due = order_of(arriving, shards, 1)
    assert [view[i]["id"] for ids in BatchSampler(extended) for i in ids][: len(due)] == due
