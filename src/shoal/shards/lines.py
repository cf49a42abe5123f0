"""Where the lines of a shard begin and end: what all text formats share.

Lines end with a newline. Lines of nothing but white space belong to no sample, and the last line needs no newline.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.shards.protocol import Buffer, ReadBytes, ShardScan, Stretch
from shoal.shards.records import CutRecords, Decode

__all__ = ["BOM", "WHITE", "LineScan", "line_crcs", "line_records", "lines_in", "scan_lines"]

BOM = b"\xef\xbb\xbf"
WHITE = " \t\n\r\v\f"
_NEWLINE = 10
_FEW = 256  # lines of a window that begin with white space
_SPACES = np.zeros(256, dtype=np.bool_)
_SPACES[list(WHITE.encode())] = True
_OTHER_FILE = "the shard has changed since it was indexed, or the index belongs to another: index it again"


def scan_lines(read: ReadBytes, num_bytes: int, lines: LineScan, *, window_bytes: int) -> ShardScan:
    """Find the lines of a whole shard, a byte order mark at its start passed over; memory O(window) and the result."""
    position = 0
    if num_bytes >= len(BOM) and bytes(read(0, len(BOM))) == BOM:
        position = len(BOM)
    lines.start_at(position)
    while position < num_bytes:
        end = min(num_bytes, position + window_bytes)
        lines.add(read(position, end), is_last=end == num_bytes)
        position = end
    return lines.scan()


def line_records(buffer: Buffer, stretch: Stretch, lines: LineScan, decode: Decode) -> CutRecords:
    """Consecutive lines, each decoded when its sample is asked for; layout CRCs are those of their bytes.

    Raises
    ------
    ShardError
        As `lines_in`.
    """
    starts = lines_in(buffer, stretch, lines).tolist()
    return CutRecords(buffer, starts, stretch, decode=decode, crcs=partial(line_crcs, buffer, starts))


def lines_in(buffer: Buffer, stretch: Stretch, lines: LineScan) -> NDArray[np.int64]:
    """Where the lines of a buffer begin, and where the last one ends, checked; shape (num_samples + 1,).

    Raises
    ------
    ShardError
        Where the bytes are not cut at the ends of lines, or hold another number of them than the index says.
    """
    num_samples = stretch.num_samples
    if stretch.sample_starts is None:
        lines.add(buffer, is_last=True)
        starts = lines.scan().sample_starts
        if len(starts) > 1:
            starts[0] = 0
        whole = int(starts[-1]) == len(buffer) or num_samples == 0
    else:
        starts = np.asarray(stretch.sample_starts, dtype=np.int64)
        whole = len(starts) == num_samples + 1 and starts[0] >= 0 and starts[-1] <= len(buffer)
        whole = bool(whole and (starts[1:] > starts[:-1]).all())
    if len(starts) != num_samples + 1 or not whole:
        msg = f"the index says {num_samples} samples in these {len(buffer)} bytes, and {len(starts) - 1} are there"
        raise ShardError(msg, shard=stretch.shard, byte=stretch.first_byte, hint=_OTHER_FILE)
    _check_cuts(buffer, starts, stretch)
    return starts


def line_crcs(buffer: Buffer, starts: Sequence[int]) -> NDArray[np.uint32]:
    """CRC-32 of the bytes of each line, as a scan gives them; shape (num_lines,)."""
    view = memoryview(buffer)
    crcs = [crc32(view[starts[i] : starts[i + 1]]) for i in range(len(starts) - 1)]
    return np.array(crcs, dtype=np.uint32)


class LineScan:
    """Finds the lines of a shard, window by window, keeping a few integers of an unfinished one.

    With ``quote`` and ``delimiter`` (bytes), a line does not end between two quotes: the records of a delimited file,
    whose quoted fields may hold newlines. A quote inside such a field is written twice, which changes nothing. A quote
    that opens in the middle of a field is an error, since nobody can say where its record ends.
    """

    __slots__ = (
        "_blank",
        "_chunks",
        "_crc",
        "_crcs",
        "_delimiter",
        "_last_byte",
        "_limit",
        "_line_start",
        "_num_blank",
        "_position",
        "_quote",
        "_quoted",
        "_shard",
        "_spaces",
        "_start",
    )

    def __init__(
        self, shard: str, line_limit_bytes: int, *, quote: int | None = None, delimiter: int | None = None
    ) -> None:
        self._shard = shard
        self._quote, self._delimiter = quote, delimiter
        self._spaces = _SPACES.copy()
        if delimiter is not None:
            self._spaces[delimiter] = False  # a record of empty fields is a record
        self._quoted = False  # the next byte is inside a quoted field
        self._last_byte = _NEWLINE
        self._limit = line_limit_bytes
        self._chunks: list[NDArray[np.int64]] = []
        self._crcs: list[int] = []
        self._num_blank = 0
        self._crc = 0  # of the bytes since the end of the last sample
        self._blank = True  # the unfinished line holds only white space so far
        self.start_at(0)

    def start_at(self, byte: int) -> None:
        """Begin at this byte of the shard."""
        self._position = self._line_start = self._start = byte

    def add(self, window: Buffer, *, is_last: bool) -> None:
        """Find the lines that end in the next window; in the last one the end of the shard ends a line too."""
        data = np.frombuffer(window, dtype=np.uint8) if len(window) else np.zeros(0, dtype=np.uint8)
        line_ends = self._newlines(data) + 1
        if is_last and (int(line_ends[-1]) if len(line_ends) else 0) < len(data):
            line_ends = np.append(line_ends, len(data))
        self._check_limit(line_ends, len(data))
        blank = self._blank_lines(data, line_ends)
        self._num_blank += int(blank.sum())
        ends = line_ends[~blank]
        self._add_samples(memoryview(window), ends, line_ends, blank)
        done = int(line_ends[-1]) if len(line_ends) else 0
        rest_blank = bool(self._spaces[data[done:]].all())
        self._blank = rest_blank and (self._blank or len(line_ends) > 0)
        if len(line_ends):
            self._line_start = self._position + done
        self._position += len(data)

    def _newlines(self, data: NDArray[np.uint8]) -> NDArray[np.int64]:
        found = np.flatnonzero(data == _NEWLINE)
        if self._quote is None:
            return found
        quotes = np.flatnonzero(data == self._quote)
        self._check_quotes(data, quotes)
        num_before = np.searchsorted(quotes, found) + self._quoted
        self._quoted = bool((len(quotes) + self._quoted) % 2)
        self._last_byte = int(data[-1]) if len(data) else self._last_byte
        outside: NDArray[np.int64] = found[num_before % 2 == 0]
        return outside

    def _check_quotes(self, data: NDArray[np.uint8], quotes: NDArray[np.int64]) -> None:
        opening = quotes[(np.arange(len(quotes)) + self._quoted) % 2 == 0]
        before = np.where(opening > 0, data[opening - 1], self._last_byte)
        # A quote right before has just closed: the two are one quote, written twice.
        openers = [byte for byte in (self._delimiter, _NEWLINE, ord("\r"), self._quote) if byte is not None]
        stray = opening[~np.isin(before, openers)]
        if stray.size:
            msg = "a quote stands in the middle of a field that does not begin with one"
            hint = "write such a field between quotes and its quotes twice; or give Delimited(quoted=False) as format="
            raise ShardError(msg, shard=self._shard, byte=self._position + int(stray[0]), hint=hint)

    def scan(self) -> ShardScan:
        """The samples found."""
        notes = {"blank_lines": self._num_blank} if self._num_blank else {}
        if not self._crcs:
            return ShardScan(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.uint32), notes=notes)
        return ShardScan(np.concatenate(self._chunks), np.array(self._crcs, dtype=np.uint32), notes=notes)

    def _add_samples(
        self, view: memoryview, ends: NDArray[np.int64], line_ends: NDArray[np.int64], blank: NDArray[np.bool_]
    ) -> None:
        """Take the lines that are not blank as samples, each from the end of the one before to its own."""
        start = 0
        if not self._crcs:
            # Blank lines before the first sample belong to none, so it begins where its line does.
            num_before = int(np.argmin(blank)) if len(ends) else len(line_ends)
            if num_before:
                start = int(line_ends[num_before - 1])
                self._crc, self._start = 0, self._position + start
            if len(ends):
                self._chunks.append(np.array([self._start], dtype=np.int64))
        crc = self._crc
        for end in ends.tolist():
            self._crcs.append(crc32(view[start:end], crc))
            start, crc = end, 0
        self._chunks.append(ends + self._position)
        self._crc = crc32(view[start:], crc)

    def _blank_lines(self, data: NDArray[np.uint8], line_ends: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which lines hold only white space: only those that begin with it are looked at in full."""
        starts = np.concatenate(([0], line_ends[:-1])) if len(line_ends) else line_ends
        blank = self._spaces[data[starts]]
        doubtful = np.flatnonzero(blank)
        if len(doubtful) > _FEW:  # then all at once is quicker than each
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
            msg = f"a line longer than {self._limit} bytes begins here"
            hint = "this is no text of lines, or its lines need a larger limit"
            raise ShardError(msg, shard=self._shard, byte=self._position + int(borders[longest]), hint=hint)


def _check_cuts(buffer: Buffer, starts: NDArray[np.int64], stretch: Stretch) -> None:
    """Each sample must end with a newline; the last one of a shard may lack it."""
    data = np.frombuffer(buffer, dtype=np.uint8) if len(buffer) else np.zeros(0, dtype=np.uint8)
    inner = starts[1:-1] - 1
    wrong = inner[data[inner] != _NEWLINE]
    if wrong.size:
        msg = "by the index a line ends here, and none does"
        raise ShardError(msg, shard=stretch.shard, byte=stretch.first_byte + int(wrong[0]), hint=_OTHER_FILE)
