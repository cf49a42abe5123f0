"""Ways of ending a loop over a loader, in one process: closing.py DATA INDEX WAY,... NUM_WORKERS,... TIMES."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
import weakref
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import shoal
import shoal.torch
from shoal.errors import ShuffleWarning


def note_worker(_: int) -> None:
    Path(os.environ["SHOAL_TEST_PIDS"], str(os.getpid())).touch()


def loader_of(data: str, index: str, num_workers: int) -> Any:
    ds = shoal.open(data, index=index).shuffle(seed=1).with_ids().batch(5)
    options: dict[str, Any] = {"worker_init_fn": note_worker} if num_workers else {}
    return shoal.torch.DataLoader(ds, num_workers=num_workers, prefetch_factor=4, **options)


def leave_early(loader: Any) -> None:
    for batch in loader:
        assert len(batch["__id__"]) == 5
        break


def fail(loader: Any) -> None:
    try:
        for _ in loader:
            raise RuntimeError("in the loop")
    except RuntimeError:
        pass


def interrupt(loader: Any) -> None:
    iterator = iter(loader)
    next(iterator)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    give_up = time.monotonic() + 20
    try:
        while time.monotonic() < give_up:
            next(iterator, None)
            time.sleep(0.001)
        raise RuntimeError("nobody interrupted")
    except KeyboardInterrupt:
        pass


def interrupt_the_end(loader: Any) -> None:
    """While what is left of the workers is taken apart, by finalizers: Python ignores what is raised in those."""
    iterator = iter(loader)
    for _ in range(len(loader)):
        next(iterator)
    workers = getattr(iterator._source, "_workers", None)
    if workers is None:
        next(iterator, None)
        return
    weakref.finalize(workers._workers[0].receiver, os.kill, os.getpid(), signal.SIGINT)
    del workers
    try:
        next(iterator, None)
        raise RuntimeError("an interrupt was lost")
    except KeyboardInterrupt:
        pass


def let_go(loader: Any) -> None:
    iterator = iter(loader)
    next(iterator)
    del loader, iterator


def exit_in_the_middle(loader: Any) -> None:
    iterator = iter(loader)
    next(iterator)
    globals()["kept"] = loader, iterator  # still there when Python ends


WAYS = {way.__name__: way for way in (leave_early, fail, interrupt, interrupt_the_end, let_go)}


def give_back_slowly(name: Any, kind: str, give_back: Any = resource_tracker.unregister) -> None:
    """Python ends between the two halves of giving back a semaphore, wherever a thread does it that nobody awaits."""
    if threading.current_thread() is not threading.main_thread():
        time.sleep(1)
    give_back(name, kind)


def main() -> None:
    resource_tracker.unregister = give_back_slowly  # type: ignore[assignment]  # the third argument is ours
    data, index, ways, worker_counts, times = sys.argv[1:]
    warnings.simplefilter("ignore", ShuffleWarning)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background of a shell ignores it
    for num_workers in map(int, worker_counts.split(",")):
        for way in ways.split(","):
            for _ in range(int(times)):
                WAYS[way](loader_of(data, index, num_workers))
                print(way, num_workers, threading.active_count(), flush=True)
    exit_in_the_middle(loader_of(data, index, num_workers))
    print("exit_in_the_middle", num_workers, threading.active_count(), flush=True)


if __name__ == "__main__":
    main()
