"""Ctrl-C at any moment of a loop over a loader without workers: nothing is lost, nothing hangs, no thread is left."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.stream.interrupting import alarms_interrupt, epoch_of_interrupts
from tests.stream.test_interrupted_streams import far, near

from shoal.stream.dataset import Dataset
from shoal.torch import DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    # Python's own: where the garbage collector finds a thread that has ended, an interrupt is raised in a callback.
    pytest.mark.filterwarnings("ignore:.*WeakSet.__init__.*:pytest.PytestUnraisableExceptionWarning"),
]

OPTIONS: dict[str, dict[str, Any]] = {
    "ahead": {},
    "decoded in threads": {"num_threads": 2},
    "nothing ahead": {"prefetch_factor": 0},
    "decoded in threads, nothing ahead": {"num_threads": 2, "prefetch_factor": 0},
}


def check(tars: Dataset, place: Callable[[Dataset], Dataset], options: dict[str, Any], num: int, seed: int) -> None:
    dice = random.Random(seed)
    num_inside = 0
    with alarms_interrupt():
        for _ in range(num):
            loader = DataLoader(place(tars), **options)
            begin: Any = lambda loader=loader: iter(loader)  # noqa: E731
            num_inside += epoch_of_interrupts(loader.dataset, begin, dice, most_seconds=0.003, batch_size=3)
    assert num_inside


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ("ahead", far),
        ("decoded in threads", near),
        ("nothing ahead", near),
        ("decoded in threads, nothing ahead", far),
        pytest.param("ahead", near, marks=pytest.mark.drill),
        pytest.param("decoded in threads", far, marks=pytest.mark.drill),
        pytest.param("nothing ahead", far, marks=pytest.mark.drill),
        pytest.param("decoded in threads, nothing ahead", near, marks=pytest.mark.drill),
    ],
)
def test_an_interrupted_loop_goes_on_where_it_was(options: str, place: Any, tars: Dataset) -> None:
    check(tars, place, OPTIONS[options], 1, 1)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("place", [near, far])
@pytest.mark.parametrize("options", list(OPTIONS))
def test_a_loop_that_is_interrupted_a_thousand_times(options: str, place: Any, tars: Dataset) -> None:
    check(tars, place, OPTIONS[options], 60, 2)
