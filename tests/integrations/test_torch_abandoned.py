"""Threads of an iterator end when it is abandoned, also one that its own functions refer to."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.stream.faraway import Distant, far_away

from shoal.stream.dataset import Dataset
from shoal.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

NAMES = ("shoal-make", "shoal-decode", "shoal-read")


class Trainer:
    """An object whose method is a stage, and that keeps the iterator: iterator and function are in a circle."""

    def __init__(self, begin: Callable[[Trainer], Iterator[Any]]) -> None:
        self.num_calls = 0
        self.iterator = begin(self)
        next(self.iterator)

    def changed(self, thing: Any) -> Any:
        return thing

    def failing(self, thing: Any) -> Any:
        self.num_calls += 1
        if self.num_calls > 8:
            msg = "wrong"
            raise ValueError(msg)
        return thing


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(NAMES)}


def of_batches(trainer: Trainer, ds: Dataset) -> Iterator[Any]:
    return iter(DataLoader(ds.batch(4).map(trainer.changed), num_workers=0))


def of_failing_batches(trainer: Trainer, ds: Dataset) -> Iterator[Any]:
    return iter(DataLoader(ds.batch(4).map(trainer.failing), num_workers=0, prefetch_factor=20))


def without_room(trainer: Trainer, ds: Dataset) -> Iterator[Any]:
    return iter(DataLoader(ds.batch(4).map(trainer.changed), num_workers=0, prefetch_bytes=1))


def in_threads(trainer: Trainer, ds: Dataset) -> Iterator[Any]:
    return iter(DataLoader(ds.map(trainer.changed).batch(4), num_workers=0, num_threads=2))


def failing_in_threads(trainer: Trainer, ds: Dataset) -> Iterator[Any]:
    return iter(DataLoader(ds.map(trainer.failing).batch(4), num_workers=0, num_threads=2))


def of_steps(trainer: Trainer, ds: Dataset) -> Iterator[Any]:
    refilled = ds.map(trainer.changed).filter(bool, refill=True).batch(4, steps=10)
    return iter(DataLoader(refilled, num_workers=0))


def of_steps_here(trainer: Trainer, ds: Dataset) -> Iterator[Any]:
    return iter(ds.map(trainer.changed).filter(bool, refill=True).batch(4, steps=10))


def of_samples(trainer: Trainer, ds: Dataset) -> Iterator[Any]:
    return iter(ds.map(trainer.changed))


@pytest.fixture(autouse=True, scope="module")
def _quick_collections() -> Iterator[None]:
    """Let the garbage collector look only at objects of these tests: it takes long over those of torch."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


WAYS = [of_batches, of_failing_batches, without_room, in_threads, failing_in_threads, of_steps, of_steps_here,
        of_samples]  # fmt: skip


@pytest.mark.parametrize("is_far", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_threads_end_with_an_object_that_is_dropped(way: Callable[..., Any], tars: Dataset, *, is_far: bool) -> None:
    before = threads()
    ds = (far_away(tars, Distant()) if is_far else tars).shuffle(seed=1)
    trainer = Trainer(lambda made: way(made, ds))
    time.sleep(0.05)  # what is made ahead is made
    if is_far or way not in (of_steps_here, of_samples):
        assert threads() - before
    alive = weakref.ref(trainer)
    del trainer
    until = time.monotonic() + 5.0
    while alive() is not None and time.monotonic() < until:
        gc.collect()
        time.sleep(0.02)  # a thread keeps the stages while it makes a batch
    assert alive() is None
    for thread in threads() - before:
        thread.join(2.0)
    assert not threads() - before
