"""Termination of worker processes with the process that started them, even if that was killed without notice.

Otherwise they live on: a worker that makes a batch or waits for a server does not check its parent until that is done,
and the fork server and multiprocessing's tracker wait for the last worker.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from contextlib import suppress
from multiprocessing import connection

from shoal.storage.chunk_cache.chunk_cache import close_all_as_orphan

_LOOK_SECONDS = 0.5
_SECONDS_TO_TIDY = 1.0

_watching = 0  # the process whose parent is watched: a forked child does not inherit the thread


def end_with_parent() -> None:
    """End this process, whatever it is doing, within a second or so of the end of its parent.

    A thread waits for that. Caches that only this process still has open are closed first, as its parent would have
    done; nothing else is cleaned up: no ``finally`` and no `atexit`. A function that holds the interpreter's lock
    delays it.
    """
    global _watching  # noqa: PLW0603  # there is one process
    if _watching != os.getpid():
        _watching = os.getpid()
        threading.Thread(target=_watch, args=(os.getppid(),), name="shoal-parent", daemon=True).start()


def end_with_trainer() -> None:
    """Call `end_with_parent` if this process is a worker of torch's DataLoader; else do nothing."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and torch_data.get_worker_info() is not None:
        end_with_parent()


def _watch(starter: int) -> None:
    """Wait for the end of the parent; ``starter`` is the process that forked this one, perhaps a fork server."""
    parent = multiprocessing.parent_process()
    watched = [] if parent is None else [parent.sentinel]
    # The sentinel is the end of a pipe, which stays open if the parent forked a child that lives on.
    with suppress(AttributeError, OSError):
        watched.append(os.pidfd_open(starter if parent is None or parent.pid is None else parent.pid))
    while os.getppid() == starter and not connection.wait(watched, timeout=_LOOK_SECONDS):
        pass
    try:
        tidying = threading.Thread(target=close_all_as_orphan, name="shoal-heir", daemon=True)
        tidying.start()
        tidying.join(_SECONDS_TO_TIDY)
    finally:
        os._exit(1)
