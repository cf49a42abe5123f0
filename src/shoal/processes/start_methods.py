"""Start of worker processes without a fork, and detection of forks."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import process
from pathlib import Path
from typing import Any

from shoal.errors import UsageError
from shoal.hints import did_you_mean

generation = 0
"""Counter that grows by one in every forked child. Reading it costs a tenth of `os.getpid`."""


def _forked() -> None:
    global generation  # noqa: PLW0603  # there is one process, and this is its age
    generation += 1


os.register_at_fork(after_in_child=_forked)


def start_context(method: Any = None, *, preload: tuple[str, ...] = ()) -> Any:
    """Return the multiprocessing context of ``method``, a name or a context; else one that does not fork this process.

    A child forked while this process has threads and connections may hang, or read data meant for another process. So
    by default workers come from a fork server, which has neither, or are spawned if there is none. The fork server
    imports the modules ``preload`` once for all workers, unless the user has chosen others.
    """
    names = multiprocessing.get_all_start_methods()
    if method is None:
        chosen = multiprocessing.get_start_method(allow_none=True)
        method = chosen if chosen not in {None, "fork"} else "forkserver" if "forkserver" in names else "spawn"
    if not isinstance(method, str):
        return method
    if method not in names:
        msg = f"there is no way {method!r} to start worker processes; here there are {', '.join(map(repr, names))}"
        raise UsageError(msg, hint=did_you_mean(method, names) + "leave out multiprocessing_context= for the safest")
    if method == "forkserver" and preload:
        from multiprocessing import forkserver  # noqa: PLC0415  # absent on Windows

        # There is one fork server for a whole process; the first choice of its modules stands.
        if getattr(getattr(forkserver, "_forkserver", None), "_preload_modules", None) == ["__main__"]:
            multiprocessing.get_context("forkserver").set_forkserver_preload(["__main__", *preload])
    return multiprocessing.get_context(method)


@contextmanager
def existing_main() -> Iterator[None]:
    """Hide the path of the main module if its file does not exist: new processes would try to run it.

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
