"""Links in the place of directories that lead nowhere: what they led to may have held data."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator


def is_lost_directory(path: str) -> bool:
    """Return True if a link without a suffix leads nowhere: its target may have been a directory."""
    return "." not in os.path.basename(path) and os.path.islink(path) and not os.path.exists(path)


def lost_directories(pattern: str) -> Iterator[str]:
    """Yield the links that lead nowhere, and match what a pattern of `glob` says of directories."""
    parts = pattern.split(os.sep)
    for number in range(1, len(parts)):
        if glob.has_magic(parts[number - 1]):
            yield from filter(is_lost_directory, glob.iglob(os.sep.join(parts[:number]), recursive=True))
