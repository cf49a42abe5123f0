"""Patterns in paths: braces, as in ``train-{000000..001023}.tar``, and globs over names that a store lists.

Braces name 1024 shards without listing a directory. They follow the shell's rules, except that an unclosed brace is an
error: it is never intended. Globs mean the same as for local files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import islice

from shoal.errors import SourceError
from shoal.storage.urls import without_secrets

MAX_NAMES = 1_000_000
_MOST_BRACES, _MOST_DIGITS, _MOST_SHOWN, _MANY = 100, 100, 200, 10**18

_RANGE = re.compile(r"(-?\d+|[A-Za-z])\.\.(-?\d+|[A-Za-z])(?:\.\.(-?\d+))?")


def has_braces(pattern: str) -> bool:
    """Return True if expanding ``pattern`` would change it."""
    return next(expand_braces(pattern, limit=1)) != pattern


def expand_braces(pattern: str, *, limit: int | None = None) -> Iterator[str]:
    """Yield every name that ``pattern`` stands for, in the order in which it is written; may be nested.

    ``{a,b}`` stands for either, ``{08..11}`` for whole numbers, all as wide as the widest if one is zero-padded,
    ``{0..10..2}`` for every second number, ``{a..e}`` for letters. Other text in braces stands for itself.

    Raises `SourceError` if a brace is not closed, or there are more than a million names.

    >>> list(expand_braces("{train-{08..10},val-0}.tar"))
    ['train-08.tar', 'train-09.tar', 'train-10.tar', 'val-0.tar']
    """
    if pattern.count("{") > _MOST_BRACES:
        msg = f"{_shown(pattern)}: has {pattern.count('{'):,} braces; at most {_MOST_BRACES} are expanded"
        raise SourceError(msg, hint="name the directory, or give a list of shards")
    if limit is None and (num_names := _num_names(pattern)) > MAX_NAMES:
        count = f"{num_names:,}" if num_names < _MANY else f"more than {_MANY:,}"
        msg = f"{_shown(pattern)}: stands for {count} names; at most {MAX_NAMES:,} are expanded"
        raise SourceError(msg, hint="a typo in a range? Name the directory, or fewer and larger shards")
    yield from islice(_expand(pattern), limit)


def _shown(pattern: str) -> str:
    """Return a pattern for an error, without secrets, shortened."""
    text = without_secrets(pattern)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text):,} characters)"


def _num_names(pattern: str) -> int:
    """Count the names of `_expand` without making them."""
    if (first := _first_brace(pattern)) is None:
        return 1
    parts, end = first
    if len(parts) > 1:
        members = sum(map(_num_names, parts))
    else:
        numbers = _range_of(parts[0])
        members = _num_names(parts[0]) if numbers is None else _length(numbers)
    return members * _num_names(pattern[end + 1 :])


def _length(numbers: range) -> int:
    """Return the length of a range of any size; ``len`` refuses more than 2**63 numbers."""
    return max(0, (numbers.stop - numbers.start + numbers.step - (1 if numbers.step > 0 else -1)) // numbers.step)


def _expand(pattern: str) -> Iterator[str]:
    if (first := _first_brace(pattern)) is None:
        yield pattern
        return
    parts, end = first
    start = pattern.find("{")
    tails: list[str] = []  # parsed once, for the first member
    for number, member in enumerate(_members(parts)):
        for tail in tails if number else _expand(pattern[end + 1 :]):
            if not number:
                tails.append(tail)
            yield pattern[:start] + member + tail


def _first_brace(pattern: str) -> tuple[list[str], int] | None:
    """Return the parts of the first braces, and the position of the closing brace; None without braces."""
    start = pattern.find("{")
    if start < 0:
        return None
    depth, commas = 0, [start]
    for end in range(start, len(pattern)):
        depth += {"{": 1, "}": -1}.get(pattern[end], 0)
        if depth == 1 and pattern[end] == ",":
            commas.append(end)
        if depth == 0:
            break
    else:
        msg = f"{_shown(pattern)}: the brace at character {start} is never closed"
        raise SourceError(msg, hint="write {000..123} or {a,b}, with both braces")
    return [pattern[first + 1 : last] for first, last in zip(commas, [*commas[1:], end], strict=True)], end


def _range_of(text: str) -> range | None:
    """Return the numbers, or code points of letters, of a range such as ``0..9``; None for other texts."""
    match = _RANGE.fullmatch(text)
    if not match or match[1].isalpha() != match[2].isalpha():
        return None
    first, last, step = match[1], match[2], match[3] or "1"
    if max(map(len, (first, last, step))) > _MOST_DIGITS:
        msg = f"{{{_shown(text)}}}: a number of a range has at most {_MOST_DIGITS} digits"
        raise SourceError(msg, hint="a typo in a range?")
    begin, end = (ord(first), ord(last)) if first.isalpha() else (int(first), int(last))
    stride = abs(int(step)) or 1
    return range(begin, end + 1, stride) if begin <= end else range(begin, end - 1, -stride)


def _members(parts: Sequence[str]) -> Iterator[str]:
    if len(parts) > 1:
        for part in parts:
            yield from _expand(part)
    elif (numbers := _range_of(parts[0])) is not None:
        first, last = parts[0].split("..")[:2]
        is_padded = any(re.match(r"-?0\d", text) for text in (first, last))
        width = max(len(first), len(last)) if is_padded else 0
        for number in numbers:
            yield chr(number) if first.isalpha() else f"{number:0{width}d}"
    else:
        for member in _expand(parts[0]):
            yield "{" + member + "}"


def has_magic(pattern: str) -> bool:
    """Return True if ``pattern`` is a glob."""
    return re.search(r"[*?\[]", pattern) is not None


def matcher(pattern: str, *, hides_underscores: bool = False) -> Callable[[str], bool]:
    """Return a function that is True for names that ``pattern`` matches; parts are separated by "/".

    ``**`` as a whole part stands for any number of directories, including none; at the end, for everything below. As in
    a shell, only an explicit "." matches a "." at the beginning of a part; with ``hides_underscores``, only an explicit
    "_" matches a "_" there, except in partitions (``_year=2024``).

    >>> is_match = matcher("**/train-*.tar")
    >>> [name for name in ("train-0.tar", "a/b/train-1.tar", "a/.b/train-2.tar") if is_match(name)]
    ['train-0.tar', 'a/b/train-1.tar']
    """
    parts = pattern.split("/")
    return lambda name: _match(parts, name.split("/"), "._" if hides_underscores else ".")


def is_hidden(name: str, marks: str) -> bool:
    """Return True if a name begins with a character of ``marks``, and is not a partition ``_column=value``.

    >>> [is_hidden(name, "._") for name in ("_tmp", ".b", "_year=2024", "b_")]
    [True, True, False, False]
    """
    return name.startswith(tuple(marks)) and (name[0] == "." or "=" not in name)


def _match(parts: Sequence[str], names: Sequence[str], marks: str) -> bool:
    for i, part in enumerate(parts):
        if part == "**":
            rest = parts[i + 1 :] or ["*"]
            hidden = next((j for j, name in enumerate(names[i:], i) if is_hidden(name, marks)), len(names))
            return any(_match(rest, names[start:], marks) for start in range(i, min(hidden + 1, len(names))))
        if i >= len(names):
            return False
        hides = is_hidden(names[i], marks) and not part.startswith(names[i][0])
        if not (fnmatchcase(names[i], part) and not hides if has_magic(part) else part == names[i]):
            return False
    return len(parts) == len(names)
