"""`shoal.torch.IterableDataset` in other loaders: the exact set, and exact resume where the loader has a state."""

from __future__ import annotations

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
import torch.utils.data as torch_data
from tests.stream.made import flat

from shoal.errors import StateError, UsageError
from shoal.integrations.torch import iterable_dataset
from shoal.stream.dataset import Dataset
from shoal.stream.workers.foreign_loaders import refuse_second_dealing
from shoal.torch import IterableDataset

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:Length of IterableDataset"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata
]

CONTEXT = {0: None, 1: "forkserver", 2: "forkserver", 3: "forkserver"}


def loader_of(ds: Dataset, num_workers: int, kind: Any = torch_data.DataLoader, **options: Any) -> Any:
    options = {"batch_size": None, "num_workers": num_workers, **options}
    return kind(IterableDataset(ds), multiprocessing_context=CONTEXT[num_workers], **options)


def ids_of(batches: Any) -> list[list[int]]:
    return [torch.as_tensor(batch["__id__"]).reshape(-1).tolist() for batch in batches]


@pytest.mark.parametrize(
    ("num_workers", "size"), [(0, None), (0, 9), (2, None), (2, 9), pytest.param(3, 9, marks=pytest.mark.drill)]
)
def test_every_sample_once_over_ranks_and_workers(num_workers: int, size: int | None, tars: Dataset) -> None:
    seen = []
    for rank in range(2):
        ds = tars.shuffle(seed=3).with_ids().partition(rank=rank, world_size=2)
        ds = ds if size is None else ds.batch(size)
        seen += flat(ids_of(loader_of(ds, num_workers)))
    assert sorted(seen) == list(range(197))


def test_torch_makes_batches_of_single_samples(tars: Dataset) -> None:
    ds = tars.shuffle(seed=3).with_ids().columns("__id__", "cls")
    assert ids_of(loader_of(ds, 0, batch_size=10)) == [ds.ids()[i : i + 10].tolist() for i in range(0, 197, 10)]
    with pytest.raises(UsageError, match="batches of batches"):
        list(loader_of(ds.batch(4), 0, batch_size=10))
    iterator = iter(loader_of(ds.batch(4), 1, batch_size=10))
    with pytest.raises(UsageError, match="batches of batches"):
        next(iterator)
    iterator._workers_done_event.set()  # torch takes five seconds to end a worker that raised
    iterator._index_queues[0].put(None)


@pytest.mark.parametrize(("num_workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_epochs_are_set(num_workers: int, persistent: bool, tars: Dataset) -> None:
    ds = tars.shuffle(seed=3).with_ids().batch(10)
    loader = loader_of(ds, num_workers, persistent_workers=persistent)
    seen = []
    for epoch in (0, 1, 1, 5):
        loader.dataset.set_epoch(epoch)
        seen.append(ids_of(loader))
        assert sorted(flat(seen[-1])) == list(range(197))
        if num_workers < 2:
            assert seen[-1] == [ds.batch_ids(step, epoch=epoch).tolist() for step in range(20)]
    assert seen[0] != seen[1] == seen[2] != seen[3]
    assert ids_of(loader) == seen[3]


def test_a_loaded_position_serves_one_epoch(tars: Dataset) -> None:
    ds = tars.shuffle(seed=3).with_ids().batch(10)
    whole = ids_of(ds)
    state = ds.state_at(100)
    for num_workers in (0, 1):
        again = tars.shuffle(seed=3).with_ids().batch(10)
        loader = loader_of(again, num_workers)
        again.load_state_dict(state)  # after the loader was made
        assert ids_of(loader) == whole[10:]
    loader = loader_of(again, 0)
    assert [ids_of(loader), ids_of(loader)] == [whole[10:], whole]
    loader.dataset.set_epoch(1)
    loader.dataset.load_state_dict(state)
    assert ids_of(loader) == whole[10:]


def test_workers_that_stay_begin_where_the_dataset_does(tars: Dataset) -> None:
    ds = tars.shuffle(seed=3).with_ids().batch(10)
    loader = loader_of(ds, 2, persistent_workers=True)
    left_out = ds.without(positions=[(20, 70)], epoch=1)
    steps: list[tuple[Any, Any, list[int]]] = [
        (None, None, ds.ids().tolist()),
        (loader.dataset.load_state_dict, ds.state_at(100), ds.ids(0, 100).tolist()),
        (ds.load_state_dict, ds.state_at(150, epoch=1), ds.ids(1, 150).tolist()),
        (ds.set_epoch, 1, ds.ids(1, 150).tolist()),  # which does not move a loaded position
        (ds.set_epoch, 2, ds.ids(2).tolist()),
        (loader.dataset.set_epoch, 4, ds.ids(4).tolist()),
        (ds.load_state_dict, left_out.state_at(10, epoch=1), [*ds.ids(1, 10, 20), *ds.ids(1, 70)]),
    ]
    pids = None
    for move, argument, ids in steps:
        if move is not None:
            move(argument)
        next(iter(loader))  # a pass that is left says nothing about where the next one begins
        assert sorted(flat(ids_of(loader))) == sorted(ids)
        workers = [worker.pid for worker in loader._iterator._workers]
        assert pids in (None, workers)
        pids = workers


def test_a_copy_goes_its_own_way(tars: Dataset) -> None:
    source = IterableDataset(tars.shuffle(seed=3).with_ids().batch(10))
    source.set_epoch(2)
    for other in (copy.copy(copy.deepcopy(source)), copy.deepcopy(source), pickle.loads(pickle.dumps(source))):
        assert ids_of(other) == ids_of(source)
        other.set_epoch(1)
        other.dataset.set_epoch(3)
        assert sorted(flat(ids_of(other))) == list(range(197))
        assert ids_of(other)[0] == other.dataset.batch_ids(0, epoch=3).tolist()
        assert ids_of(source)[0] == source.dataset.batch_ids(0, epoch=2).tolist()


def test_a_state_that_is_half_written_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterable_dataset, "_TRIES", 3)
    shared = iterable_dataset.SharedState()
    assert shared.put({"epoch": 1}) == 1
    assert shared.put({"epoch": 2}) == shared.number == 2
    assert shared.get() == (2, {"epoch": 2})
    shared._bytes[20] ^= 1
    with pytest.raises(StateError, match="the state kept changing"):
        shared.get()
    with pytest.raises(StateError, match="the state has 20013 bytes"):
        shared.put({"order": "x" * 20_000})


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_dataset_may_be_told_the_epoch_itself(num_workers: int, tars: Dataset) -> None:
    ds = tars.shuffle(seed=3).with_ids().batch(100)
    loader = loader_of(ds, num_workers)
    loader.dataset.set_epoch(1)
    ds.set_epoch(2)
    assert ids_of(loader) == [ds.batch_ids(step, epoch=2).tolist() for step in range(2)]


@pytest.mark.parametrize(
    ("num_workers", "size"), [(0, None), (0, 9), (2, None), (2, 9), pytest.param(1, 9, marks=pytest.mark.drill)]
)
def test_a_stateful_loader_resumes_exactly(num_workers: int, size: int | None, tars: Dataset) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    ds = tars.shuffle(seed=3).with_ids().partition(rank=1, world_size=2)
    ds = ds if size is None else ds.batch(size)
    whole = ids_of(loader_of(ds, num_workers, stateful.StatefulDataLoader))
    for stop in (1, 6):
        loader = loader_of(ds, num_workers, stateful.StatefulDataLoader)
        received = ids_of(itertools.islice(loader, stop))
        state = copy.deepcopy(loader.state_dict())
        again = loader_of(ds, num_workers, stateful.StatefulDataLoader)
        again.load_state_dict(state)
        assert received + ids_of(again) == whole


def test_a_part_of_another_worker_or_rank_is_refused(tars: Dataset) -> None:
    ds = tars.shuffle(seed=3).with_ids().batch(9)
    parts = [iter(IterableDataset(ds.partition(rank=rank, world_size=2))) for rank in range(2)]
    with pytest.raises(StateError, match=r"rank=0; this worker has rank=1"):
        parts[1].load_state_dict(parts[0].state_dict())
    state = {**parts[0].state_dict(), "num_workers": 4}
    with pytest.raises(StateError, match=r"num_workers=4; this worker has num_workers=1"):
        parts[0].load_state_dict(state)
    other = iter(IterableDataset(tars.shuffle(seed=4).with_ids().batch(9).partition(rank=0, world_size=2)))
    with pytest.raises(StateError, match="seed=3"):
        other.load_state_dict(parts[0].state_dict())
    for part in (*parts, other):
        part.close()


class IterableDatasetShard:
    """Named as the wrappers are that deal samples to ranks."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def ask(self) -> None:
        refuse_second_dealing(self.world_size)


def test_a_wrapper_that_deals_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    IterableDatasetShard(2).ask()  # not of a library that does so
    monkeypatch.setitem(globals(), "__name__", "accelerate.data_loader")
    IterableDatasetShard(1).ask()
    with pytest.raises(UsageError, match=r"accelerate's IterableDatasetShard deals .* one of 2 ranks"):
        IterableDatasetShard(2).ask()


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(UsageError, match="got list"):
        IterableDataset([1, 2])  # type: ignore[arg-type]
