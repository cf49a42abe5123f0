"""JSON Lines shards: one JSON value on each line, UTF-8.

Lines end with a newline (a carriage return before it is white space to JSON). Lines of nothing but white space belong
to no sample. The last line needs no newline, and a byte order mark at the start is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.shards.lines import WHITE, LineScan, line_crcs, lines_in, scan_lines
from shoal.shards.protocol import Buffer, ReadBytes, Sample, ShardScan


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
        lines = LineScan(shard, self.line_limit_bytes)
        return scan_lines(read, num_bytes, lines, window_bytes=self.window_bytes)

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
        lines = LineScan(shard, self.line_limit_bytes)
        starts = lines_in(buffer, sample_starts, lines, num_samples=num_samples, shard=shard, first_byte=first_byte)
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
        return line_crcs(self._buffer, self._starts)

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
            decoded = line.decode("utf-8").strip(WHITE)
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
            characters = len(text) - len(text.lstrip(WHITE)) + error.pos
            byte += len(text[:characters].encode())
            msg = f"this line is not JSON: {error.msg}"
        else:
            msg = f"this line holds JSON that Python cannot read: {error}"
        return ShardError(msg, shard=self._shard, byte=byte, hint="correct the line, or take it out of the shard")
