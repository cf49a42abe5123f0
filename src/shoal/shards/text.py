"""Plain text: each line that is not blank is a sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.shards.lines import LineScan, line_crcs, lines_in, scan_lines
from shoal.shards.protocol import Buffer, ReadBytes, Sample, ShardScan

__all__ = ["Text", "TextRecords"]

_LINE_LIMIT_BYTES = 1 << 30


class Text:
    """The format of one line of UTF-8 a sample: ``{"text": line}``, without the end of the line."""

    name: str = "text"
    suffixes: tuple[str, ...] = (".txt", ".text")

    def __init__(self, *, window_bytes: int = 4 << 20) -> None:
        self.window_bytes = window_bytes

    def scan(self, read: ReadBytes, num_bytes: int, *, shard: str) -> ShardScan:
        """Find the lines by reading all; the layout CRC is the CRC-32 of a line. ``notes`` count ``blank_lines``."""
        return scan_lines(read, num_bytes, LineScan(shard, _LINE_LIMIT_BYTES), window_bytes=self.window_bytes)

    def read_sample(
        self, read: ReadBytes, first_byte: int, end_byte: int, *, shard: str, head: Mapping[str, Any]
    ) -> Sample:
        """One line."""
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
    ) -> TextRecords:
        """Open the bytes of consecutive lines; raises `ShardError` where they are not cut at the ends of lines."""
        lines = LineScan(shard, _LINE_LIMIT_BYTES)
        starts = lines_in(buffer, sample_starts, lines, num_samples=num_samples, shard=shard, first_byte=first_byte)
        return TextRecords(buffer, starts, shard, first_byte)


class TextRecords:
    """Some consecutive lines of a shard, handed out by number."""

    __slots__ = ("_buffer", "_first_byte", "_shard", "_starts")

    def __init__(self, buffer: Buffer, starts: NDArray[np.int64], shard: str, first_byte: int) -> None:
        self._buffer, self._starts = buffer, starts.tolist()
        self._shard, self._first_byte = shard, first_byte

    def __len__(self) -> int:
        return len(self._starts) - 1

    def layout_crcs(self) -> NDArray[np.uint32]:
        """CRC-32 of the bytes of each line, as `Text.scan` gives them; shape (len,)."""
        return line_crcs(self._buffer, self._starts)

    def sample(self, number: int) -> Sample:
        """Sample ``number``; raises `ShardError` where it is not UTF-8, with the byte at which that shows."""
        start, end = self._starts[number], self._starts[number + 1]
        line = bytes(memoryview(self._buffer)[start:end])
        # Blank lines before it came along; its own leading spaces stay.
        begin = line.rfind(b"\n", 0, len(line) - 1) + 1
        try:
            return {"text": line[begin:].decode("utf-8").rstrip("\r\n")}
        except UnicodeDecodeError as error:
            msg = f"this line is not UTF-8: {error.reason}"
            byte = self._first_byte + start + begin + error.start
            hint = "convert the shard to UTF-8, or correct the line"
            raise ShardError(msg, shard=self._shard, byte=byte, hint=hint) from None
