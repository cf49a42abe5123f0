"""Children of this process that run a call, and may die in it: what an interpreter of its own would do, sooner."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any


def begin_fork(call: Callable[[], Any], *, dies_at: int | None = None, stderr: Path | None = None) -> int:
    """Start a child that exits with what the call returns, or with 70 where it raises; return its number.

    It is killed in place of giving a file its name for the ``dies_at``-th time, counted from 1.
    """
    child = os.fork()
    if not child:
        code = 70
        try:
            with (stderr or Path(os.devnull)).open("w") as errors, Path(os.devnull).open("w") as nothing:
                sys.stderr, sys.stdout = errors, nothing
                if dies_at is not None:
                    _die_at(dies_at)
                code = int(call() or 0)
        finally:
            os._exit(code)
    return child


def end_of_fork(child: int) -> int:
    """Wait for a child; return its exit status, or what killed it as a negative number."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_in_fork(call: Callable[[], Any], *, dies_at: int) -> None:
    """Run the call in a child that is killed before it ends."""
    assert end_of_fork(begin_fork(call, dies_at=dies_at)) == -signal.SIGKILL


def _die_at(number: int) -> None:
    steps = count(1)

    def counted(function: Callable[..., None]) -> Callable[..., None]:
        def name_it(*arguments: Any, **options: Any) -> None:
            if next(steps) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            function(*arguments, **options)

        return name_it

    os.replace, os.link = counted(os.replace), counted(os.link)
