"""Braces in a path: ``train-{000000..001023}.tar`` names 1024 shards without listing a directory.

The rules are the shell's, where the notation comes from, with one difference: an unclosed brace is an error here,
because it is never intended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from shoal.errors import SourceError
from shoal.storage.urls import without_secrets

MAX_NAMES = 10_000_000

_INTEGERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d+))?")


def has_braces(pattern: str) -> bool:
    """Return True if expanding ``pattern`` would change it."""
    return next(expand_braces(pattern, limit=1)) != pattern


def expand_braces(pattern: str, *, limit: int | None = None) -> Iterator[str]:
    """Yield every name that ``pattern`` stands for, in the order in which it is written; may be nested.

    ``{a,b}`` stands for either, ``{08..11}`` for whole numbers, all as wide as the widest if one is zero-padded,
    ``{0..10..2}`` for every second one, ``{a..e}`` for letters. Anything else in braces stands for itself.

    Raises
    ------
    SourceError
        A brace is not closed, or there are more than ten million names.

    >>> list(expand_braces("{train-{08..10},val-0}.tar"))
    ['train-08.tar', 'train-09.tar', 'train-10.tar', 'val-0.tar']
    """
    names = _expand(pattern)
    yield from islice(names, MAX_NAMES if limit is None else limit)
    if limit is None and next(names, None) is not None:
        msg = f"{without_secrets(pattern)}: stands for more than {MAX_NAMES} names"
        raise SourceError(msg, hint="a slip in a range? Name the directory, or fewer and larger shards")


def _expand(pattern: str) -> Iterator[str]:
    start = pattern.find("{")
    if start < 0:
        yield pattern
        return
    end = _closing(pattern, start)
    head, inside = pattern[:start], pattern[start + 1 : end]
    for member in _members(inside):
        for tail in _expand(pattern[end + 1 :]):
            yield head + member + tail


def _closing(pattern: str, start: int) -> int:
    depth = 0
    for place in range(start, len(pattern)):
        depth += {"{": 1, "}": -1}.get(pattern[place], 0)
        if depth == 0:
            return place
    msg = f"{without_secrets(pattern)}: the brace at character {start} is never closed"
    raise SourceError(msg, hint="write {000..123} or {a,b}, with both braces")


def _members(inside: str) -> Iterator[str]:
    parts = _split_at_commas(inside)
    if len(parts) > 1:
        for part in parts:
            yield from _expand(part)
    elif match := _INTEGERS.fullmatch(inside):
        yield from _integers(*match.groups())
    elif match := _LETTERS.fullmatch(inside):
        first, last, step = match.groups()
        for code in _steps(ord(first), ord(last), step):
            yield chr(code)
    else:
        for member in _expand(inside):
            yield "{" + member + "}"


def _integers(first: str, last: str, step: str | None) -> Iterator[str]:
    padded = any(re.match(r"-?0\d", text) for text in (first, last))
    width = max(len(first), len(last)) if padded else 0
    for number in _steps(int(first), int(last), step):
        yield f"{number:0{width}d}"


def _steps(first: int, last: int, step: str | None) -> range:
    size = abs(int(step or 1)) or 1
    return range(first, last + 1, size) if first <= last else range(first, last - 1, -size)


def _split_at_commas(inside: str) -> list[str]:
    parts, depth, begin = [], 0, 0
    for place, letter in enumerate(inside):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(inside[begin:place])
            begin = place + 1
    return [*parts, inside[begin:]]
