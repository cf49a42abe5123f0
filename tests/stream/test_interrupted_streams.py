"""Ctrl-C at any moment: it arrives as KeyboardInterrupt, and the state that is saved then loses and repeats nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.stream.faraway import Distant, far_away
from tests.stream.interrupting import alarms_interrupt, epoch_of_interrupts

from shoal.stream.dataset import Dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    # Python's own: where the garbage collector finds a thread that has ended, an interrupt is raised in a callback.
    pytest.mark.filterwarnings("ignore:.*WeakSet.__init__.*:pytest.PytestUnraisableExceptionWarning"),
]


def near(tars: Dataset) -> Dataset:
    return tars.shuffle(seed=1).take(120).with_ids().batch(3)


def far(tars: Dataset) -> Dataset:
    return (
        far_away(tars, Distant(latencies=[0.0, 0.0005, 0.002]))
        .shuffle(seed=1, chunk="6KB")
        .take(120)
        .with_ids()
        .batch(3)
    )


def check(tars: Dataset, place: Callable[[Dataset], Dataset], num_epochs: int, seed: int) -> None:
    dice = random.Random(seed)
    num_inside = 0
    with alarms_interrupt():
        for _ in range(num_epochs):
            ds = place(tars)
            num_inside += epoch_of_interrupts(ds, lambda ds=ds: iter(ds), dice, most_seconds=0.003, batch_size=3)  # type: ignore[misc]
    assert num_inside


@pytest.mark.parametrize("place", [near, far])
def test_an_interrupted_stream_goes_on_where_it_was(place: Any, tars: Dataset) -> None:
    check(tars, place, 1, 1)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("place", [near, far])
def test_a_stream_that_is_interrupted_a_thousand_times(place: Any, seed: int, tars: Dataset) -> None:
    check(tars, place, 60, seed)
