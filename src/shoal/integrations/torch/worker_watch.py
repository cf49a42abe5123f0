"""Starts and ends of torch's worker processes, hidden from all code but the thread that waits for their batches.

This module hides two habits of torch. The start of workers blocks until a fork server has imported the user's modules,
and no signal ends it: here another thread starts workers, so that a stop or Ctrl-C ends the wait. And torch's handler
of SIGCHLD raises when a worker has ended, in any code of the main thread, such as the user's code between two batches:
here the handler knows the workers only while a thread waits for their batch.
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
    """Return torch's iterator over a loader after its workers have started.

    Raises `StoppedError` if ``is_stopped`` returned True meanwhile; another thread then ends the started workers.
    """
    if is_fork:  # takes milliseconds; and Python advises against forks in other threads
        with _children_unseen():
            iterator = iter(loader)
            _forget(iterator)
        return iterator
    if is_main_thread():
        signal_handling._set_SIGCHLD_handler()  # noqa: SLF001  # only the main thread may
    # Each thread has its own current device, and torch pins memory for it.
    is_pinning = getattr(loader, "pin_memory", False) and torch.accelerator.is_available()
    device = torch.accelerator.current_device_index() if is_pinning else None
    return call_unless_stopped(
        partial(_started, loader, device), is_stopped=is_stopped, undo=_end, what="the start of worker processes"
    )


def _started(loader: Any, device: int | None) -> Any:
    if device is not None:
        torch.accelerator.set_device_index(device)
    with existing_main():
        iterator = iter(loader)
    _forget(iterator)
    return iterator


def _end(iterator: Any) -> None:
    iterator._shutdown_workers()  # noqa: SLF001


@contextlib.contextmanager
def seen_ends(iterator: Any) -> Iterator[None]:
    """Raise `RuntimeError` if a worker has ended, or ends while the context lasts.

    In the main thread, torch's handler raises at once; elsewhere torch looks for ended workers every five seconds.
    """
    workers = getattr(iterator, "_workers", ())
    if not is_main_thread():
        _raise_if_ended(workers)
        yield
        return
    try:
        _set_worker_pids(id(iterator), tuple(worker.pid for worker in workers))
        iterator._worker_pids_set = True  # noqa: SLF001
        _raise_if_ended(workers)
        yield
    finally:
        _forget(iterator)


def ended_workers(iterator: Any) -> list[tuple[int, Any]]:
    """Return number and process of each worker that has ended; a worker should not end while batches are due."""
    workers = getattr(iterator, "_workers", ())
    return [(number, worker) for number, worker in enumerate(workers) if worker.exitcode is not None]


def _raise_if_ended(workers: Sequence[Any]) -> None:
    if any(worker.exitcode is not None for worker in workers):
        raise RuntimeError("a worker ended before its batch was requested")


def _forget(iterator: Any) -> None:
    """Let torch's handler of SIGCHLD ignore these workers."""
    if getattr(iterator, "_worker_pids_set", False):
        iterator._worker_pids_set = False  # noqa: SLF001
        _remove_worker_pids(id(iterator))


@contextlib.contextmanager
def _children_unseen() -> Iterator[None]:
    """Suspend torch's SIGCHLD handler; install the handler again on exit."""
    if not is_main_thread():
        yield
        return
    signal_handling._set_SIGCHLD_handler()  # noqa: SLF001
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)
