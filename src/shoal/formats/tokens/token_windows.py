"""Windows over a run of tokens: each has ``length + 1`` of them, and one begins every ``length``.

Neighbours share a token, so a window has no bytes to itself: windows lie in pieces of about 64 KiB, each of which ends
with the first token of the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.field_columns import Columns, Kind
from shoal.formats.offset_table import offset_crcs
from shoal.formats.shard_format import Sample, Span
from shoal.index.cutting import even_cuts
from shoal.index.shard_scan import Buffer, ShardScan

FIELD = "tokens"
_PIECE_BYTES = 1 << 16


class TokenRun(NamedTuple):
    """The tokens of a file: their type, the byte of the first, and how many there are; the head of its shard."""

    dtype: str
    first_byte: int
    num_tokens: int

    @classmethod
    def of_head(cls, head: Mapping[str, Any]) -> TokenRun:
        """Return what the index keeps of a file."""
        return cls(head["dtype"], head["first_byte"], head["num_tokens"])

    @property
    def stored(self) -> np.dtype[Any]:
        """The type of the tokens as they are stored."""
        return np.dtype(self.dtype).newbyteorder("<")


def _starts(run: TokenRun, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pieces of a file as numbers of windows, and as bytes; both shape (num_pieces + 1,)."""
    window_bytes = length * run.stored.itemsize
    cuts = even_cuts(max(0, run.num_tokens - 1) // length, size=max(1, _PIECE_BYTES // window_bytes))
    starts = run.first_byte + window_bytes * cuts
    if len(starts) > 1:
        starts[-1] += run.stored.itemsize
    return cuts, starts


def scan_windows(run: TokenRun, length: int) -> ShardScan:
    """Return the windows of a file, from arithmetic alone; O(pieces).

    ``notes`` count the tokens that are in no window as ``tokens_left_over``.
    """
    cuts, starts = _starts(run, length)
    ends = starts[1:] + run.stored.itemsize
    ends[-1:] = starts[-1:][: len(ends)]
    num_windows = int(cuts[-1])
    left = run.num_tokens - (num_windows * length + 1 if num_windows else 0)
    return ShardScan(
        starts,
        offset_crcs(starts),
        head=run._asdict(),
        notes={"tokens_left_over": left} if left else {},
        piece_samples=np.diff(cuts),
        piece_decoded_bytes=np.diff(cuts) * (length + 1) * run.stored.itemsize,
        piece_ends=ends,
    )


class WindowRecords:
    """The windows of consecutive pieces, handed out by number, or all of them as a column."""

    def __init__(self, buffer: Buffer, span: Span, length: int) -> None:
        self._span, self._length = span, length
        self._run = run = TokenRun.of_head(span.head)
        expected = (span.num_samples * length + 1) * run.stored.itemsize
        if len(buffer) != expected:
            msg = (
                f"{span.num_samples} windows of {length + 1} tokens have {expected} bytes, and these are {len(buffer)}"
            )
            raise ShardError(
                msg, shard=span.shard, byte=span.first_byte, hint="index the file again, if it has changed"
            )
        self._tokens: NDArray[Any] = np.frombuffer(buffer, run.stored)

    def __len__(self) -> int:
        return self._span.num_samples

    def layout_crcs(self) -> NDArray[np.uint32]:
        """Return the CRC of the offsets of each piece; shape (num_pieces,)."""
        cuts, starts = _starts(self._run, self._length)
        window_bytes = self._length * self._run.stored.itemsize
        first = (self._span.first_byte - self._run.first_byte) // window_bytes
        low, high = np.searchsorted(cuts, [first, first + len(self)])
        return offset_crcs(starts[low : high + 1])

    def sample(self, number: int) -> Sample:
        """Return window ``number``; O(length)."""
        at = number * self._length
        return {FIELD: self._tokens[at : at + self._length + 1].astype(self._run.dtype)}

    def columns(self) -> Columns:
        """Return the windows as rows of one array, which overlap in memory."""
        rows = np.lib.stride_tricks.sliding_window_view(self._tokens, self._length + 1)[:: self._length]
        kind = Kind("array", np.dtype(self._run.dtype), (self._length + 1,))
        return Columns(((FIELD, kind),), (rows,))
