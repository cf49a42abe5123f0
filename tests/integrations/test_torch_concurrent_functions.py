"""Coroutine functions in `shoal.torch.DataLoader`: the batches of ``iter(dataset)``, and an end that cancels them."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.integrations import stages
from tests.integrations.test_torch_stopping import check
from tests.stream.made import at, reading_threads

from shoal.stream.dataset import Dataset
from shoal.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

WAYS: list[dict[str, Any]] = [
    {},
    {"prefetch_factor": 0},
    {"num_threads": 3},
    {"num_workers": 1},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
]


def made(tars: Dataset, function: Any = stages.fetched, *, size: int = 7, most: int = 6) -> Dataset:
    return tars.shuffle(seed=3).with_ids().map(function, max_concurrency=most).batch(size)


def doubles(batches: Any) -> list[list[int]]:
    return [batch["double"].tolist() for batch in batches]


@pytest.mark.parametrize("ways", WAYS)
def test_the_batches_are_those_of_the_dataset(ways: dict[str, Any], tars: Dataset) -> None:
    ds, here = made(tars), made(tars)
    loader = DataLoader(ds, **ways)
    for _ in range(2):
        assert doubles(loader) == doubles(here)
        assert loader.state_dict() == here.state_dict()
    counts = ("num_samples", "num_batches")
    assert [loader.stats()[name] for name in counts] == [here.stats()[name] for name in counts]
    loader.close()
    assert reading_threads() == []


@pytest.mark.parametrize(("ways", "then", "steps"), [({"num_workers": 2}, {}, 5), ({}, {"num_workers": 2}, 11)])
def test_a_run_goes_on_in_other_processes(
    ways: dict[str, Any], then: dict[str, Any], steps: int, tars: Dataset
) -> None:
    expected = doubles(made(tars))
    loader = DataLoader(made(tars), **ways)
    begun = doubles(itertools.islice(loader, steps))
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    again = DataLoader(made(tars, most=1), **then)
    again.load_state_dict(state)
    assert begun + doubles(again) == expected
    again.close()


@pytest.mark.parametrize("ways", WAYS)
def test_an_error_is_raised_at_its_batch(ways: dict[str, Any], tars: Dataset) -> None:
    ids = tars.shuffle(seed=3).ids().tolist()
    ds = made(tars, stages.failing_at_100)
    loader = DataLoader(ds, **ways)
    received = []
    with pytest.raises(KeyError, match="this is sample 100") as caught:
        for batch in loader:
            received += batch["__id__"].tolist()
    before = ids.index(100) // 7 * 7
    assert received == ids[:before]
    assert at(ds) == (0, before)
    assert any("shoal: in map(failing_at_100) of the sample with id 100" in note for note in caught.value.__notes__)
    loader.close()


@pytest.mark.parametrize("ways", WAYS)
def test_a_loop_that_waits_for_a_coroutine_can_be_ended(ways: dict[str, Any], tars: Dataset) -> None:
    ds = tars.with_ids().map(stages.endless_at_70, max_concurrency=4).batch(5)
    loader = DataLoader(ds, **ways)
    check(ds, iter(loader), loader.stop, lambda: at(ds)[1] > 20)
    loader.close()


STAYING = {"num_workers": 1, "persistent_workers": True}


@pytest.mark.parametrize("ways", [{}, {"num_workers": 1}, pytest.param(STAYING, marks=pytest.mark.drill)])
def test_closing_a_loader_cancels_the_coroutines(
    ways: dict[str, Any], tars: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("COROUTINE_LOG", str(log))
    ways = {**ways, "multiprocessing_context": "spawn"} if ways else ways  # a fork server has another environment
    loader = DataLoader(tars.with_ids().map(stages.endless_by_file, max_concurrency=4).batch(5), **ways)
    iterator = iter(loader)
    for _ in range(14):
        next(iterator)
    assert becomes(log, "waits\n")
    iterator.close()
    loader.close()
    assert becomes(log, "waits\ncancelled\n")


def becomes(path: Path, content: str) -> bool:
    """Wait until a file has this content, or for ten seconds."""
    until = time.monotonic() + 10
    while not (path.exists() and path.read_text() == content) and time.monotonic() < until:
        time.sleep(0.01)
    return path.read_text() == content


def test_threads_end_before_the_first_function_that_takes_several_samples(tars: Dataset) -> None:
    ds = tars.map(stages.plain).map(stages.fetched, max_concurrency=4).map(stages.plain).batch(4)
    loader = DataLoader(ds, num_threads=3)
    assert loader.decoding == "3 threads: num_threads=3 was given"
    assert doubles(loader) == doubles(tars.map(stages.fetched).batch(4))
    assert DataLoader(tars.map(stages.fetched).batch(4), num_threads=3).decoding.startswith("one thread: ")
