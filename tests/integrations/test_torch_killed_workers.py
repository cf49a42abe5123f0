"""A worker that is killed is a `WorkerError`, wherever the main process is at that moment."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from shoal.errors import WorkerError
from shoal.integrations.torch import worker_processes
from shoal.processes.start_methods import wait_for_end
from shoal.stream.dataset import Dataset
from shoal.torch import DataLoader

pytestmark = pytest.mark.usefixtures("impatient_torch")
METHODS = ["fork", "forkserver"]


def kill(workers: Any) -> None:
    """Kill a worker, and let the system tell this process of it."""
    os.kill(workers[0].pid, signal.SIGKILL)
    wait_for_end(workers[:1], timeout_seconds=20)
    time.sleep(0.05)  # a handler of SIGCHLD runs here


def workers_of(iterator: Any) -> Any:
    return iterator._source._workers._iterator._workers


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
    kill(loader._kept_workers._iterator._workers)
    with pytest.raises(WorkerError, match=r"worker 0 of 2 .* was ended by SIGKILL"):
        list(loader)
    loader.close()


@pytest.mark.parametrize(
    ("place", "method"),
    [
        ("_reset", "fork"),
        ("_try_put_index", "forkserver"),
        ("_try_get_data", "fork"),
        ("_process_data", "forkserver"),
        ("add_counts", "fork"),
        pytest.param("_reset", "forkserver", marks=pytest.mark.drill),
        pytest.param("_try_put_index", "fork", marks=pytest.mark.drill),
        pytest.param("_try_get_data", "forkserver", marks=pytest.mark.drill),
        pytest.param("_process_data", "fork", marks=pytest.mark.drill),
        pytest.param("add_counts", "forkserver", marks=pytest.mark.drill),
    ],
)
def test_a_kill_anywhere_in_a_pass_is_a_worker_error(
    place: str, method: str, tars: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[Any] = []

    def killing(call: Callable[..., Any]) -> Callable[..., Any]:
        def first(self: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(self, _MultiProcessingDataLoaderIter) and not known:
                known.append(self._workers)
            if known and not killed:
                killed.append(True)
                kill(known[0])
            return call(self, *arguments, **options)

        return first

    killed: list[bool] = []
    if place == "add_counts":
        monkeypatch.setattr(worker_processes, place, killing(getattr(worker_processes, place)))
    else:
        monkeypatch.setattr(
            _MultiProcessingDataLoaderIter, place, killing(getattr(_MultiProcessingDataLoaderIter, place))
        )
    with pytest.raises(WorkerError, match=r"worker 0 of 2 .* was ended by SIGKILL"):
        for _ in (iterator := iter(loader_of(tars, method))):
            known = [workers_of(iterator)]
    assert killed


# After an error torch opens files to see whether it still can, and its own handler of SIGCHLD interrupts it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
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


class Ending:
    """A process whose pipe has closed, and of whose end the system does not know yet: as for a moment after a kill."""

    def __init__(self) -> None:
        self.sentinel, other = os.pipe()
        os.close(other)
        self.exitcode: int | None = None

    def join(self, timeout: float) -> None:
        assert timeout
        self.exitcode = -signal.SIGKILL


def test_the_end_of_a_process_is_known_once_it_was_waited_for() -> None:
    ending = Ending()
    wait_for_end([ending], timeout_seconds=5.0)
    assert ending.exitcode == -signal.SIGKILL
    os.close(ending.sentinel)


def leave(_: int) -> None:
    os._exit(0)


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_leaves_without_an_error_is_a_worker_error(method: str, tars: Dataset) -> None:
    with pytest.raises(WorkerError, match="ended with exit code 0"):
        next(iter(loader_of(tars, method, worker_init_fn=leave)))
