"""Borders of the lines of a shard, for all text formats.

Lines end with a newline. Lines of only white space belong to no sample, and the last line needs no newline.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.rows.records import Cut, CutRecords, DecodeRecord, compact
from shoal.formats.shard_format import About, BorderSink, Content, SampleBorders, Span, StoredContent
from shoal.index.shard_scan import Buffer

BOM = b"\xef\xbb\xbf"
WHITE = " \t\n\r\v\f"
_NEWLINE, _RETURN = b"\n\r"
_AT_ONCE = 1 << 14  # positions at a time as Python integers, 40 bytes each
_PARSE_WINDOW_BYTES = 1 << 20
_FEW = 256  # lines of a window that begin with white space
_OTHER_FILE = "the shard has changed since it was indexed, or the index belongs to another shard: index it again"


def scan_lines(content: Content, borders: BorderSink, lines: LineScan, *, window_bytes: int) -> About:
    """Find the lines of a whole shard, after a byte order mark at its start, if any; memory O(window)."""
    position = front_bytes(content)
    lines.start_at(position)
    for window, is_last in windows_of(content, position, window_bytes):
        borders.add(*lines.add(window, is_last=is_last))
    return lines.about()


def front_bytes(content: Content) -> int:
    """Return the number of bytes before the first line: the size of a byte order mark, or 0."""
    return len(BOM) if bytes(content.read(0, len(BOM))) == BOM else 0


def windows_of(content: Content, position: int, window_bytes: int) -> Iterator[tuple[Buffer, bool]]:
    """Yield window after window, each with True if it is the last one."""
    window = _window(content, position, window_bytes)
    while len(window):
        position += len(window)
        following = _window(content, position, window_bytes)
        yield window, not len(following)
        window = following


def _window(content: Content, first_byte: int, num_bytes: int) -> Buffer:
    """Return the next bytes, never ending between a carriage return and its newline."""
    window = content.read(first_byte, first_byte + num_bytes)
    if len(window) and window[-1] == _RETURN:
        longer = content.read(first_byte, first_byte + num_bytes + 1)
        return longer if longer[-1] == _NEWLINE else window
    return window


def line_records(
    buffer: Buffer, span: Span, lines: LineScan, decode: DecodeRecord, cut: Cut | None = None
) -> CutRecords:
    """Return consecutive lines, each decoded when its sample is requested; layout CRCs cover their bytes.

    Raises `ShardError`: the bytes are not cut at line ends, or hold another number of lines than the index says.
    """
    num_samples, view = span.num_samples, memoryview(buffer)
    if span.sample_starts is None:
        scanned = SampleBorders()
        for window, is_last in windows_of(StoredContent(lambda a, b: view[a:b], len(buffer)), 0, _PARSE_WINDOW_BYTES):
            scanned.add(*lines.add(window, is_last=is_last, with_crcs=False))
        borders = scanned.starts()
        borders[0] = 0
        whole = int(borders[-1]) == len(buffer) or num_samples == 0
    else:
        borders = np.asarray(span.sample_starts, dtype=np.int64)
        whole = len(borders) == num_samples + 1 and borders[0] >= 0 and borders[-1] <= len(buffer)
        whole = bool(whole and (borders[1:] > borders[:-1]).all())
    if len(borders) != num_samples + 1 or not whole:
        msg = f"the index says {num_samples} samples in these {len(buffer)} bytes, but they hold {len(borders) - 1}"
        raise ShardError(msg, shard=span.shard, byte=span.first_byte, hint=_OTHER_FILE)
    lines.check_cuts(buffer, borders, span)
    starts = compact(borders)

    def crcs() -> NDArray[np.uint32]:
        return np.array([crc32(view[start:end]) for start, end in pairwise(starts)], dtype=np.uint32)

    return CutRecords(buffer, starts, span, decode=decode, crcs=crcs, cut=cut)


class LineEnds(NamedTuple):
    """The rules for line ends and for skipped lines.

    With ``quote`` (a byte) no line ends between two quotes, since quoted fields of a delimited file may hold newlines.
    A quote inside a quoted field is doubled and does not end the field. A quote in the middle of an unquoted field is
    an error with ``strict``, else an ordinary character; without ``strict`` a carriage return alone ends a line, too. A
    line of white space is skipped; the ``delimiter`` (a byte) is not white space. If ``newline`` is given, nothing else
    ends a line, and no line is skipped.
    """

    quote: int | None = None
    delimiter: int | None = None
    strict: bool = True
    newline: bytes = b""

    @property
    def or_return(self) -> bool:
        """True if a carriage return alone ends a line."""
        return self.quote is not None and not self.strict


class LineScan:
    """A scan for the lines of a shard, window by window, with a few integers about an unfinished line."""

    def __init__(self, shard: str, line_limit_bytes: int, ends: LineEnds = LineEnds()) -> None:  # noqa: B008  # frozen
        self._shard, self._limit, self._ends = shard, line_limit_bytes, ends
        self._spaces, self._openers = _spaces_and_openers(ends.delimiter)
        self._quoted = False  # the next byte is inside a quoted field
        self._after_closing = False  # the last byte was a quote that closed one, or the first of two
        self._last_byte = _NEWLINE
        self._any = False  # there is a sample
        self.num_blank = 0
        self._crc = 0  # of the bytes since the end of the last sample
        self._blank = True  # the unfinished line holds only white space so far
        self.start_at(0)

    def start_at(self, byte: int) -> None:
        """Begin at this byte of the shard."""
        self._position = self._line_start = self._start = byte

    def about(self) -> About:
        """Return the number of blank lines, as notes of the scan."""
        return About(notes={"blank_lines": self.num_blank} if self.num_blank else {})

    def add(
        self, window: Buffer, *, is_last: bool, with_crcs: bool = True
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return the borders of samples that end in the next window, and their CRCs, for `BorderSink.add`.

        In the last window the end of the shard ends a line too. No window ends between a carriage return and its
        newline.
        """
        data = np.frombuffer(window, dtype=np.uint8) if len(window) else np.zeros(0, dtype=np.uint8)
        line_ends = self._newlines(data) + 1
        if is_last and (int(line_ends[-1]) if len(line_ends) else 0) < len(data):
            line_ends = np.append(line_ends, len(data))
        self._check_limit(line_ends, len(data))
        blank = self._blank_lines(data, line_ends)
        self.num_blank += int(blank.sum())
        ends = line_ends[~blank] if blank.any() else line_ends
        samples = self._samples(memoryview(window), ends, line_ends, blank, with_crcs=with_crcs)
        done = int(line_ends[-1]) if len(line_ends) else 0
        rest_blank = bool(self._spaces[data[done:]].all())
        self._blank = rest_blank and (self._blank or len(line_ends) > 0)
        if len(line_ends):
            self._line_start = self._position + done
        self._position += len(data)
        return samples

    def check_cuts(self, buffer: Buffer, starts: NDArray[np.int64], span: Span) -> None:
        """Check that each sample ends with a line; the last one of a shard may lack its line end."""
        data = np.frombuffer(buffer, dtype=np.uint8) if len(buffer) else np.zeros(0, dtype=np.uint8)
        inner = starts[1:-1] - 1
        last = data[inner]
        wrong = inner[(last != _NEWLINE) & ((last != _RETURN) | (not self._ends.or_return))]
        if wrong.size:
            msg = "the index says that a line ends here, but none does"
            raise ShardError(msg, shard=span.shard, byte=span.first_byte + int(wrong[0]), hint=_OTHER_FILE)

    def _newlines(self, data: NDArray[np.uint8]) -> NDArray[np.int64]:
        newlines = np.flatnonzero(data == _NEWLINE)
        if self._ends.newline == b"\r\n":
            before = np.where(newlines > 0, data[newlines - 1], self._last_byte) if len(newlines) else newlines
            newlines = newlines[before == _RETURN]
        elif self._ends.or_return:
            returns = np.flatnonzero(data == _RETURN)
            followed = np.append(data, 0)[returns + 1] == _NEWLINE if len(returns) else returns.astype(np.bool_)
            alone = returns[~followed]
            newlines = np.sort(np.concatenate([newlines, alone])) if len(alone) else newlines
        if self._ends.quote is not None and len(data):
            quotes = self._quotes(data)
            num_before = np.searchsorted(quotes, newlines) + self._quoted
            self._quoted = bool((len(quotes) + self._quoted) % 2)
            self._after_closing = bool(not self._quoted and len(quotes) and quotes[-1] == len(data) - 1)
            newlines = newlines[num_before % 2 == 0]
        self._last_byte = int(data[-1]) if len(data) else self._last_byte
        return newlines

    def _quotes(self, data: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the positions of quotes that open or close a field, and of doubled quotes inside."""
        quotes = np.flatnonzero(data == self._ends.quote)
        if not len(quotes):
            return quotes
        before = data[quotes - 1]
        if quotes[0] == 0:
            before[0] = self._last_byte
        # A quote right before has just closed: the two are one doubled quote.
        may_open = self._openers[before] | (before == self._ends.quote)
        if quotes[0] == 0 and self._last_byte == self._ends.quote:
            may_open[0] = self._after_closing
        is_opening = (np.arange(len(quotes)) + self._quoted) % 2 == 0
        stray = np.flatnonzero(is_opening & ~may_open)
        if not stray.size:
            return quotes
        first = int(stray[0])
        if self._ends.strict:
            msg = "a quote stands in the middle of a field that does not begin with a quote"
            hint = "enclose the field in quotes and double the quotes inside; or pass format=Delimited(quoted=False)"
            raise ShardError(msg, shard=self._shard, byte=self._position + int(quotes[first]), hint=hint)
        closed_at = -1 if self._after_closing else -2
        kept = [quotes[:first], _without_strays(quotes, self._openers[before], first, closed_at)]
        return np.concatenate(kept)

    def _samples(
        self,
        view: memoryview,
        ends: NDArray[np.int64],
        line_ends: NDArray[np.int64],
        blank: NDArray[np.bool_],
        *,
        with_crcs: bool,
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """Return non-blank lines as samples; each sample begins at the end of the sample before."""
        start = 0
        borders = ends + self._position
        if not self._any:
            # Blank lines before the first sample belong to none, so it begins where its line does.
            num_before = int(np.argmin(blank)) if len(ends) else len(line_ends)
            if num_before:
                start = int(line_ends[num_before - 1])
                self._crc, self._start = 0, self._position + start
            if len(ends):
                borders = np.concatenate([[self._start], borders])
                self._any = True
        if not with_crcs:
            return borders, np.zeros(0, dtype=np.uint32)
        crcs = np.empty(len(ends), dtype=np.uint32)
        crc = self._crc
        for first in range(0, len(ends), _AT_ONCE):
            some = []
            for end in ends[first : first + _AT_ONCE].tolist():
                some.append(crc32(view[start:end], crc))
                start, crc = end, 0
            crcs[first : first + _AT_ONCE] = some
        self._crc = crc32(view[start:], crc)
        return borders, crcs

    def _blank_lines(self, data: NDArray[np.uint8], line_ends: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return True for lines of only white space; a line that begins with other bytes is not searched."""
        if self._ends.newline:
            return np.zeros(len(line_ends), dtype=np.bool_)
        starts = np.concatenate(([0], line_ends[:-1])) if len(line_ends) else line_ends
        blank = self._spaces[data[starts]]
        doubtful = np.flatnonzero(blank)
        if len(doubtful) > _FEW:  # one pass over all is faster
            blank = np.logical_and.reduceat(self._spaces[data[: line_ends[-1]]], starts)
        else:
            for number in doubtful.tolist():
                blank[number] = self._spaces[data[starts[number] : line_ends[number]]].all()
        if len(blank) and not self._blank:
            blank[0] = False
        return blank

    def _check_limit(self, line_ends: NDArray[np.int64], window_bytes: int) -> None:
        borders = np.concatenate(([self._line_start - self._position], line_ends, [window_bytes]))
        lengths = np.diff(borders)
        longest = int(np.argmax(lengths))
        if lengths[longest] > self._limit:
            what, hint = "line", "this is not a text of lines, or its lines need a larger limit"
            if self._ends.delimiter is not None:
                what, hint = "record", "does a quote never close? correct that, or give Delimited(record_limit_bytes=)"
            msg = f"a {what} longer than {self._limit} bytes begins here"
            raise ShardError(msg, shard=self._shard, byte=self._position + int(borders[longest]), hint=hint)


@cache
def _spaces_and_openers(delimiter: int | None) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return two tables by byte, shape (256,): if it is white space, and if a quote after it opens a field."""
    delimiters = set() if delimiter is None else {delimiter}
    white = set(WHITE.encode()) - delimiters  # a record of empty fields is a record
    spaces, openers = (np.isin(np.arange(256), list(kind)) for kind in (white, {_NEWLINE, _RETURN} | delimiters))
    return spaces, openers


def _without_strays(
    quotes: NDArray[np.int64], begin_fields: NDArray[np.bool_], first: int, closed_at: int
) -> NDArray[np.int64]:
    """Return the quotes among ``quotes[first:]`` that open or close a field, without stray quotes.

    ``begin_fields`` is True for quotes at the start of a field. At ``first``, no field is open; the quote before
    ``first``, or else ``closed_at``, closed the last field. Two adjacent quotes are one doubled quote.
    """
    kept: list[int] = []
    is_quoted = False
    closed_at = int(quotes[first - 1]) if first else closed_at
    for at in range(first, len(quotes), _AT_ONCE):
        some = slice(at, at + _AT_ONCE)
        for quote, begins in zip(quotes[some].tolist(), begin_fields[some].tolist(), strict=True):
            if is_quoted:
                is_quoted, closed_at = False, quote
            elif begins or quote == closed_at + 1:
                is_quoted = True
            else:
                continue
            kept.append(quote)
    return np.array(kept, dtype=np.int64)
