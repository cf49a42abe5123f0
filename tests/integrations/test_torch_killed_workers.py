"""A worker that is killed is a `WorkerError`, wherever the main process is at that moment."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from multiprocessing.connection import wait
from typing import Any

import pytest

from shoal.errors import WorkerError
from shoal.stream.dataset import Dataset
from shoal.stream.workers import worker_source
from shoal.stream.workers.shared_batches import BatchReceiver
from shoal.stream.workers.worker_pool import WorkerPool
from shoal.torch import DataLoader

pytestmark = pytest.mark.usefixtures("impatient")
METHODS = ["fork", "forkserver"]


def kill(workers: Any) -> None:
    """Kill a worker, and wait until the system has ended the process."""
    os.kill(workers[0].pid, signal.SIGKILL)
    wait([workers[0].sentinel], timeout=20)


def workers_of(iterator: Any) -> Any:
    return iterator._source._workers.processes


def loader_of(tars: Dataset, method: str, **options: Any) -> DataLoader:
    return DataLoader(tars.with_ids().batch(5), num_workers=2, multiprocessing_context=method, **options)


@pytest.mark.parametrize("method", METHODS)
def test_a_kill_between_two_batches_is_raised_by_the_next(method: str, tars: Dataset) -> None:
    iterator = iter(loader_of(tars, method))
    next(iterator)
    kill(workers_of(iterator))
    with pytest.raises(WorkerError, match=r"worker 0 of 2 .* was ended by SIGKILL"):
        for _ in iterator:
            pass


@pytest.mark.parametrize("method", METHODS)
def test_a_kill_between_two_passes_is_raised_by_the_second(method: str, tars: Dataset) -> None:
    loader = loader_of(tars, method, persistent_workers=True)
    for _ in loader:
        pass
    assert loader._kept_workers is not None
    kill(loader._kept_workers.processes)
    with pytest.raises(WorkerError, match=r"worker 0 of 2 .* was ended by SIGKILL"):
        list(loader)
    loader.close()


PLACES = {"_send": WorkerPool, "_wait": WorkerPool, "receive": BatchReceiver, "add_counts": worker_source}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.drill)])
def test_a_kill_anywhere_in_a_pass_is_a_worker_error(
    place: str, method: str, tars: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[Any] = []
    killed: list[bool] = []
    call = getattr(PLACES[place], place)

    def killing(first: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(first, WorkerPool) and not known:
            known.append(first.processes)
        if known and not killed:
            killed.append(True)
            kill(known[0])
        return call(first, *arguments, **options)

    monkeypatch.setattr(PLACES[place], place, killing)
    with pytest.raises(WorkerError, match=r"worker 0 of 2 .* was ended by SIGKILL"):
        for _ in (iterator := iter(loader_of(tars, method))):
            known = known or [workers_of(iterator)]
    assert killed


@pytest.mark.soak
@pytest.mark.parametrize("method", METHODS)
def test_random_kills_are_worker_errors(method: str, tars: Dataset) -> None:
    dice = random.Random(1)
    for _ in range(200):
        iterator = iter(loader_of(tars, method))
        worker = dice.choice(workers_of(iterator))
        timer = threading.Timer(dice.random() * 0.2, os.kill, (worker.pid, signal.SIGKILL))
        timer.start()
        with contextlib.suppress(WorkerError):
            for _ in iterator:
                time.sleep(dice.random() * 0.01)
        timer.join()
        iterator.close()


def leave(_: int) -> None:
    os._exit(0)


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_leaves_without_an_error_is_a_worker_error(method: str, tars: Dataset) -> None:
    with pytest.raises(WorkerError, match="ended with exit code 0"):
        next(iter(loader_of(tars, method, worker_init_fn=leave)))
