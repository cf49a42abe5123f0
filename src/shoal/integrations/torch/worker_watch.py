"""Starts and ends of torch's worker processes, seen by the thread that waits for their batches, and by no other code.

Two habits of torch are kept from everything else. Starting blocks until a fork server has imported the modules of the
user, which no signal ends: here another thread starts workers, so that a stop or Ctrl-C ends the wait. And torch
installs a handler of SIGCHLD that raises once a worker has ended, in whatever code the main thread runs: between two
batches that is the code of the user. Here the handler knows the workers only while their batch is waited for.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch._C import _remove_worker_pids, _set_worker_pids
from torch.utils.data._utils import signal_handling

from shoal.processes.calls_in_threads import call_unless_stopped
from shoal.processes.interrupts import is_main_thread
from shoal.processes.start_methods import existing_main


def start_workers(loader: Any, *, is_fork: bool, is_stopped: Callable[[], bool]) -> Any:
    """Return torch's iterator over a loader, once its workers have started.

    Raises
    ------
    StoppedError
        ``is_stopped`` returned True meanwhile; what has started is ended in another thread.
    """
    if is_fork:  # takes milliseconds; and Python advises against forks in other threads
        with _children_unseen():
            made = iter(loader)
            _forget(made)
        return made
    if is_main_thread():
        signal_handling._set_SIGCHLD_handler()  # noqa: SLF001  # only there
    # A thread has a current device of its own, which torch takes for pinned memory.
    device = torch.accelerator.current_device_index() if _is_pinning(loader) else None
    return call_unless_stopped(
        partial(_started, loader, device), is_stopped=is_stopped, undo=_end, what="the start of worker processes"
    )


def _started(loader: Any, device: int | None) -> Any:
    if device is not None:
        torch.accelerator.set_device_index(device)
    with existing_main():
        made = iter(loader)
    _forget(made)
    return made


def _end(made: Any) -> None:
    made._shutdown_workers()  # noqa: SLF001


@contextlib.contextmanager
def seen_ends(made: Any) -> Iterator[None]:
    """Let an end of a worker raise `RuntimeError` at once while the context lasts, and if there was one before.

    Only in the main thread, where torch's handler raises; elsewhere torch looks for ended workers every five seconds.
    """
    workers = getattr(made, "_workers", ())
    if not is_main_thread():
        _raise_if_ended(workers)
        yield
        return
    try:
        _set_worker_pids(id(made), tuple(worker.pid for worker in workers))
        made._worker_pids_set = True  # noqa: SLF001
        _raise_if_ended(workers)
        yield
    finally:
        _forget(made)


def ended_workers(made: Any) -> list[tuple[int, Any]]:
    """Return number and process of each worker that has ended: none does while batches are due."""
    workers = getattr(made, "_workers", ())
    return [(number, worker) for number, worker in enumerate(workers) if worker.exitcode is not None]


def _raise_if_ended(workers: Sequence[Any]) -> None:
    if any(worker.exitcode is not None for worker in workers):
        raise RuntimeError("a worker ended before its batch was asked for")


def _forget(made: Any) -> None:
    """Make torch's handler of SIGCHLD ignore these workers."""
    if getattr(made, "_worker_pids_set", False):
        made._worker_pids_set = False  # noqa: SLF001
        _remove_worker_pids(id(made))


@contextlib.contextmanager
def _children_unseen() -> Iterator[None]:
    """Keep torch's handler of SIGCHLD from running; it is installed afterwards if it was not before."""
    if not is_main_thread():
        yield
        return
    signal_handling._set_SIGCHLD_handler()  # noqa: SLF001
    answer = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, answer)


def _is_pinning(loader: Any) -> bool:
    return bool(getattr(loader, "pin_memory", False) and torch.accelerator.is_available())
