"""A job that has five seconds to end in: the loop over a loader ends, whatever the storage does, with a right state."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.stream.made import at, open_finely, reading_threads, write_tars

from shoal.orders import Window
from shoal.stream.dataset import Dataset
from shoal.stream.open_dataset import open_dataset
from shoal.stream.workers.worker_pool import WorkerPool
from shoal.testing import Fault, RangeServer
from shoal.testing.faults import FaultKind
from shoal.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

_GRACE_SECONDS = 5.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, RangeServer]]:
    directory = tmp_path_factory.mktemp("stopping")
    open_finely(write_tars(directory / "data", [100, 97]))
    with RangeServer(directory) as server:
        yield directory / "fine.index", server


def remote(served: tuple[Path, RangeServer], kind: FaultKind) -> Dataset:
    """A dataset on a server that answers some requests, and then no more."""
    index, server = served
    server.faults = []
    url = server.url_of("data/s-000.tar").replace("000", "{000..001}")
    ds = (
        open_dataset(url, index=index)
        .shuffle(Window(chunks=8, num_canonical_nodes=2), seed=1, chunk="6KB")
        .with_ids()
        .batch(5)
    )
    server.clear()
    server.faults = [Fault(kind, path="*.tar", requests=range(40, 10**9), seconds=60.0)]
    return ds


def endless(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["cls"] == b"70":
        time.sleep(60)
    return sample


def stopped(iterator: Any, stop: Any, is_stuck: Callable[[], object]) -> tuple[list[int], float]:
    """What a loop receives until a SIGTERM asks it to end, while it waits; and how long it then takes."""
    seen: list[float] = []

    def handle(*_: object) -> None:
        seen.append(time.monotonic())
        stop()

    before = signal.signal(signal.SIGTERM, handle)
    received: list[int] = []
    last = threading.Event()
    timer = threading.Thread(target=_ask_to_end, args=(last, received, is_stuck))
    timer.start()
    try:
        for batch in iterator:
            received += batch["__id__"].tolist()
    finally:
        last.set()
        timer.join()
        signal.signal(signal.SIGTERM, before)
    assert seen
    return received, time.monotonic() - seen[0]


def _ask_to_end(is_over: threading.Event, received: list[int], is_stuck: Callable[[], object]) -> None:
    """Send a SIGTERM when nothing has come for a while: then the loop waits."""
    number = -1
    while number != len(received) or not is_stuck():
        number = len(received)
        if is_over.wait(0.3):
            return
    os.kill(os.getpid(), signal.SIGTERM)


def check(ds: Dataset, iterator: Any, stop: Any, is_stuck: Callable[[], object]) -> None:
    received, seconds = stopped(iterator, stop, is_stuck)
    assert seconds < _GRACE_SECONDS
    assert received == ds.ids().tolist()[: len(received)]
    assert at(ds) == (0, len(received))
    assert len(received) < 197
    with pytest.raises(StopIteration):
        next(iterator)
    until = time.monotonic() + 10
    while (left := [name for name in reading_threads() if "read" not in name]) and time.monotonic() < until:
        time.sleep(0.01)
    assert left == []


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("stall", {}),
        ("status", {}),
        ("status", {"prefetch_factor": 0}),
        ("stall", {"num_workers": 2}),
    ],
)
def test_a_loop_that_waits_for_a_server_can_be_ended(
    kind: FaultKind, options: dict[str, Any], served: tuple[Path, RangeServer]
) -> None:
    ds = remote(served, kind)
    loader = DataLoader(ds, **options)
    check(ds, iter(loader), loader.stop, served[1].num_faults)
    loader.close()


def test_a_stream_that_waits_for_a_server_can_be_ended(served: tuple[Path, RangeServer]) -> None:
    ds = remote(served, "stall")
    iterator = iter(ds)
    check(ds, iterator, iterator.stop, served[1].num_faults)


def test_a_worker_that_is_stuck_in_a_function_does_not_delay_the_end(served: tuple[Path, RangeServer]) -> None:
    ds = open_dataset(served[0].parent / "data", index=served[0]).map(endless).with_ids().batch(5)
    loader = DataLoader(ds, num_workers=1, persistent_workers=True)
    check(ds, iter(loader), loader.stop, lambda: at(ds)[1] > 20)
    loader.close()


def test_workers_are_killed_even_if_the_loop_has_closed_them_before(
    served: tuple[Path, RangeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    kill = WorkerPool.kill
    processes: list[Any] = []

    class Answered:
        """A pipe whose message is answered before the sender goes on."""

        def __init__(self, pool: WorkerPool) -> None:
            self._pool, self._kill = pool, pool._kill

        def send_bytes(self, data: bytes) -> None:
            self._kill.send_bytes(data)
            while self._pool.processes:
                time.sleep(0.01)

    def kill_late(pool: WorkerPool) -> None:
        processes.extend(pool.processes)
        monkeypatch.setattr(pool, "_kill", Answered(pool))
        kill(pool)

    monkeypatch.setattr(WorkerPool, "kill", kill_late)
    ds = open_dataset(served[0].parent / "data", index=served[0]).map(endless).with_ids().batch(5)
    loader = DataLoader(ds, num_workers=1, persistent_workers=True)
    check(ds, iter(loader), loader.stop, lambda: at(ds)[1] > 20)
    assert [process.exitcode for process in processes] == [-signal.SIGKILL]
    loader.close()


def test_what_was_stopped_goes_on_from_its_state(tars: Dataset) -> None:
    for num_workers in (0, 1):
        ds = tars.shuffle(seed=1).with_ids().batch(5)
        loader = DataLoader(ds, num_workers=num_workers, persistent_workers=bool(num_workers))
        received = []
        for number, batch in enumerate(loader):
            received += batch["__id__"].tolist()
            if number == 7:
                loader.stop()
        assert len(received) == 40
        loader.start()
        loader.load_state_dict(loader.state_dict())
        received += [i for batch in loader for i in batch["__id__"].tolist()]
        assert received == ds.ids().tolist()
        loader.close()


def ids_of(loader: DataLoader) -> list[int]:
    return [i for batch in loader for i in batch["__id__"].tolist()]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_stop_between_two_loops_holds_until_the_next_start(num_workers: int, tars: Dataset) -> None:
    ds = tars.shuffle(seed=1).with_ids().batch(50)
    loader = DataLoader(ds, num_workers=num_workers, persistent_workers=bool(num_workers))
    assert len(ids_of(loader)) == 197
    loader.stop()
    assert loader.is_stopped
    loader.set_epoch(1)
    assert ids_of(loader) == ids_of(loader) == []
    loader.load_state_dict(loader.state_dict())
    assert ids_of(loader) == []
    assert at(ds) == (1, 0)
    loader.start()
    assert not loader.is_stopped
    assert ids_of(loader) == ds.ids(epoch=1).tolist()
    loader.close()


def test_a_stop_before_the_first_loop_is_logged_once(tars: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    loader = DataLoader(tars.batch(50), num_workers=1)
    loader.stop()
    assert list(loader) == list(loader) == []
    assert [record.getMessage() for record in caplog.records] == [
        "the loader was stopped, and gives no batches before loader.start()"
    ]
    loader.start()
    loader.stop()
    assert list(loader) == []
    assert len(caplog.records) == 2
    assert multiprocessing.active_children() == []


class SlowToStart:
    """A function that takes a while to reach a worker."""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return sample

    def __reduce__(self) -> tuple[Any, ...]:
        return _slowly, ()


def _slowly() -> SlowToStart:
    time.sleep(60)
    return SlowToStart()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.drill)])
def test_a_loop_whose_workers_start_can_be_ended(method: str, tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker takes a minute to start: the main process waits for it, or for its first batch."""
    ds = tars.map(SlowToStart()).with_ids().batch(5)
    loader = DataLoader(ds, num_workers=2, multiprocessing_context=method)
    is_starting, may_go_on = threading.Event(), threading.Event()
    start = WorkerPool._start

    def slow_start(self: Any) -> Any:
        is_starting.set()
        may_go_on.wait(8)  # as for a fork server that imports the script of the user
        return start(self)

    monkeypatch.setattr(WorkerPool, "_start", slow_start)
    received, seconds = stopped(loader, loader.stop, is_starting.is_set)
    assert (received, at(ds)) == ([], (0, 0))
    assert seconds < _GRACE_SECONDS
    may_go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("shoal-call"):
            thread.join()
    loader.close()


@pytest.mark.parametrize("context", multiprocessing.get_all_start_methods())
def test_workers_end_by_themselves(context: str, tars: Dataset) -> None:
    loader = DataLoader(
        tars.batch(50), num_workers=2, prefetch_factor=1, persistent_workers=True, multiprocessing_context=context
    )
    next(iter(loader))
    processes = multiprocessing.active_children()
    loader.close()
    assert [process.exitcode for process in processes] == [0, 0]
