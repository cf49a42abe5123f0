"""Globs over names that a store lists, with the same meaning as for local files."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase


def has_magic(pattern: str) -> bool:
    """Return True if ``pattern`` is a glob."""
    return re.search(r"[*?\[]", pattern) is not None


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that is True for names that ``pattern`` matches; parts are separated by "/".

    ``**`` as a whole part stands for any number of directories, including none; at the end, for everything below. As in
    a shell, only an explicit "." matches one at the beginning of a part.

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
