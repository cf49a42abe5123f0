"""Ranges of a shard in files, and the part of a read that they cover."""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shoal.storage.store_protocol import ObjectInfo

_NAME = re.compile(r"([0-9a-f]{32})-(\d{1,19})-(\d{1,19})")


class Range(NamedTuple):
    """Bytes ``[first_byte, end_byte)`` of a shard."""

    first_byte: int
    end_byte: int

    @property
    def num_bytes(self) -> int:
        """Number of bytes."""
        return self.end_byte - self.first_byte


def folder_of(path: str) -> str:
    """Return the name of a shard's folder, which all versions share: they are dropped together."""
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def version_digest(info: ObjectInfo) -> str:
    """Return a digest of a shard's path, size and version, which identify its contents."""
    text = f"{info.path}\n{info.num_bytes}\n{info.version}"
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def file_name(version: str, span: Range) -> str:
    """Return the name of a file with one range of a shard; ``version`` is the `version_digest`."""
    return f"{version}-{span.first_byte}-{span.end_byte}"


def ranges_named(names: Iterable[str], version: str) -> Iterator[Range]:
    """Yield the ranges in files of this version of a shard; other files are skipped."""
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None and match[1] == version:
            yield Range(int(match[2]), int(match[3]))


def names_with(names: Iterable[str], span: Range) -> Iterator[str]:
    """Yield the names of files with any byte of ``span``, in any version of the shard."""
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None and int(match[2]) < span.end_byte and span.first_byte < int(match[3]):
            yield name


class ScannedRanges:
    """The ranges of one shard in files; they may overlap.

    >>> ranges = ScannedRanges([Range(0, 10), Range(8, 20), Range(2, 5), Range(30, 40)])
    >>> ranges.covering(4, 15)
    [Range(first_byte=4, end_byte=10), Range(first_byte=10, end_byte=15)]
    >>> ranges.covering(15, 35)
    [Range(first_byte=15, end_byte=20)]
    >>> ranges.covering_backwards(15, 35)
    [Range(first_byte=30, end_byte=35)]
    """

    __slots__ = ("_ends", "_firsts")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        # Without ranges that lie in another one, so beginnings and ends both ascend.
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first_byte, end_byte in sorted(ranges, key=lambda span: (span.first_byte, -span.end_byte)):
            if not self._ends or end_byte > self._ends[-1]:
                self._firsts.append(first_byte)
                self._ends.append(end_byte)

    def covering(self, first_byte: int, end_byte: int) -> list[Range]:
        """Return consecutive parts of ``[first_byte, end_byte)``, from its first byte on, each within one file."""
        parts = []
        while first_byte < end_byte:
            number = bisect_right(self._firsts, first_byte) - 1
            if number < 0 or self._ends[number] <= first_byte:
                break
            end = min(end_byte, self._ends[number])
            parts.append(Range(first_byte, end))
            first_byte = end
        return parts

    def covering_backwards(self, first_byte: int, end_byte: int) -> list[Range]:
        """Return consecutive parts of ``[first_byte, end_byte)``, up to its end, each within one file."""
        parts: list[Range] = []
        while first_byte < end_byte:
            number = bisect_right(self._ends, end_byte - 1)
            if number == len(self._ends) or self._firsts[number] >= end_byte:
                break
            first = max(first_byte, self._firsts[number])
            parts.append(Range(first, end_byte))
            end_byte = first
        return parts[::-1]

    def file_with(self, part: Range) -> Range:
        """Return the range of the file with ``part``, a result of `covering`."""
        number = bisect_right(self._firsts, part.first_byte) - 1
        return Range(self._firsts[number], self._ends[number])
