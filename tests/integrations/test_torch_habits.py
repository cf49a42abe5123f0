"""What a torch user does with a loader without thinking about it."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integrations import stages
from tests.stream.made import at, flat

from shoal.stream.dataset import Dataset
from shoal.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

WAYS = [
    pytest.param({"num_workers": 0}, id="threads"),
    pytest.param({"num_workers": 0, "prefetch_factor": 0}, id="no threads"),
    pytest.param({"num_workers": 2}, id="workers"),
    pytest.param({"num_workers": 2, "persistent_workers": True}, id="persistent workers"),
]


def ids_of(batches: Any) -> list[list[int]]:
    return [batch["__id__"].tolist() for batch in batches]


def expected(ds: Dataset, epoch: int) -> list[list[int]]:
    return [ds.batch_ids(step, epoch=epoch).tolist() for step in range(len(ds))]


@pytest.mark.parametrize("way", WAYS)
def test_habits(way: dict[str, Any], tars: Dataset) -> None:
    """One loader for all of them: to start workers takes longest."""
    ds = tars.shuffle(seed=3).with_ids().batch(20)
    loader = DataLoader(ds, **way)
    assert len(loader) == 10
    # enumerate over epochs
    for epoch in range(2):
        seen = [(step, batch["__id__"].tolist()) for step, batch in enumerate(loader)]
        assert seen == list(enumerate(expected(ds, epoch)))
        assert len(seen) == len(loader)
    # a loop that is left, and entered again: the same epoch from its start
    for batch in loader:
        assert batch["__id__"].tolist() == expected(ds, 2)[0]
        break
    assert at(ds) == (2, 20)
    assert ids_of(itertools.islice(loader, 3)) == expected(ds, 2)[:3]
    # or where it was left, when the state says so
    loader.load_state_dict(loader.state_dict())
    assert ids_of(itertools.islice(loader, 2)) == expected(ds, 2)[3:5]
    loader.load_state_dict(loader.state_dict())
    # copies stand there too, and go their own way
    for other in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        other.load_state_dict(loader.state_dict())
        assert ids_of(other) == expected(ds, 2)[5:]
        other.close()
    assert ids_of(loader) == expected(ds, 2)[5:]
    assert at(ds) == (3, 0)
    # zip leaves a batch of the longer one behind, and the next loop begins its epoch anew
    assert len(list(zip(range(4), loader, strict=False))) == 4
    assert sorted(flat(ids_of(loader))) == list(range(197))
    loader.close()


def test_two_datasets_with_workers_in_one_loop(tars: Dataset) -> None:
    train, val = tars.shuffle(seed=1).with_ids().batch(50), tars.take(60).with_ids().batch(30)
    loaders = [DataLoader(ds, num_workers=2, persistent_workers=True) for ds in (train, val)]
    for epoch in range(2):
        pairs = list(zip(loaders[0], itertools.cycle([None]), strict=False))
        assert ids_of(batch for batch, _ in pairs) == expected(train, epoch)
        assert flat(ids_of(loaders[1])) == list(range(60))
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("prefetch_factor", [1, 3])
def test_workers_make_so_many_batches_ahead(prefetch_factor: int, tars: Dataset, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    ds = tars.map(functools.partial(stages.slowly_noted, str(notes))).batch(5)
    iterator = iter(DataLoader(ds, num_workers=2, prefetch_factor=prefetch_factor))
    next(iterator)
    expected = 5 * (2 * prefetch_factor + 1)  # one batch was received, and its worker may make another
    deadline = time.monotonic() + 20
    while notes.stat().st_size < expected and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    assert notes.stat().st_size == expected
    iterator.close()
