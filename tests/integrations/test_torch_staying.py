"""Workers that stay make what an iterator of this process would make, whatever was asked for between two passes."""

from __future__ import annotations

import functools
import itertools
import pickle
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.stream.made import flat

from shoal.integrations.torch import torch_loader
from shoal.integrations.torch.worker_processes import Workers
from shoal.pipeline.collate import collate
from shoal.stream.dataset import Dataset
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.workers.worker_batches import StepMaker, Task
from shoal.stream.workers.worker_pool import close_all
from shoal.torch import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]


class Marking:
    """A function of samples with a value of its own, which a user may change between epochs."""

    def __init__(self) -> None:
        self.mark = 0

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "mark": self.mark}


def doubled(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"__id__": [2 * sample["__id__"] for sample in samples]}


class SentHere(Workers):
    """Workers without processes: each gets a copy of what it would be sent, and works in this process."""

    num_started = 0

    def __init__(self, work: Any, num_workers: int, **options: Any) -> None:
        type(self).num_started += 1
        super().__init__(work, num_workers, **options)
        forks = options["context"].get_start_method() == "fork"
        jobs = [self._job if forks else pickle.loads(pickle.dumps(self._job)) for _ in range(num_workers)]
        self._makers = [StepMaker(job.work, num_workers, self._stopped) for job in jobs]

    def begin(self, spec: Any, is_stopped: Any) -> None:
        steps = spec.position().global_batches
        self._results = (
            self._makers[step % len(self._makers)].make(Task(spec.epoch, spec.start, step, steps.stop))
            for step in steps
        )

    def next(self) -> Any:
        return next(self._results)


@pytest.fixture
def sent_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[SentHere]]:
    monkeypatch.setattr(torch_loader, "Workers", SentHere)
    monkeypatch.setattr(SentHere, "num_started", 0)
    yield SentHere
    close_all()
    for thread in threading.enumerate():
        if thread.name == "shoal-stop":
            thread.join(5)


def seen_in(batches: Any) -> list[dict[str, Any]]:
    return [
        {name: values if isinstance(values, list) else values.tolist() for name, values in batch.items()}
        for batch in batches
    ]


SHUFFLES: list[dict[str, Any]] = [{"seed": 3}, {"seed": 4}, {"seed": 3, "window": 60_000}, {"order": "full", "seed": 3}]
READINGS: list[dict[str, Any]] = [{}, {"on_error": "skip"}, {"memory_limit": "1MiB"}, {"verify": "always"}]


def some_dataset(chance: random.Random, tars: Dataset, marking: Marking) -> Callable[[], Dataset]:
    """A way to make a dataset, so that two of them are alike and know nothing of each other."""
    stored = sorted(chance.sample(range(197), chance.randint(20, 197))) if chance.random() < 0.5 else None
    shuffle, reading = chance.choice(SHUFFLES), chance.choice(READINGS)
    delivered = chance.randint(10, 20) if chance.random() < 0.3 else None
    world_size, size = chance.choice([1, 2, 3]), chance.choice([4, 7, 16])
    rank, remainder = chance.randrange(world_size), chance.choice(["keep", "pad", "drop"])

    def made() -> Dataset:
        ds = tars if stored is None else tars.select(stored)
        ds = ds.shuffle(**shuffle)
        ds = ds if delivered is None else ds.take(delivered)
        ds = ds.with_ids().map(marking).columns("__id__", "mark").reading(**reading)
        return ds.batch(size, remainder=remainder).partition(rank=rank, world_size=world_size)

    return made


def some_state(chance: random.Random, ds: Dataset) -> dict[str, Any]:
    """A state of a run of this dataset, which may have left something out."""
    positions = ds.num_samples
    edges = sorted(chance.sample(range(positions + 1), 2))
    epoch = chance.randrange(3)
    if chance.random() < 0.7:
        ds = ds.without(positions=[tuple(edges)], epoch=epoch) if edges != [0, positions] else ds
    return ds.state_at(chance.randint(0, positions), epoch=epoch)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.drill) for seed in range(4, 12))])
def test_random_passes_are_those_of_an_iterator_here(seed: int, tars: Dataset, sent_here: type[SentHere]) -> None:
    chance, marking = random.Random(seed), Marking()
    make = some_dataset(chance, tars, marking)
    here, there = make(), make()
    loader = DataLoader(there, num_workers=chance.choice([1, 2, 3]), persistent_workers=True)
    for _ in range(25):
        match chance.choice(["go on", "state", "state", "epoch", "dataset", "mark", "collate"]):
            case "state":
                state = some_state(chance, make())
                here.load_state_dict(state)
                loader.load_state_dict(state)
            case "epoch":
                epoch = chance.randrange(4)
                here.set_epoch(epoch)
                loader.set_epoch(epoch)
            case "dataset":
                make = some_dataset(chance, tars, marking)
                here, loader.dataset = make(), make()
            case "mark":
                marking.mark += 1
            case "collate":
                loader.collate_fn = None if loader.collate_fn else doubled
        most = chance.choice([1, 3, None])
        own = here.stream.iterator_spec(loader.collate_fn or collate)
        with Iteration(own) as iteration:
            expected = seen_in(itertools.islice(iteration, most))
        assert seen_in(itertools.islice(loader, most)) == expected
        assert loader.state_dict() == here.state_dict()
    loader.close()
    assert 1 <= sent_here.num_started <= 26


def test_workers_stay_where_nothing_that_they_were_given_changed(tars: Dataset, sent_here: type[SentHere]) -> None:
    ds = tars.shuffle(seed=3).with_ids().map(lambda sample: sample).batch(16)
    loader = DataLoader(ds, num_workers=2, persistent_workers=True, multiprocessing_context="fork")
    for epoch in (0, 1, 5):
        loader.set_epoch(epoch)
        assert len(list(loader)) == 13
        loader.load_state_dict(loader.state_dict())
    resumed = sent_here.num_started  # a state may fix what shuffle() left open, once
    loader.load_state_dict(loader.dataset.state_at(50))
    assert len(list(loader)) == 10
    assert sent_here.num_started == resumed <= 2


@pytest.mark.parametrize(
    "held", [threading.Lock(), functools.partial(print, end=threading.Lock())], ids=["lock", "part"]
)
def test_what_cannot_be_pickled_is_compared_by_being_the_same(
    held: Any, tars: Dataset, sent_here: type[SentHere]
) -> None:
    marks = {"mark": 0, "held": held}
    ds = tars.with_ids().map(lambda sample: {**sample, "mark": marks["mark"]}).batch(64)
    loader = DataLoader(ds, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    for mark, num_started in [(0, 1), (0, 1), (1, 2), (1, 2)]:
        marks["mark"] = mark
        list(loader)
        assert sent_here.num_started == num_started
    marks["held"] = threading.Lock()
    list(loader)
    assert sent_here.num_started == 3


def test_processes_that_stay_leave_out_what_a_state_leaves_out(tars: Dataset) -> None:
    ds = tars.shuffle(seed=3).with_ids().batch(8)
    loader = DataLoader(ds, num_workers=2, persistent_workers=True)
    whole = flat(batch["__id__"].tolist() for batch in loader)
    assert sorted(whole) == list(range(197))
    gone = tars.shuffle(seed=3).batch(8).without(positions=[(40, 70)])
    loader.load_state_dict(gone.state_dict())
    assert flat(batch["__id__"].tolist() for batch in loader) == whole[:40] + whole[70:]
    loader.close()
