"""Expansion of paths that begin with ``~``, with an error where the home directory is unknown."""

# Paths are strings here, as they are for every other store.
# ruff: noqa: PTH111, PTH117

from __future__ import annotations

import os

from shoal.errors import UsageError


def home_of_user() -> str | None:
    """Return the absolute path of this user's home, existing or not; None if environment and system name none."""
    home = os.path.expanduser("~")
    return home if os.path.isabs(home) and os.environ.get("HOME") != "" else None


def with_home(path: str) -> str:
    """Return a path to be written to, with ``~`` expanded.

    Raises
    ------
    UsageError
        That home is unknown: a directory called ``~`` would be made in the current directory.
    """
    found = os.path.expanduser(path)
    name = path.partition("/")[0]
    is_unknown = home_of_user() is None if name == "~" else found.startswith("~")
    if path.startswith("~") and is_unknown:
        msg = f"{path}: there is no home {name} here (HOME={os.environ.get('HOME')!r}, user number {os.geteuid()})"
        raise UsageError(msg, hint="set HOME, or write the path in full; ./~ is a file of that name")
    return found
