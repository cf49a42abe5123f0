"""Starting of processes: detection of forks, and start methods that make it unnecessary."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection, process
from pathlib import Path
from typing import Any

from shoal.errors import UsageError
from shoal.hints import did_you_mean

generation = 0
"""Counter that grows by one in every forked child. Reading it costs a tenth of asking the system for the process id."""


def _forked() -> None:
    global generation  # noqa: PLW0603  # there is one process, and this is its age
    generation += 1


os.register_at_fork(after_in_child=_forked)


def start_context(asked: Any = None, *, preload: tuple[str, ...] = ()) -> Any:
    """Return the multiprocessing context asked for, by name or as an object; else one that does not fork this process.

    A child forked while this process has threads and connections may hang, or read data meant for another. So by
    default workers come from a fork server, which has neither, or are spawned if there is none. ``preload`` are modules
    that the fork server imports once for all workers, unless others were chosen before.
    """
    names = multiprocessing.get_all_start_methods()
    if asked is None:
        chosen = multiprocessing.get_start_method(allow_none=True)
        asked = chosen if chosen not in {None, "fork"} else "forkserver" if "forkserver" in names else "spawn"
    if not isinstance(asked, str):
        return asked
    if asked not in names:
        msg = f"there is no way {asked!r} to start worker processes; here there are {', '.join(map(repr, names))}"
        raise UsageError(msg, hint=did_you_mean(asked, names) + "leave out multiprocessing_context= for the safest")
    if asked == "forkserver" and preload:
        _preload(preload)
    return multiprocessing.get_context(asked)


@contextmanager
def existing_main() -> Iterator[None]:
    """Hide the path of the main module if there is no such file: processes that start meanwhile would run it.

    The path of a script on standard input is "<stdin>", and a scheduler may delete the script of a job.
    """
    main: Any = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    # A module that was run by name (-m) is imported by its name.
    if path is None or getattr(main, "__spec__", None) or Path(process.ORIGINAL_DIR or "", path).exists():  # type: ignore[attr-defined]
        yield
        return
    main.__file__ = None
    try:
        yield
    finally:
        main.__file__ = path


def begin_importing(context: Any) -> None:
    """Start the fork server, if this context has one, so that it imports beside what is done before workers start."""
    if context.get_start_method() == "forkserver":
        from multiprocessing import forkserver  # noqa: PLC0415  # absent on Windows

        with existing_main():
            forkserver.ensure_running()


def wait_for_end(processes: Sequence[Any], *, timeout_seconds: float) -> None:
    """Wait until one of these processes has ended and its exit code is known, for at most ``timeout_seconds``."""
    ended = connection.wait([each.sentinel for each in processes], timeout=timeout_seconds)
    for each in processes:
        if each.sentinel in ended:  # a pipe, which closes a moment before the system knows the exit code
            each.join(timeout_seconds)


def wait_for_feeders(queues: Sequence[Any], *, timeout_seconds: float) -> None:
    """Join the feeder threads of these closed queues, at most ``timeout_seconds`` each; brief, as the queues were read.

    A feeder may hold the last reference to semaphores of its queue. If Python exits while it releases them,
    multiprocessing's tracker warns of leaked semaphores.
    """
    for queue in queues:
        feeder = getattr(queue, "_thread", None)
        if feeder is not None and feeder is not threading.current_thread():
            feeder.join(timeout=timeout_seconds)


def _preload(modules: tuple[str, ...]) -> None:
    from multiprocessing import forkserver  # noqa: PLC0415  # absent on Windows

    server: Any = getattr(forkserver, "_forkserver", None)
    # There is one fork server for a whole process; the first choice of its modules stands.
    if getattr(server, "_preload_modules", None) == ["__main__"]:
        multiprocessing.get_context("forkserver").set_forkserver_preload(["__main__", *modules])
