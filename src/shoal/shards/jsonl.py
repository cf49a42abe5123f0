"""JSON Lines shards: one JSON value on each line, UTF-8.

Lines end with a newline (a carriage return before it is white space to JSON). Lines of nothing but white space belong
to no sample. The last line needs no newline, and a byte order mark at the start is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.shards.protocol import Buffer, ReadBytes, Sample, ShardScan

_NEWLINE = 10
_BOM = b"\xef\xbb\xbf"
_WHITE = " \t\n\r\v\f"
_SPACES = np.zeros(256, dtype=np.bool_)
_SPACES[list(_WHITE.encode())] = True
_OTHER_FILE = "the shard has changed since it was indexed, or the index belongs to another: index it again"


class JsonLines:
    """The format of one JSON value a line.

    A sample is the object of its line; a line that holds another JSON value gives ``{"json": value}``. ``NaN`` and
    ``Infinity`` are accepted, as Python's `json` does. A scan reads ``window_bytes`` at a time and keeps none of
    them, so its memory does not grow with the length of a line; a line longer than ``line_limit_bytes`` is refused.
    """

    name: str = "jsonl"
    suffixes: tuple[str, ...] = (".jsonl", ".ndjson")

    def __init__(self, *, window_bytes: int = 4 << 20, line_limit_bytes: int = 1 << 30) -> None:
        self.window_bytes = window_bytes
        self.line_limit_bytes = line_limit_bytes

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Find the lines of a shard by reading all of it; the layout CRC of a sample is the CRC-32 of its bytes.

        Memory O(window) beyond the result. ``notes`` count ``blank_lines``.

        Raises
        ------
        ShardError
            Where a line is longer than ``line_limit_bytes``.
        """
        lines = _Lines(shard, self.line_limit_bytes)
        position = 0
        if num_bytes >= len(_BOM) and bytes(read(0, len(_BOM))) == _BOM:
            position = len(_BOM)
        lines.start_at(position)
        while position < num_bytes:
            end = min(num_bytes, position + self.window_bytes)
            lines.add(read(position, end), is_last=end == num_bytes)
            position = end
        return lines.scan()

    def read_sample(
        self, read: ReadBytes, first_byte: int, end_byte: int, *, shard: str, head: Mapping[str, Any]
    ) -> Sample:
        """One line, read and parsed whole."""
        line, borders = read(first_byte, end_byte), [0, end_byte - first_byte]
        return self.parse(line, borders, num_samples=1, shard=shard, first_byte=first_byte, head=head).sample(0)

    def parse(
        self,
        buffer: Buffer,
        sample_starts: Sequence[int] | None,
        *,
        num_samples: int,
        shard: str,
        first_byte: int,
        head: Mapping[str, Any],  # noqa: ARG002  (nothing elsewhere in the shard matters to a line)
    ) -> JsonRecords:
        """Open the bytes of consecutive lines; a line is parsed when its sample is asked for.

        Raises
        ------
        ShardError
            Where the bytes are not cut at the ends of lines, or hold another number of them than the index says.
        """
        if sample_starts is None:
            lines = _Lines(shard, self.line_limit_bytes)
            lines.add(buffer, is_last=True)
            starts = lines.scan().sample_starts
            if len(starts) > 1:
                starts[0] = 0
            whole = int(starts[-1]) == len(buffer) or num_samples == 0
        else:
            starts = np.asarray(sample_starts, dtype=np.int64)
            whole = len(starts) == num_samples + 1 and starts[0] >= 0 and starts[-1] <= len(buffer)
            whole = bool(whole and (starts[1:] > starts[:-1]).all())
        if len(starts) != num_samples + 1 or not whole:
            msg = f"the index says {num_samples} samples in these {len(buffer)} bytes, and {len(starts) - 1} are there"
            raise ShardError(msg, shard=shard, byte=first_byte, hint=_OTHER_FILE)
        _check_cuts(buffer, starts, shard, first_byte)
        return JsonRecords(buffer, starts, shard, first_byte)


class JsonRecords:
    """Some consecutive lines of a shard, handed out by number."""

    __slots__ = ("_buffer", "_first_byte", "_shard", "_starts")

    def __init__(self, buffer: Buffer, starts: NDArray[np.int64], shard: str, first_byte: int) -> None:
        self._buffer = buffer
        self._starts = starts.tolist()
        self._shard = shard
        self._first_byte = first_byte

    def __len__(self) -> int:
        return len(self._starts) - 1

    def layout_crcs(self) -> NDArray[np.uint32]:
        """CRC-32 of the bytes of each sample, as `JsonLines.scan` gives them; shape (len,)."""
        view, starts = memoryview(self._buffer), self._starts
        crcs = [crc32(view[starts[i] : starts[i + 1]]) for i in range(len(self))]
        return np.array(crcs, dtype=np.uint32)

    def sample(self, number: int) -> Sample:
        """Sample ``number``: the fields of the object on its line; O(its bytes).

        Raises
        ------
        ShardError
            Where the line is not UTF-8 or not JSON, with the byte at which that shows.
        """
        start, end = self._starts[number], self._starts[number + 1]
        line = bytes(self._buffer[start:end])
        try:
            decoded = line.decode("utf-8").strip(_WHITE)
            value = json.loads(decoded)
        except (ValueError, RecursionError) as error:
            raise self._wrong(line, start, error) from None
        return value if isinstance(value, dict) else {"json": value}

    def _wrong(self, line: bytes, start: int, error: Exception) -> ShardError:
        byte = self._first_byte + start
        if isinstance(error, UnicodeDecodeError):
            byte += error.start
            msg = f"this line is not UTF-8: {error.reason}"
        elif isinstance(error, json.JSONDecodeError):
            text = line.decode("utf-8")
            characters = len(text) - len(text.lstrip(_WHITE)) + error.pos
            byte += len(text[:characters].encode())
            msg = f"this line is not JSON: {error.msg}"
        else:
            msg = f"this line holds JSON that Python cannot read: {error}"
        return ShardError(msg, shard=self._shard, byte=byte, hint="correct the line, or take it out of the shard")


class _Lines:
    """Finds the lines of a shard, window by window, keeping a few integers of an unfinished one."""

    __slots__ = (
        "_blank",
        "_chunks",
        "_crc",
        "_crcs",
        "_limit",
        "_line_start",
        "_num_blank",
        "_position",
        "_shard",
        "_start",
    )

    def __init__(self, shard: str, line_limit_bytes: int) -> None:
        self._shard = shard
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
        line_ends = np.flatnonzero(data == _NEWLINE) + 1
        if is_last and (int(line_ends[-1]) if len(line_ends) else 0) < len(data):
            line_ends = np.append(line_ends, len(data))
        self._check_limit(line_ends, len(data))
        blank = self._blank_lines(data, line_ends)
        self._num_blank += int(blank.sum())
        ends = line_ends[~blank]
        self._add_samples(memoryview(window), ends, line_ends, blank)
        done = int(line_ends[-1]) if len(line_ends) else 0
        rest_blank = bool(_SPACES[data[done:]].all())
        self._blank = rest_blank and (self._blank or len(line_ends) > 0)
        if len(line_ends):
            self._line_start = self._position + done
        self._position += len(data)

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
        blank = np.zeros(len(line_ends), dtype=np.bool_)
        for number in np.flatnonzero(_SPACES[data[starts]]).tolist():
            blank[number] = bool(_SPACES[data[starts[number] : line_ends[number]]].all())
        if len(blank) and not self._blank:
            blank[0] = False
        return blank

    def _check_limit(self, line_ends: NDArray[np.int64], window_bytes: int) -> None:
        borders = np.concatenate(([self._line_start - self._position], line_ends, [window_bytes]))
        lengths = np.diff(borders)
        longest = int(np.argmax(lengths))
        if lengths[longest] > self._limit:
            msg = f"a line longer than {self._limit} bytes begins here"
            hint = "this is no JSON Lines shard, or its lines need a larger limit"
            raise ShardError(msg, shard=self._shard, byte=self._position + int(borders[longest]), hint=hint)


def _check_cuts(buffer: Buffer, starts: NDArray[np.int64], shard: str, first_byte: int) -> None:
    """Each sample must end with a newline; the last one of a shard may lack it."""
    data = np.frombuffer(buffer, dtype=np.uint8) if len(buffer) else np.zeros(0, dtype=np.uint8)
    inner = starts[1:-1] - 1
    wrong = inner[data[inner] != _NEWLINE]
    if wrong.size:
        msg = "by the index a line ends here, and none does"
        raise ShardError(msg, shard=shard, byte=first_byte + int(wrong[0]), hint=_OTHER_FILE)
