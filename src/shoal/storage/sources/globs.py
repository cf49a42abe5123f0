"""Globs over names that a store lists, with the meaning that they have for files of this machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

__all__ = ["has_magic", "matcher"]


def has_magic(pattern: str) -> bool:
    """Whether ``pattern`` is a glob."""
    return re.search(r"[*?\[]", pattern) is not None


def matcher(pattern: str) -> Callable[[str], bool]:
    """A function that is true of the names which ``pattern`` matches; parts are separated by "/".

    ``**`` as a whole part stands for any number of directories, none too; at the end, for all that is below. As in a
    shell, only a "." that is written matches one at the beginning of a part.

    >>> is_match = matcher("**/train-*.tar")
    >>> [name for name in ("train-0.tar", "a/b/train-1.tar", "a/.b/train-2.tar") if is_match(name)]
    ['train-0.tar', 'a/b/train-1.tar']
    """
    parts = pattern.split("/")
    return lambda name: _match(parts, name.split("/"))


def _match(parts: Sequence[str], names: Sequence[str]) -> bool:
    for place, part in enumerate(parts):
        if part == "**":
            rest = parts[place + 1 :] or ["*"]
            hidden = next((i for i, name in enumerate(names[place:], place) if name.startswith(".")), len(names))
            return any(_match(rest, names[start:]) for start in range(place, min(hidden + 1, len(names))))
        if place >= len(names) or not _match_part(part, names[place]):
            return False
    return len(parts) == len(names)


def _match_part(part: str, name: str) -> bool:
    if not has_magic(part):
        return part == name
    return fnmatchcase(name, part) and (part.startswith(".") or not name.startswith("."))
