"""Forked children of a process that has read: the dataset is theirs to use anew, its iterators are not."""

from __future__ import annotations

import gc
import os
import time
import traceback
import warnings
from collections.abc import Callable

import pytest
from tests.stream.made import at, check_sample, ids_of

from shoal.errors import ForkError
from shoal.stream.dataset import Dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
]


def in_children(task: Callable[[int], None], *, count: int = 1) -> None:
    """Run a task in forked children at the same time; each must end well, and soon."""
    children = []
    for number in range(count):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks is the point
            child = os.fork()
        if not child:
            code = 1
            try:
                task(number)
                code = 0
            except BaseException:  # noqa: BLE001  # nothing of a child may go on in the parent's tests
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    deadline = time.monotonic() + 20
    for child in children:
        while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
            time.sleep(0.002)
        if not ended[0]:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("a child hangs")
        assert os.waitstatus_to_exitcode(ended[1]) == 0


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize("order", ["full", "window", "none"])
def test_children_iterate_the_dataset_anew(order: str, tars: Dataset) -> None:
    ds = tars.shuffle(order, seed=2)
    iterator = iter(ds)
    first = [check_sample(next(iterator)) for _ in range(100)]
    ids = ds.ids().tolist()

    def task(number: int) -> None:
        own = tars.shuffle(order, seed=2)
        for _ in range(3):
            own.set_epoch(0)
            assert ids_of(own) == ids
        assert ids_of(ds) == ids  # from where it began, as every iterator of this epoch
        assert check_sample(ds[number]) == number

    in_children(task, count=4)
    assert first + [check_sample(sample) for sample in iterator] == ids


@pytest.mark.usefixtures("readers")
@pytest.mark.parametrize("batch", [None, 5])
def test_an_inherited_iterator_says_so_at_once(batch: int | None, tars: Dataset) -> None:
    ds = tars if batch is None else tars.batch(batch)
    iterator = iter(ds)
    next(iterator)

    def task(number: int) -> None:
        for _ in range(2):
            with pytest.raises(ForkError, match=r"the parent process made this iterator") as caught:
                next(iterator)
            assert "call iter() in the child" in caught.value.hint
        state = iterator.state_dict()
        iterator.close()
        assert state == iterator.state_dict() == ds.state_dict()

    in_children(task)
    next(iterator)  # the parent goes on
    assert at(iterator)[1] == 2 * (batch or 1)


@pytest.mark.usefixtures("readers")
def test_a_child_that_lets_go_of_an_inherited_iterator_ends(tars: Dataset) -> None:
    iterators = [iter(tars.shuffle("full"))]
    next(iterators[0])

    def task(number: int) -> None:
        iterators.clear()
        gc.collect()

    in_children(task, count=3)
    next(iterators[0])
    iterators[0].close()


@pytest.mark.usefixtures("readers")
def test_a_dataset_first_used_in_children(tars: Dataset) -> None:
    ds = tars.shuffle("full", seed=7).batch(10)
    ids = ds.ids().tolist()
    in_children(lambda number: check(ds.partition(rank=number, world_size=4), ids), count=4)


def check(ds: Dataset, ids: list[int]) -> None:
    for step, batch in enumerate(ds):
        assert batch["cls"] == [str(number).encode() for number in ds.batch_ids(step)]
        assert set(ds.batch_ids(step).tolist()) <= set(ids[step * 40 : step * 40 + 40])
