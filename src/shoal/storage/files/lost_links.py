"""Dangling links in the place of directories: the lost directories may have held data."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator


def is_lost_directory(path: str) -> bool:
    """Return True for a dangling link without a suffix: its target may have been a directory."""
    return "." not in os.path.basename(path) and os.path.islink(path) and not os.path.exists(path)


def lost_directories(pattern: str) -> Iterator[str]:
    """Yield the dangling links that match the directories of a `glob` pattern."""
    parts = pattern.split(os.sep)
    for number in range(1, len(parts)):
        if glob.has_magic(parts[number - 1]):
            yield from filter(is_lost_directory, glob.iglob(os.sep.join(parts[:number]), recursive=True))
