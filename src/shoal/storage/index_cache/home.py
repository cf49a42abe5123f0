"""Paths that begin with ``~``, where there is a home, and where nobody knows of one."""

# Paths are text in this room, as they are for every other store.
# ruff: noqa: PTH111, PTH117

from __future__ import annotations

import os

from shoal.errors import UsageError

__all__ = ["home_of_user", "with_home"]


def home_of_user() -> str | None:
    """The absolute path of this user's home, there or not; None where neither environment nor system has one."""
    home = os.path.expanduser("~")
    return home if os.path.isabs(home) and os.environ.get("HOME") != "" else None


def with_home(path: str) -> str:
    """A path to be written to, with ``~`` replaced.

    Raises
    ------
    UsageError
        Nobody knows that home: a directory called ``~`` would be made where the process happens to run.
    """
    found = os.path.expanduser(path)
    name = path.partition("/")[0]
    is_unknown = home_of_user() is None if name == "~" else found.startswith("~")
    if path.startswith("~") and is_unknown:
        msg = f"{path}: there is no home {name} here (HOME={os.environ.get('HOME')!r}, user number {os.geteuid()})"
        raise UsageError(msg, hint="set HOME, or write the path in full; ./~ is a file of that name")
    return found
