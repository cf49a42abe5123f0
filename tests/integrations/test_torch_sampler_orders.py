"""A run over a list with torch's samplers, gone on with as a stream in the middle of an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.samples import write_jsonl
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import shoal
from shoal.errors import StateError

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata

NUM = 203


@pytest.fixture
def ds(tmp_path: Path) -> shoal.Dataset:
    return shoal.open(write_jsonl(tmp_path / "docs.jsonl", num_docs=NUM))


def ids_of(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def loader_over_list(**arguments: Any) -> Any:
    return DataLoader(range(NUM), batch_size=8, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("drop_last", [False, True])
def test_each_rank_goes_on_with_its_own_samples(ds: shoal.Dataset, drop_last: bool) -> None:
    ranks, epoch, done = 4, 3, 2
    stream = ds.shuffle("torch-distributed", seed=5, num_replicas=ranks, drop_last=drop_last).batch(8)
    for rank in range(ranks):
        sampler: Any = DistributedSampler(range(NUM), ranks, rank, seed=5, drop_last=drop_last)  # type: ignore[arg-type]
        sampler.set_epoch(epoch)
        expected = [batch.tolist() for batch in loader_over_list(sampler=sampler)]
        mine = stream.partition(rank=rank, world_size=ranks)
        mine.load_state_dict(mine.state_at(done * 8 * ranks, epoch=epoch))
        assert ids_of(mine) == expected[done:]


@pytest.mark.parametrize("given", ["sampler", "loader"])
def test_epochs_follow_from_one_generator(ds: shoal.Dataset, given: Any) -> None:
    generator = torch.Generator().manual_seed(7)
    to_loader = {"generator": generator} if given == "loader" else {}
    theirs = loader_over_list(sampler=RandomSampler(range(NUM), generator=generator), **to_loader)
    stream = ds.shuffle("torch-random", seed=7, generator=given).batch(8)
    for _ in range(3):
        assert ids_of(stream) == [batch.tolist() for batch in theirs]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_of_a_stateful_loader_is_taken(ds: shoal.Dataset, workers: int) -> None:
    """Its seed too, which nobody has chosen; and the epochs after are those that it would have had."""
    theirs: Any = StatefulDataLoader(range(NUM), batch_size=8, shuffle=True, num_workers=workers)
    list(theirs)
    batches = iter(theirs)
    for _ in range(5):
        next(batches)
    state = theirs.state_dict()
    stream = ds.shuffle("torch-random").batch(8)
    stream.load_state_dict(state)
    assert ids_of(stream) == [batch.tolist() for batch in batches]
    assert ids_of(stream) == [batch.tolist() for batch in theirs]
    again = ds.shuffle("torch-random").batch(8)
    with pytest.raises(StateError):
        again.load_state_dict({"epoch": 1})
