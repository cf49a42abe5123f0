"""Borders of the elements of a shard that is one JSON array, in bounded memory.

An element ends before the comma, and the next element begins with the comma: so the samples of a shard follow each
other without gaps. The scan looks at quotes, backslashes, brackets and commas only; reading a sample reports an element
that is not JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.rows.lines.line_borders import WHITE
from shoal.formats.rows.records import borders_in
from shoal.formats.shard_format import About, BorderSink, Span
from shoal.index.shard_scan import Buffer

ARRAY_HEAD = {"json": "array"}
"""What the head of a shard says that is one array."""

_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_STEPS = np.zeros(256, dtype=np.int64)  # change of depth by a bracket
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_IS_MARK = np.isin(np.arange(256), list(b'"\\,[]{}'))
_IS_SPACE = np.isin(np.arange(256), list(WHITE.encode()))
_ONE_VALUE = "for each element a sample: jq -c '.[]' FILE > FILE.jsonl; for each line a sample: name the file .jsonl"
_OTHER_FILE = "the shard has changed since it was indexed, or the index belongs to another shard: index it again"

_Part = tuple[NDArray[np.int64], NDArray[np.uint32]]


class ElementScan:
    """A walk through the elements of an array, window after window, from ``position`` of the shard on.

    Before the array ``depth`` is 0; among its elements it is 1. ``end`` is the first byte after the array, -1 before
    it is known; ``more`` is the first byte after the array that is not white space.
    """

    def __init__(self, shard: str, limit_bytes: int, *, position: int = 0, depth: int = 0) -> None:
        self._shard, self._limit, self._first = shard, limit_bytes, position
        self._position = self._start = position
        self._depth, self._in_text, self._is_escaped = depth, False, False
        self._crc = 0
        self._is_empty = depth == 0  # there is no element so far
        self._num_found = 0
        self.end = -1
        self.more: int | None = None

    def add(self, window: Buffer, *, with_crcs: bool = True) -> _Part:
        """Return the borders of elements that end in the next window, and their CRCs, for `BorderSink.add`.

        Raises `ShardError`: an element is longer than the limit.
        """
        data = np.frombuffer(window, dtype=np.uint8) if len(window) else np.zeros(0, dtype=np.uint8)
        begin, stop, ends = 0, len(data), np.zeros(0, dtype=np.int64)
        if self.end < 0:
            begin, stop, ends = self._ends_in(data)
            if self._is_empty:
                self._is_empty = bool(_IS_SPACE[data[begin : int(ends[0]) if len(ends) else stop]].all())
            if self.end >= 0 and not (self._is_empty and not self._num_found and not len(ends)):
                ends = np.append(ends, stop)
        samples = self._samples(memoryview(window), begin, stop, ends, with_crcs=with_crcs)
        if self.end >= 0 and self.more is None:
            behind = np.flatnonzero(~_IS_SPACE[data[max(0, self.end - self._position) :]])
            self.more = max(self.end, self._position) + int(behind[0]) if behind.size else None
        self._position += len(data)
        return samples

    def finish(self) -> None:
        """Raise `ShardError` if the array has no end, or other bytes follow it."""
        if self.end < 0:
            msg = "the JSON array that begins here never ends"
            raise ShardError(msg, shard=self._shard, byte=self._first, hint="the shard is cut short: fetch it again")
        if self.more is not None:
            msg = "other bytes follow the JSON array here"
            raise ShardError(msg, shard=self._shard, byte=self.more, hint=_ONE_VALUE)

    def _ends_in(self, data: NDArray[np.uint8]) -> tuple[int, int, NDArray[np.int64]]:
        """Return the part of the window inside of the array, and the positions of commas between its elements."""
        marks = np.flatnonzero(_IS_MARK[data])
        kinds = data[marks]
        quotes = self._quotes(marks[kinds == _QUOTE], marks[kinds == _BACKSLASH], len(data))
        marks = marks[(kinds != _QUOTE) & (kinds != _BACKSLASH)]
        marks = marks[(np.searchsorted(quotes, marks) + self._in_text) % 2 == 0]
        self._in_text = bool((len(quotes) + self._in_text) % 2)
        depth = self._depth + np.cumsum(_STEPS[data[marks]])
        begin, stop = 0, len(data)
        if not self._depth:  # bytes before the array belong to no element
            begin = int(marks[0]) + 1 if len(marks) else stop
            self._start = self._position + begin
        if (closing := np.flatnonzero(depth == 0)).size:
            stop = int(marks[closing[0]])
            self.end = self._position + stop + 1
            marks, depth = marks[: closing[0]], depth[: closing[0]]
        self._depth = int(depth[-1]) if len(depth) else self._depth
        return begin, stop, marks[(depth == 1) & (data[marks] == _COMMA)]

    def _quotes(self, quotes: NDArray[np.int64], slashes: NDArray[np.int64], num_bytes: int) -> NDArray[np.int64]:
        """Return the quotes that begin or end a text: quotes after an even number of backslashes."""
        first = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
        lengths = np.diff(np.append(first, len(slashes)))
        begins = slashes[first]
        behind = begins + lengths
        if self._is_escaped:
            if len(begins) and not begins[0]:
                lengths[0] += 1
            else:
                behind, lengths = np.append(0, behind), np.append(1, lengths)
        escaped = behind[lengths % 2 == 1]
        self._is_escaped = bool(len(escaped) and escaped[-1] == num_bytes)
        return quotes[~np.isin(quotes, escaped)] if len(escaped) else quotes

    def _samples(self, view: memoryview, begin: int, stop: int, ends: NDArray[np.int64], *, with_crcs: bool) -> _Part:
        borders = ends + self._position
        longest = np.diff(np.concatenate([[self._start], borders, [self._position + stop]]))
        if self.end < 0 and len(longest) and int(longest.max()) > self._limit:
            msg = f"an element longer than {self._limit} bytes begins here"
            byte = int(np.append(self._start, borders)[int(np.argmax(longest))])
            raise ShardError(msg, shard=self._shard, byte=byte, hint="does a text in it never end?")
        first = [self._start] * (not self._num_found and len(ends) > 0)
        crcs = np.zeros(len(ends) if with_crcs else 0, dtype=np.uint32)
        if with_crcs:
            for number, end in enumerate(ends.tolist()):
                crcs[number], self._crc, begin = crc32(view[begin:end], self._crc), 0, end
            self._crc = crc32(view[begin:stop], self._crc)
        if len(ends):
            self._start, self._num_found = int(borders[-1]), self._num_found + len(ends)
        return np.append(np.array(first, dtype=np.int64), borders), crcs


def scan_elements(windows: Iterator[tuple[Buffer, bool]], borders: BorderSink, elements: ElementScan) -> About:
    """Find the elements of a shard that is one array."""
    for window, _ in windows:
        borders.add(*elements.add(window))
    elements.finish()
    return About(ARRAY_HEAD)


def element_borders(buffer: Buffer, span: Span) -> Sequence[int]:
    """Return the offsets where the elements of a span begin and the last one ends.

    Raises `ShardError` if the index has another number of elements, or an element does not begin with a comma.
    """

    def walk() -> list[int]:
        elements = ElementScan(span.shard, len(buffer) + 1, depth=1)
        inner = elements.add(buffer, with_crcs=False)[0].tolist()
        return [0, *(border for border in inner if border), len(buffer)]

    starts = borders_in(buffer, span, walk, what="elements")
    inner = np.asarray(starts[1:-1], dtype=np.int64)
    wrong = inner[np.frombuffer(buffer, dtype=np.uint8)[inner] != _COMMA]
    if wrong.size:
        msg = "the index says that an element of a JSON array ends here, but none does"
        raise ShardError(msg, shard=span.shard, byte=span.first_byte + int(wrong[0]), hint=_OTHER_FILE)
    return starts
